"""Readings of a GPU that wait until their minute is over, on a grid in time that starts with the
first reading and survives a clock that was wrong.

A machine may boot with its clock hours or a year ahead (an empty battery, local time taken for UTC)
and be set right later. Readings and the time of the judge then lie in the future, and every later
reading would be too late for its minute for as long as the clock was ahead. So when several
readings in a row are far older than the newest one, they are believed, and what is dated later is
dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.judge.drift.gpu.reading import Reading
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings

GRACE_S = 10.0  # a minute is closed this long after its end: polls arrive at once
BACK_US = 15 * MINUTE_US  # a reading this much older than the newest one is not merely late
# this many of them in a row: one may be a row that was stored late, or written by another clock
BACK_READINGS = 3


@dataclass(slots=True)
class MinuteGrid:
    """The open minutes of one GPU. A minute is `card_step` long; when that is changed, the grid
    continues in steps of the new length.
    """

    step_s: float = 0.0
    step_us: int = 0
    anchor_us: int | None = None
    closed: int = 0  # minutes from the anchor on that are closed
    due_us: int = 0  # the next one is over then, and not before
    waiting: dict[str, list[Reading]] = field(default_factory=dict)  # readings of open minutes
    dropped: int = 0  # readings that arrived after their minute was closed
    newest_us: int = 0  # time of the newest reading
    now_us: int = 0  # the last time of the judge
    behind: int = 0  # readings in a row that are far older than that
    # a time of the judge that was wrong: it may be given for as long as it lies ahead
    wrong_until_us: int | None = None

    def take(self, reading: Reading) -> bool:
        """Keeps a reading until its minute is over; one of a closed minute is counted and
        dropped.
        """
        if self.anchor_us is None:
            self.anchor_us = reading.at_us
        index = (reading.at_us - self.anchor_us) // self.step_us
        if index < self.closed:
            self.dropped += 1
            return False
        self.newest_us = max(self.newest_us, reading.at_us)
        if self.wrong_until_us is not None and reading.at_us >= self.wrong_until_us:
            self.wrong_until_us = None
        self.waiting.setdefault(str(index), []).append(reading)
        return True

    def over(self, now_us: int, settings: DriftSettings) -> list[tuple[int, list[Reading]]]:
        """The minutes that are over and had readings, each with its start."""
        if self.wrong_until_us is not None and now_us >= self.wrong_until_us:
            now_us = self.newest_us
        self.now_us = now_us
        if now_us < self.due_us or self.anchor_us is None:
            return []
        grace_us = int(min(settings.grace_s, GRACE_S) * SECOND_US)
        self.closed = max(self.closed, (now_us - grace_us - self.anchor_us) // self.step_us)
        self.due_us = self.anchor_us + (self.closed + 1) * self.step_us + grace_us
        due = sorted([int(name) for name in self.waiting if int(name) < self.closed])
        return [
            (self.anchor_us + index * self.step_us, self.waiting.pop(str(index))) for index in due
        ]

    def change_step(self, step_s: float) -> None:
        """Continues in steps of another length, from the end of the closed minutes."""
        step_us = int(step_s * SECOND_US)
        if self.anchor_us is not None:
            waiting, self.waiting = self.waiting, {}
            self.anchor_us += self.closed * self.step_us
            for reading in (reading for kept in waiting.values() for reading in kept):
                name = str((reading.at_us - self.anchor_us) // step_us)
                self.waiting.setdefault(name, []).append(reading)
        self.step_s, self.step_us, self.closed, self.due_us = step_s, step_us, 0, 0

    def is_set_back(self, at_us: int) -> bool:
        """Whether a reading at that time shows that the clock was ahead before."""
        if at_us >= max(self.newest_us, self.now_us) - BACK_US:
            self.behind = 0
            return False
        self.behind += 1
        return self.behind >= BACK_READINGS

    def set_back(self, at_us: int, judged_us: int | None) -> None:
        """Goes back to this time. `judged_us`: start of the last minute before it that was
        closed.
        """
        if self.now_us > at_us + BACK_US:
            self.wrong_until_us = self.now_us
        self.newest_us, self.now_us, self.behind, self.due_us = at_us, at_us, 0, 0
        if self.anchor_us is None:
            return
        kept = {
            name: [reading for reading in readings if reading.at_us <= at_us]
            for name, readings in self.waiting.items()
        }
        self.waiting = {name: readings for name, readings in kept.items() if readings}
        self.closed = min(self.closed, (at_us - self.anchor_us) // self.step_us)
        if judged_us is not None:
            self.closed = max(self.closed, (judged_us - self.anchor_us) // self.step_us + 1)
