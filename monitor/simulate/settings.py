"""Setting fields of dataclasses by name, with the check that their types ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from monitor.errors import USAGE, Told

# Values with their limits; the types that settings are declared with. Limits at both ends keep
# arithmetic finite.
Count = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**6)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
Share = Annotated[float, Field(ge=0, le=1)]
Celsius = Annotated[float, Field(ge=-60, le=120)]  # of the air that goes into a card
Factor = Annotated[float, Field(gt=0, le=1000)]
PerSecond = Annotated[float, Field(ge=0, le=1000)]  # of requests, each of which is played
# clients or requests that come at once; work grows with the square of it
ClientCount = Annotated[int, Field(ge=0, le=2000)]
HttpStatus = Annotated[int, Field(ge=100, le=599)]


class SettingError(Told):
    """A name that cannot be set, or a value that does not fit."""

    exit_code = USAGE


def settable(thing: object) -> Mapping[str, TypeAdapter[Any]]:
    """The fields of a dataclass, or of its class, that anybody may set, each with what checks a
    value. Private ones are its own.
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
    """Numbers, texts, lists of them; not tables of constants or other objects."""
    return not (isinstance(hint, type) and hint not in {bool, int, float, str})


def assign(thing: object, name: str, value: Any, shown: str) -> None:
    """Set one field. Raises SettingError; `shown` is the name as the person gave it."""
    setattr(thing, name, checked(thing, name, value, shown))


def checked(thing: object, name: str, value: Any, shown: str) -> Any:
    """A value as the field takes it. Raises SettingError."""
    try:
        return settable(thing)[name].validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise SettingError(
            f"{shown} cannot be {value!r}: {problem[0].lower()}{problem[1:]}"
        ) from None


def shown(thing: object) -> dict[str, Any]:
    """The settings of a thing by name, as JSON values."""
    return {name: getattr(thing, name) for name in settable(thing)}
