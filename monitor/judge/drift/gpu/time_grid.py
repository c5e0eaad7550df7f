"""Looks at a GPU that wait until their minute is over: a grid in time that begins with the first
look, and stands a clock that was wrong.

A machine may start with its clock hours or a year ahead (a battery that is empty, local time taken
for UTC) and be set right later. What came meanwhile, and the time that was told, then lie in the
future: every look after that would be too late for its minute, for as long as the clock was ahead.
So when several looks in a row are far older than what was seen before, they are believed, and what
is dated later is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.judge.drift.gpu.readings import Look
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings

GRACE_S = 10.0  # a minute is closed so long after its end: polls come at once
BACK_US = 15 * MINUTE_US  # a look that is so much older than what was seen is not merely late
# so many of them in a row: one may be a row that was stored late, or written by another clock
BACK_LOOKS = 3


@dataclass(slots=True)
class GpuGrid:
    """The open minutes of one GPU. A minute is `card_step` long; where that is changed, the grid
    goes on in steps of the new length.
    """

    step_s: float = 0.0
    step_us: int = 0
    anchor_us: int | None = None
    closed: int = 0  # so many minutes from the anchor on are closed
    due_us: int = 0  # the next one is over then, and not before
    waiting: dict[str, list[Look]] = field(default_factory=dict)  # looks of open minutes
    dropped: int = 0  # looks that came when their minute was closed
    newest_us: int = 0  # time of the newest look
    told_us: int = 0  # the time, as it was told last
    behind: int = 0  # looks in a row that are far older than that
    ahead_us: int | None = (
        # a time that was told and has proven wrong: it may be told for as long as it lies ahead
        None
    )

    def take(self, look: Look) -> bool:
        """Keep a look until its minute is over; one of a closed minute is counted and left out."""
        if self.anchor_us is None:
            self.anchor_us = look.at_us
        index = (look.at_us - self.anchor_us) // self.step_us
        if index < self.closed:
            self.dropped += 1
            return False
        self.newest_us = max(self.newest_us, look.at_us)
        if self.ahead_us is not None and look.at_us >= self.ahead_us:
            self.ahead_us = None
        self.waiting.setdefault(str(index), []).append(look)
        return True

    def over(self, now_us: int, settings: DriftSettings) -> list[tuple[int, list[Look]]]:
        """The minutes that are over by now and had looks, each with its beginning."""
        if self.ahead_us is not None and now_us >= self.ahead_us:
            now_us = self.newest_us
        self.told_us = now_us
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
        """Go on in steps of another length, from the end of what is closed."""
        step_us = int(step_s * SECOND_US)
        if self.anchor_us is not None:
            looks, self.waiting = [look for kept in self.waiting.values() for look in kept], {}
            self.anchor_us += self.closed * self.step_us
            for look in looks:
                self.waiting.setdefault(str((look.at_us - self.anchor_us) // step_us), []).append(
                    look
                )
        self.step_s, self.step_us, self.closed, self.due_us = step_s, step_us, 0, 0

    def is_set_back(self, at_us: int) -> bool:
        """Whether a look at that time shows that the clock was ahead before."""
        if at_us >= max(self.newest_us, self.told_us) - BACK_US:
            self.behind = 0
            return False
        self.behind += 1
        return self.behind >= BACK_LOOKS

    def set_back(self, at_us: int, judged_us: int | None) -> None:
        """Believe a look that it is no later than this. `judged_us`: the beginning of the last
        minute before it that was closed.
        """
        if self.told_us > at_us + BACK_US:
            self.ahead_us = self.told_us
        self.newest_us, self.told_us, self.behind, self.due_us = at_us, at_us, 0, 0
        if self.anchor_us is None:
            return
        kept = {
            name: [look for look in looks if look.at_us <= at_us]
            for name, looks in self.waiting.items()
        }
        self.waiting = {name: looks for name, looks in kept.items() if looks}
        self.closed = min(self.closed, (at_us - self.anchor_us) // self.step_us)
        if judged_us is not None:
            self.closed = max(self.closed, (judged_us - self.anchor_us) // self.step_us + 1)
