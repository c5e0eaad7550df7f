"""A detector as text and back, to the last digit, with a version that follows its shape."""

from __future__ import annotations

import hashlib
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from monitor.judge.drift.settings import DriftSettings

T = TypeVar("T")


class Codec(Generic[T]):
    """Writes and reads one type made of plain data: dataclasses, named tuples, lists, dicts."""

    def __init__(self, of: type[T]) -> None:
        # In a list, because pydantic takes no configuration for a dataclass of its own. Standard
        # JSON has no infinity; these constants are written and read back.
        self._adapter: TypeAdapter[list[T]] = TypeAdapter(
            list[of],  # type: ignore[valid-type]
            config=ConfigDict(ser_json_inf_nan="constants"),
        )
        # If the same fields change their meaning, the type's module raises its STATE_VERSION.
        meaning = getattr(sys.modules[of.__module__], "STATE_VERSION", 0)
        lines = "\n".join(sorted(set(shape(of))))
        self.version = f"{meaning}-{hashlib.sha256(lines.encode()).hexdigest()[:12]}"

    def version_under(self, settings: DriftSettings) -> str:
        """Returns the version with the length of a block, the unit of the stored figures."""
        return f"{self.version}/{settings.block_s:g}"

    def dump(self, value: T) -> str:
        """Returns a value as JSON."""
        return self._adapter.dump_json([value]).decode()

    def load(self, text: str) -> T:
        """Returns a value from JSON. Raises ValueError if it is not a state of this version."""
        try:
            return self._adapter.validate_json(text)[0]
        except (ValidationError, IndexError) as error:
            raise ValueError(
                f"it is not a state of version {self.version}: {str(error).splitlines()[0]}"
            ) from None


_MADE: dict[type, Codec[Any]] = {}


def codec(of: type[T]) -> Codec[T]:
    """Returns the codec of a type. Making one takes a quarter of a second; it is kept."""
    if of not in _MADE:
        _MADE[of] = Codec(of)
    return _MADE[of]


def shape(of: Any, seen: set[Any] | None = None) -> Iterator[str]:
    """Yields every field of a type and of the types in it as a line."""
    seen = set() if seen is None else seen
    for inner in typing.get_args(of):
        yield from shape(inner, seen)
    is_tuple = isinstance(of, type) and issubclass(of, tuple) and hasattr(of, "_fields")
    if of in seen or not (is_dataclass(of) or is_tuple):
        return
    seen.add(of)
    hints = typing.get_type_hints(of)
    written = of.__annotations__ if is_tuple else {f.name: f.type for f in fields(of)}
    for name, annotation in written.items():
        # As written in the source: the repr of a resolved type differs between versions of Python.
        yield f"{of.__qualname__}.{name}: {getattr(annotation, '__forward_arg__', annotation)}"
        yield from shape(hints[name], seen)
