"""Integer UTC microseconds in the tables and points, aware datetimes everywhere else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(at: datetime) -> int:
    """Returns the microseconds since 1970, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_us(us: int) -> datetime:
    """Returns the moment, in UTC."""
    return _EPOCH + timedelta(microseconds=us)
