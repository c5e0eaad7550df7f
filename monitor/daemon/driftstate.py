"""A detector as text and back, to the last digit, and a version that changes by itself when its
shape does.
"""

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
        # Inside a list, since a dataclass may be given no settings here. JSON knows no infinity;
        # this kind does, and gives it back.
        self._adapter: TypeAdapter[list[T]] = TypeAdapter(
            list[of],  # type: ignore[valid-type]
            config=ConfigDict(ser_json_inf_nan="constants"),
        )
        # The same fields may begin to mean something else: then the type's module raises its
        # STATE_VERSION by hand.
        meaning = getattr(sys.modules[of.__module__], "STATE_VERSION", 0)
        self.version = f"{meaning}-{hashlib.sha256(chr(10).join(sorted(set(shape(of)))).encode()).hexdigest()[:12]}"

    def version_under(self, settings: DriftSettings) -> str:
        """The version with the length of the blocks, which all that is stored is counted in."""
        return f"{self.version}/{settings.block_s:g}"

    def dump(self, value: T) -> str:
        """As JSON."""
        return self._adapter.dump_json([value]).decode()

    def load(self, text: str) -> T:
        """From JSON. Raises ValueError for what is no state of this version."""
        try:
            return self._adapter.validate_json(text)[0]
        except (ValidationError, IndexError) as error:
            raise ValueError(
                f"it is no state of version {self.version}: {str(error).splitlines()[0]}"
            ) from None


_MADE: dict[type, Codec[Any]] = {}


def codec(of: type[T]) -> Codec[T]:
    """The codec of a type, made once: that takes a quarter of a second."""
    if of not in _MADE:
        _MADE[of] = Codec(of)
    return _MADE[of]


def shape(of: Any, seen: set[Any] | None = None) -> Iterator[str]:
    """Every field of a type and of the types in it, each as a line."""
    seen = set() if seen is None else seen
    for inner in typing.get_args(of):
        yield from shape(inner, seen)
    is_tuple = isinstance(of, type) and issubclass(of, tuple) and hasattr(of, "_fields")
    if of in seen or not (is_dataclass(of) or is_tuple):
        return
    seen.add(of)
    hints = typing.get_type_hints(of)
    written = of.__annotations__ if is_tuple else {f.name: f.type for f in fields(of)}
    for name, told in written.items():
        # As it stands in the source: how a resolved type is printed differs between versions of
        # Python.
        yield f"{of.__qualname__}.{name}: {getattr(told, '__forward_arg__', told)}"
        yield from shape(hints[name], seen)
