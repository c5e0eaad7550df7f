"""Cron lines: which are valid, and how often they run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

RUNS = 3  # the interval is a mean over this many runs; `no_samples` waits for as many


def check_cron(cron: str) -> None:
    """Raises ValueError for a line that is not valid, or that other tools read differently."""
    if len(cron.split()) != 5:
        raise ValueError(
            "give cron five fields: minute, hour, day, month, weekday; for example */5 * * * *"
        )
    # cron counts weekdays from Sunday, APScheduler from Monday
    if any(c.isdigit() for c in cron.split()[4]):
        raise ValueError(
            f"is {cron!r}; write weekdays as names, for example mon-fri: their numbers mean "
            "different days in different tools"
        )
    try:
        _trigger(cron)
    except ValueError as error:
        raise ValueError(f"is {cron!r}: {error}") from None


def cron_interval(cron: str, since: datetime) -> timedelta | None:
    """The mean time between the next runs after `since`, the first measured from there: longer over
    a weekend than on a Tuesday. None for a line that never runs again (30 February).
    """
    trigger = _trigger(cron)
    last = since
    for _ in range(RUNS):
        fire: datetime | None = trigger.get_next_fire_time(last, last + timedelta(microseconds=1))
        if fire is None:
            return None
        last = fire
    return (last - since) / RUNS


def intervals_of(
    schedule: Mapping[str, float | str | None], since: Mapping[str, datetime], otherwise: datetime
) -> dict[str, timedelta]:
    """The interval of each probe: `schedule` has seconds, or a cron line, whose runs are those
    after the probe's last run (`since`), or after `otherwise`. A probe with an unknown schedule is
    left out.
    """
    found: dict[str, timedelta] = {}
    for name, every in schedule.items():
        interval = (
            cron_interval(every, since.get(name, otherwise))
            if isinstance(every, str)
            else _seconds(every)
        )
        if interval is not None:
            found[name] = interval
    return found


def _trigger(cron: str) -> CronTrigger:
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415 - 40 ms; few probes use cron

    return CronTrigger.from_crontab(cron, timezone=UTC)


def _seconds(every: float | None) -> timedelta | None:
    return None if every is None else timedelta(seconds=every)
