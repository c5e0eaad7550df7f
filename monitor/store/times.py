"""Integer UTC microseconds in the tables, aware datetimes in the program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(at: datetime) -> int:
    """Microseconds since 1970, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_us(us: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(microseconds=us)


def maybe_us(at: datetime | None) -> int | None:
    """As `to_us`, unknown stays unknown."""
    return None if at is None else to_us(at)


def maybe_from_us(us: int | None) -> datetime | None:
    """As `from_us`, unknown stays unknown."""
    return None if us is None else from_us(us)
