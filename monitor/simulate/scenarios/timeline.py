"""A YAML file with the line of every value, so that errors can name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from monitor.errors import USAGE, UserError

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class ScenarioError(UserError):
    """A scenario that does not exist or cannot be played. The text names file and line."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class YamlValue:
    """A value and the line where it begins. `data` of a block maps keys to YamlValues, of a
    list holds YamlValues.
    """

    line: int
    data: Any

    def block(self, file: str, what: str) -> Mapping[str, YamlValue]:
        """The value as a block of `key: value` lines. Raises ScenarioError."""
        if not isinstance(self.data, dict):
            raise problem(file, self.line, f"{what} must be a block of `key: value` lines")
        return self.data

    def text(self, file: str, what: str) -> str:
        """The value as text. Raises ScenarioError."""
        if not isinstance(self.data, str):
            raise problem(file, self.line, f"{what} is {self.plain()!r}; it must be text")
        return self.data

    def seconds(self, file: str, what: str) -> float:
        """The value as a duration. Raises ScenarioError."""
        found = _DURATION.match(str(self.data).strip())
        if found is None:
            given = f"{what} is {self.plain()}" if self.data is not None else f"{what} is empty"
            raise problem(file, self.line, f"{given}; give it a unit, for example 90s, 10m or 2h")
        return float(found[1]) * _UNIT_S[found[2]]

    def plain(self) -> Any:
        """The value without lines."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        return [value.plain() for value in self.data] if isinstance(self.data, list) else self.data


def problem(file: str, line: int | None, text: str) -> ScenarioError:
    """An error at `scenarios/heat.yaml:7: …`."""
    return ScenarioError(f"{file}: {text}" if line is None else f"{file}:{line}: {text}")


def read_yaml(text: str, file: str) -> YamlValue:
    """Parses the whole file. Raises ScenarioError."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "it cannot be read"
        raise problem(file, mark.line + 1 if mark else None, f"is not valid YAML: {what}") from None
    return YamlValue(1, {}) if node is None else _value(node, file)


def _value(node: yaml.Node, file: str) -> YamlValue:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        block: dict[str, YamlValue] = {}
        for key, value in node.value:
            if str(key.value) in block:
                raise problem(
                    file,
                    key.start_mark.line + 1,
                    f"{key.value} stands here a second time; keep one of them",
                )
            block[str(key.value)] = YamlValue(key.start_mark.line + 1, _value(value, file).data)
        return YamlValue(line, block)
    if isinstance(node, yaml.SequenceNode):
        return YamlValue(line, [_value(item, file) for item in node.value])
    loader = yaml.SafeLoader("")
    try:
        return YamlValue(line, loader.construct_object(node, deep=True))
    except (yaml.YAMLError, ValueError) as error:
        raise problem(file, line, f"{node.value!r} cannot be read: {error}") from None
    finally:
        loader.dispose()
