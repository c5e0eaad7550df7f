"""Sets fields of dataclasses by name, checked by their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from monitor.errors import USAGE, UserError

# Types of settings with their limits. Limits at both ends keep arithmetic finite.
Count = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**6)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]
Celsius = Annotated[float, Field(ge=-60, le=120)]  # of the intake air of a GPU
Factor = Annotated[float, Field(gt=0, le=1000)]
PerSecond = Annotated[float, Field(ge=0, le=1000)]  # of requests, each of which is simulated
# clients or requests that arrive at once; work grows with the square of it
ClientCount = Annotated[int, Field(ge=0, le=2000)]
HttpStatus = Annotated[int, Field(ge=100, le=599)]


class SettingError(UserError):
    """An unknown setting, or a value that does not fit."""

    exit_code = USAGE


def current_name(name: str) -> str:
    """Returns the present name of a setting: `gpu.…` was `card.…` in scenarios of earlier
    versions.
    """
    return f"gpu.{name.removeprefix('card.')}" if name.startswith("card.") else name


def settable(thing: object) -> Mapping[str, TypeAdapter[Any]]:
    """The settable fields of a dataclass, or of its class, each with the adapter that checks
    its value. Private fields are excluded.
    """
    return _settable(thing if isinstance(thing, type) else type(thing))


@cache
def _settable(kind: type[Any]) -> Mapping[str, TypeAdapter[Any]]:
    if not is_dataclass(kind):
        return {}
    hints = get_type_hints(kind, include_extras=True)
    plain = (f.name for f in fields(kind) if not f.name.startswith("_"))
    return {name: TypeAdapter(hints[name]) for name in plain if _is_plain(hints[name])}


def _is_plain(hint: Any) -> bool:
    """Whether a field holds numbers, texts or lists of them, and not other objects."""
    return not (isinstance(hint, type) and hint not in {bool, int, float, str})


def assign(thing: object, name: str, value: Any, shown: str) -> None:
    """Sets one field; `shown` is its name as the user gave it. Raises SettingError."""
    setattr(thing, name, checked(thing, name, value, shown))


def checked(thing: object, name: str, value: Any, shown: str) -> Any:
    """The value as the field accepts it. Raises SettingError."""
    try:
        return settable(thing)[name].validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise SettingError(
            f"{shown} cannot be {value!r}: {problem[0].lower()}{problem[1:]}"
        ) from None


def shown(thing: object) -> dict[str, Any]:
    """All settings by name, as JSON values."""
    return {name: getattr(thing, name) for name in settable(thing)}
