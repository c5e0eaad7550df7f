"""A YAML file with the line of every value, so that errors can name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monitor.errors import USAGE, UserError
from monitor.user_files import YamlSyntaxError, YamlValue, duration_s, read_yaml


class ScenarioError(UserError):
    """A scenario that does not exist or cannot be played. The text names file and line."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class ScenarioValue:
    """A value and the line where it begins. `data` of a block maps keys to ScenarioValues, of a
    list holds ScenarioValues.
    """

    line: int
    data: Any

    def block(self, file: str, what: str) -> Mapping[str, ScenarioValue]:
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
        seconds = duration_s(str(self.data))
        if seconds is None:
            given = f"{what} is {self.plain()}" if self.data is not None else f"{what} is empty"
            raise problem(file, self.line, f"{given}; give it a unit, for example 90s, 10m or 2h")
        return seconds

    def plain(self) -> Any:
        """The value without lines."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        return [value.plain() for value in self.data] if isinstance(self.data, list) else self.data


def problem(file: str, line: int | None, text: str) -> ScenarioError:
    """An error at `scenarios/heat.yaml:7: …`."""
    return ScenarioError(f"{file}: {text}" if line is None else f"{file}:{line}: {text}")


def read_scenario(text: str, file: str) -> ScenarioValue:
    """The whole file. Raises ScenarioError."""
    try:
        document = read_yaml(text)
    except YamlSyntaxError as error:
        raise problem(file, error.line, f"is not valid YAML: {error.reason}") from None
    for duplicate in document.duplicates:
        text = f"{duplicate.key} is a duplicate; keep one of them"
        raise problem(file, duplicate.line, text)
    return ScenarioValue(1, {}) if document.root is None else _value(document.root)


def _value(value: YamlValue) -> ScenarioValue:
    if isinstance(value.data, dict):
        return ScenarioValue(value.line, {key: _value(inner) for key, inner in value.data.items()})
    if isinstance(value.data, list):
        return ScenarioValue(value.line, [_value(inner) for inner in value.data])
    return ScenarioValue(value.line, value.data)
