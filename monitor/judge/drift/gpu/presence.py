"""Which GPUs of a target are still there: one that is not polled for a day while others are was
removed, and its conditions end.

When all are silent, nothing was polled, and nothing follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US

CHECK_US = 10 * MINUTE_US  # how often absent GPUs are looked for
GONE_US = DAY_US  # a GPU is gone after this much time in which others were polled


@dataclass(slots=True)
class Presence:
    """When one GPU was seen."""

    polled_us: int | None = None
    seen_us: int = 0  # when it was last seen, or found absent
    absent_us: int = 0  # time in which others were polled since it was seen
    check_us: int = 0  # when the other GPUs are next checked

    def note(self, at_us: int, polled: bool) -> None:
        """Records that it was seen."""
        self.seen_us, self.absent_us = at_us, 0
        if polled:
            self.polled_us = at_us

    def miss(self, at_us: int) -> bool:
        """Records that another one was polled at that time; whether this one is gone."""
        passed_us = at_us - self.seen_us
        if not 0 <= passed_us < CHECK_US:
            # in a longer pause perhaps nothing was polled
            self.absent_us += min(max(passed_us, 0), HOUR_US)
            self.seen_us = at_us
        return self.absent_us >= GONE_US


class Present(Protocol):
    """A GPU with its presence."""

    @property
    def presence(self) -> Presence:
        """When it was seen."""

    def leave(self) -> None:
        """Ends its conditions: it is gone."""


def check_others(
    gpus: Mapping[str, Present], present: Presence, at_us: int, forget_us: int
) -> list[str]:
    """Ends the conditions of GPUs that are gone, given one that is there. Returns the names of
    those to forget: others were polled for this long, and they were not.

    Only polls count: they show all GPUs at once, while a sample names only the worst.
    """
    present.check_us = at_us + CHECK_US
    if present.polled_us is None or not 0 <= at_us - present.polled_us <= HOUR_US:
        return []
    gone = [
        name
        for name, gpu in gpus.items()
        if gpu.presence is not present and gpu.presence.miss(present.polled_us)
    ]
    for name in gone:
        gpus[name].leave()
    return [name for name in gone if gpus[name].presence.absent_us >= forget_us]
