"""YAML files validated by pydantic, with every error as a sentence with its line."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from monitor.config.problems import ConfigError, FileProblem
from monitor.user_files import YamlSyntaxError, YamlValue, read_yaml

Location = tuple[str | int, ...]
M = TypeVar("M", bound=BaseModel)


class YamlFile:
    """One parsed YAML file: its values, and the line of each."""

    def __init__(self, path: Path, shown_as: str) -> None:
        self.path = path
        self.shown_as = shown_as
        self.lines: dict[Location, int] = {}
        self.problems: list[FileProblem] = []
        self.data = self._read()

    def problem(self, location: Location, text: str) -> FileProblem:
        """A problem at a place, with the line of the nearest enclosing place that has one."""
        place = location
        while place and place not in self.lines:
            place = place[:-1]
        return FileProblem(self.shown_as, self.lines.get(place), text)

    def validated(
        self,
        model: type[M],
        context: Mapping[str, object] | None = None,
        further: Callable[[M], Iterable[FileProblem]] = lambda _: (),
    ) -> M:
        """The values as `model`. Raises ConfigError with every problem of the file, including
        duplicate keys and `further` checks.
        """
        problems: dict[FileProblem, None] = dict.fromkeys(self.problems)
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

    def _read(self) -> object:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise self._unreadable("no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(f"cannot be read: {error}") from None
        try:
            document = read_yaml(text)
        except YamlSyntaxError as error:
            raise self._unreadable(f"is not valid YAML: {error.reason}", error.line) from None
        except RecursionError:
            reason = "it is nested too deeply, or contains an alias of itself"
            raise self._unreadable(f"is not valid YAML: {reason}") from None
        if document.root is None:
            return {}
        if not isinstance(document.root.data, dict):
            raise self._unreadable("has no `key: value` lines at its top level", 1)
        for duplicate in document.duplicates:
            text = f"{duplicate.key} is a duplicate (first in line {duplicate.first_line})"
            self.problems.append(
                FileProblem(self.shown_as, duplicate.line, f"{text}; keep one of them")
            )
        self._note_lines(document.root, ())
        return document.root.plain()

    def _unreadable(self, text: str, line: int | None = None) -> ConfigError:
        return ConfigError([FileProblem(self.shown_as, line, text)])

    def _note_lines(self, value: YamlValue, location: Location) -> None:
        self.lines[location] = value.line
        if isinstance(value.data, dict):
            for key, inner in value.data.items():
                self._note_lines(inner, (*location, key))
        elif isinstance(value.data, list):
            for index, inner in enumerate(value.data):
                self._note_lines(inner, (*location, index))


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
