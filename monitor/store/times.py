"""Times in the tables: `to_us` and `from_us`, also for columns that may be null."""

from __future__ import annotations

from datetime import datetime

from monitor.model.times import from_us, to_us

__all__ = ["from_us", "maybe_from_us", "maybe_us", "to_us"]


def maybe_us(at: datetime | None) -> int | None:
    """Converts as `to_us`; unknown stays unknown."""
    return None if at is None else to_us(at)


def maybe_from_us(us: int | None) -> datetime | None:
    """Converts as `from_us`; unknown stays unknown."""
    return None if us is None else from_us(us)
