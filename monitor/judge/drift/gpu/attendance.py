"""Which GPUs of a target are still there: one that is not polled for a day while others are was
taken out, and what it showed is over.

Silence of all of them says nothing: then nobody looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US

ROLL_US = 10 * MINUTE_US  # how often it is looked which GPUs are missing
GONE_US = DAY_US  # after so much time in which others were polled a GPU is gone


@dataclass(slots=True)
class Attendance:
    """When one GPU was seen."""

    polled_us: int | None = None
    heard_us: int = 0  # when it was last seen, or missed
    absent_us: int = 0  # for so long others were polled since it was seen
    roll_us: int = 0  # when it is next looked which others are missing

    def note(self, at_us: int, polled: bool) -> None:
        """It is there."""
        self.heard_us, self.absent_us = at_us, 0
        if polled:
            self.polled_us = at_us

    def miss(self, at_us: int) -> bool:
        """Another one was polled at that time. Whether this one is gone."""
        passed_us = at_us - self.heard_us
        if not 0 <= passed_us < ROLL_US:
            self.absent_us += min(
                max(passed_us, 0), HOUR_US
            )  # in a longer pause perhaps nobody was polled
            self.heard_us = at_us
        return self.absent_us >= GONE_US


class Attended(Protocol):
    """A GPU, as far as the roll is called."""

    @property
    def attendance(self) -> Attendance:
        """When it was seen."""

    def leave(self) -> None:
        """It is gone."""


def call_roll(
    gpus: Mapping[str, Attended], present: Attendance, at_us: int, forget_us: int
) -> list[str]:
    """One GPU is there: what that says about the others. The names of those to forget: others were
    polled for so long, and they were not.

    Only polls count: they show all GPUs at once, while a sample names the worst alone.
    """
    present.roll_us = at_us + ROLL_US
    if present.polled_us is None or not 0 <= at_us - present.polled_us <= HOUR_US:
        return []
    gone = [
        name
        for name, gpu in gpus.items()
        if gpu.attendance is not present and gpu.attendance.miss(present.polled_us)
    ]
    for name in gone:
        gpus[name].leave()
    return [name for name in gone if gpus[name].attendance.absent_us >= forget_us]
