"""Cron lines: which are understood, and how often they run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

RUNS = 3  # over how many of its runs an interval is taken; silence is told after so many


def check_cron(cron: str) -> None:
    """Raises ValueError with the mend for a line that is none, or that another tool would read
    otherwise.
    """
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415 - only where a probe uses cron

    if len(cron.split()) != 5:
        raise ValueError(
            "give cron five fields: minute, hour, day, month, weekday; for example */5 * * * *"
        )
    if any(
        c.isdigit() for c in cron.split()[4]
    ):  # cron counts weekdays from Sunday, APScheduler from Monday
        raise ValueError(
            f"is {cron!r}; name the weekdays, for example mon-fri: their numbers mean "
            "different days to different tools"
        )
    try:
        CronTrigger.from_crontab(cron, timezone="UTC")
    except ValueError as error:
        raise ValueError(f"is {cron!r}: {error}") from None


def cron_interval(cron: str, since: datetime) -> timedelta | None:
    """The mean time between the next runs after `since`, the first counted from there: over a
    weekend that is longer than on a Tuesday. None for a line that never runs again (30
    February).
    """
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415 - only where a probe uses cron

    trigger = CronTrigger.from_crontab(cron, timezone=UTC)
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
    """How often each probe should measure: `schedule` has seconds, or a cron line, which is asked
    for the runs after the probe's last one (`since`), or after `otherwise`. A probe whose schedule
    is not known is left out.
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


def _seconds(every: float | None) -> timedelta | None:
    return None if every is None else timedelta(seconds=every)
