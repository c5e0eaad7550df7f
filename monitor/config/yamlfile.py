"""A strict YAML reader that knows the line of every value, and pydantic's errors as sentences."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from monitor.config.problems import ConfigError, Problem

Location = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


class YamlFile:
    """One parsed YAML file: its values, and the line of each."""

    def __init__(self, path: Path, shown_as: str) -> None:
        self.path = path
        self.shown_as = shown_as
        self.lines: dict[Location, int] = {}
        self.problems: list[Problem] = []
        self.data = self._read()

    def problem(self, location: Location, text: str) -> Problem:
        """A problem at a place, with the line of the nearest enclosing place that has one."""
        place = location
        while place and place not in self.lines:
            place = place[:-1]
        return Problem(self.shown_as, self.lines.get(place), text)

    def validated(
        self,
        model: type[M],
        context: Mapping[str, object] | None = None,
        further: Callable[[M], Iterable[Problem]] = lambda _: (),
    ) -> M:
        """The values as `model`. Raises ConfigError with every problem of the file, including
        duplicate keys and `further` checks.
        """
        problems: dict[Problem, None] = dict.fromkeys(self.problems)
        data, unknown = self.data, True
        result: M | None = None
        # Validate again without the unknown keys: they must not hide errors between known ones.
        while unknown:
            unknown = False
            try:
                result = model.model_validate(data, context=dict(context or {}))
                problems |= dict.fromkeys(further(result))
            except ValidationError as error:
                problems |= {
                    self.problem(tuple(e["loc"]), sentence(e, model)): None for e in error.errors()
                }
                places = [tuple(e["loc"]) for e in error.errors() if e["type"] == "extra_forbidden"]
                data, unknown = _without(data, places), bool(places)
        if problems or result is None:
            raise ConfigError(sorted(problems, key=lambda problem: problem.line or 0))
        return result

    def _read(self) -> Any:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError([Problem(self.shown_as, None, "no such file")]) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([Problem(self.shown_as, None, f"cannot be read: {error}")]) from None
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            if node is None:
                return {}
            if not isinstance(node, yaml.MappingNode):
                text = "has no `key: value` lines at its top level"
                raise ConfigError([Problem(self.shown_as, 1, text)])
            return self._value(node, ())
        except yaml.YAMLError as error:
            raise ConfigError([_syntax_problem(self.shown_as, error)]) from None
        except RecursionError:
            text = "is not valid YAML: it is nested too deeply, or contains an alias of itself"
            raise ConfigError([Problem(self.shown_as, None, text)]) from None

    def _value(self, node: yaml.Node, location: Location) -> Any:
        self.lines.setdefault(location, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, location)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*location, index)) for index, item in enumerate(node.value)]
        return _scalar(node)

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            place = (*location, key)
            line = key_node.start_mark.line + 1
            if key in result:
                text = f"{key} is a duplicate (first in line {self.lines[place]}); keep one of them"
                self.problems.append(Problem(self.shown_as, line, text))
                continue
            self.lines[place] = line
            result[key] = self._value(value_node, place)
        return result


def _scalar(node: yaml.Node) -> Any:
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


def _syntax_problem(shown_as: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or "cannot be read as YAML"
    return Problem(shown_as, mark.line + 1 if mark else None, f"is not valid YAML: {what}")


def _without(data: Any, places: Iterable[Location]) -> Any:
    """A copy of the values without some keys."""
    result = copy.deepcopy(data)
    for place in places:
        block = result
        for part in place[:-1]:
            block = block[part]
        del block[place[-1]]
    return result


def sentence(error: ErrorDetails, model: type[BaseModel]) -> str:
    """One pydantic error as a sentence with the key, its value and what it must be."""
    loc: Location = tuple(error["loc"])
    key = str(loc[-1]) if loc else ""
    if isinstance(loc[-1] if loc else None, int):
        key = f"{loc[-2]} entry {int(loc[-1]) + 1}" if len(loc) > 1 else f"entry {int(loc[-1]) + 1}"
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown_key(key, known_keys(model, loc[:-1]))
    if kind == "missing":
        return f"{key} is missing"
    if kind == "value_error":
        text = str(error["ctx"]["error"])
        return f"{key} {text}" if loc and not text.startswith(("give ", "one of ")) else text
    expected = _EXPECTED.get(kind)
    given = error.get("input")
    if expected:
        return f"{key} is {given!r}; it must be {expected}"
    return f"{key} is {given!r}; {error['msg'][:1].lower()}{error['msg'][1:]}".replace(
        "; input should ", "; it must "
    )


_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a block of `key: value` lines",
    "model_type": "a block of `key: value` lines",
    "model_attributes_type": "a block of `key: value` lines",
}


def _unknown_key(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
    return f"{key} is not a known key; {hint}"


def known_keys(model: type[BaseModel], location: Location) -> list[str]:
    """The valid keys at a place, following nested models through lists and mappings."""
    current: Any = model
    # An index, or a user-defined key such as a class name, has no field.
    for part in location:
        if isinstance(current, type) and issubclass(current, BaseModel):
            found = next((f for n, f in current.model_fields.items() if part in {n, f.alias}), None)
            current = _inner_model(found.annotation) if found else current
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [f.alias or n for n, f in current.model_fields.items()]
    return []


def _inner_model(annotation: Any) -> Any:
    """The pydantic model inside `list[Model]`, `dict[str, Model]` or `Model | None`, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None
