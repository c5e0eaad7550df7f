"""The common parts of configuration, probe and scenario files: YAML with the line of every value,
and durations with a unit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(text: str) -> float | None:
    """Seconds from `800ms`, `2s`, `5m`, `1h` or `7d`; None for any other text."""
    match = _DURATION.fullmatch(text)
    return None if match is None else float(match[1]) * _UNIT_S[match[2]]


class YamlSyntaxError(Exception):
    """A file is not valid YAML; `line` is None where the parser does not report it."""

    def __init__(self, error: yaml.YAMLError) -> None:
        mark = getattr(error, "problem_mark", None)
        self.line: int | None = mark.line + 1 if mark else None
        self.reason = getattr(error, "problem", None) or "it cannot be read"
        super().__init__(self.reason)


@dataclass(frozen=True, slots=True)
class YamlValue:
    """A value and its line, which for the value of a key is the key's. `data` is a mapping or list
    of YamlValues, or a plain value.
    """

    line: int
    data: object

    def plain(self) -> object:
        """The value without lines."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that is in a mapping already; its value is ignored."""

    key: str
    line: int
    first_line: int


@dataclass(slots=True)
class YamlDocument:
    """A file's values, None where it is empty, and its duplicate keys."""

    root: YamlValue | None = None
    duplicates: list[Duplicate] = field(default_factory=list)


def read_yaml(text: str) -> YamlDocument:
    """Reads a file. Raises YamlSyntaxError, or RecursionError for endless nesting."""
    document = YamlDocument()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document.root = None if node is None else _value(node, document.duplicates)
    except yaml.YAMLError as error:
        raise YamlSyntaxError(error) from None
    return document


def _value(node: yaml.Node, duplicates: list[Duplicate]) -> YamlValue:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return YamlValue(line, _mapping(node, duplicates))
    if isinstance(node, yaml.SequenceNode):
        return YamlValue(line, [_value(item, duplicates) for item in node.value])
    return YamlValue(line, _scalar(node))


def _mapping(node: yaml.MappingNode, duplicates: list[Duplicate]) -> dict[str, YamlValue]:
    result: dict[str, YamlValue] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in result:
            duplicates.append(Duplicate(key, line, result[key].line))
        else:
            result[key] = YamlValue(line, _value(value_node, duplicates).data)
    return result


def _scalar(node: yaml.Node) -> object:
    """A plain YAML 1.1 value, except that dates remain text: no key of ours is a date."""
    if node.tag == "tag:yaml.org,2002:timestamp":
        return node.value
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    # a tag that does not match its value, such as !!int many
    except (yaml.YAMLError, ValueError, LookupError):
        return node.value
    finally:
        loader.dispose()
