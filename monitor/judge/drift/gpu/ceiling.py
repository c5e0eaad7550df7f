"""How hard a GPU works when it works hardest, and when it rests: its busiest and its idlest looks,
a quarter of an hour at a time.

Means follow the load; ceiling and floor do not. A GPU that is never more than two thirds busy
although requests wait for it is kept waiting itself (by the processor); one that draws less at its
ceiling, at the same clock, runs other kernels; one that is never idle although its server is works
for somebody else (docs/detection.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.evidence import Pair
from monitor.judge.drift.settings import DAY_US, MINUTE_US
from monitor.model import CanaryPoint, GpuPoint

STRETCH_US = 15 * MINUTE_US
KEEP_US = 2 * DAY_US  # a day before an onset, and a day of what follows
LEAST_LOOKS = 20
BUSY_UTIL = 0.5
LEAST_BUSY = 0.2  # share of looks: with fewer busy ones there was no ceiling to see
TOP_SHARE = 0.99
AT_TOP = 0.95
FLOOR_SHARE = 0.05
MOST_KEPT = KEEP_US // STRETCH_US
BACK_US, BACK_LOOKS = (
    STRETCH_US,
    3,
)  # so many looks in a row that are so much older than the stretch: the clock was ahead before
LEAST_TOKENS = 64  # a look after a short answer shows more of the rest than of the work


class Bounds(NamedTuple):
    """Ceiling and floor of a quarter of an hour. Utilisation 0..1, watts. None: it did not work
    hard enough for a ceiling.
    """

    at_us: int
    floor: float
    util: float | None
    power_w: float | None


@dataclass(slots=True)
class Looks:
    """Looks of one kind, in the order of time. What is under way counts as soon as there is enough
    of it.
    """

    start_us: int | None = None
    open: list[tuple[float, float | None]] = field(default_factory=list)
    past: list[Bounds] = field(default_factory=list)
    behind: int = 0  # looks in a row that are far older than what is under way

    def take(self, at_us: int, util: float | None, power_w: float | None) -> None:
        """Take up one look."""
        if util is None:
            return
        self.behind = (
            self.behind + 1 if self.start_us is not None and at_us < self.start_us - BACK_US else 0
        )
        if self.behind >= BACK_LOOKS:
            self.open, self.past, self.behind = (
                [],
                [bounds for bounds in self.past if bounds.at_us <= at_us],
                0,
            )
            self.start_us = at_us
        elif self.behind:
            return
        if self.start_us is None:
            self.start_us = at_us
        if at_us >= self.start_us + STRETCH_US:
            self.past += self._under_way()
            self.open = []
            self.start_us += (at_us - self.start_us) // STRETCH_US * STRETCH_US
            del self.past[
                :-MOST_KEPT
            ]  # by their number: one look that is dated into the future makes none of them old
        self.open.append((util, power_w))

    def _under_way(self) -> list[Bounds]:
        if self.start_us is None or len(self.open) < LEAST_LOOKS:
            return []
        ordered = sorted(util for util, _ in self.open)
        floor = round(ordered[int(FLOOR_SHARE * len(ordered))], 3)
        if ordered[int((1.0 - LEAST_BUSY) * len(ordered))] < BUSY_UTIL:
            return [Bounds(self.start_us, floor, None, None)]
        top = ordered[int(TOP_SHARE * len(ordered))]
        powers = [power for util, power in self.open if util >= AT_TOP * top and power is not None]
        return [
            Bounds(
                self.start_us, floor, round(top, 3), round(median(powers), 1) if powers else None
            )
        ]

    def between(self, span_us: tuple[int, int], whole: bool) -> list[Bounds]:
        """The quarters of an hour that begin in a span of time [from, to); with `whole` those that
        end in it too.
        """
        every = [*self.past, *self._under_way()]
        return [
            bounds
            for bounds in every
            if span_us[0] <= bounds.at_us < span_us[1] - (STRETCH_US if whole else 0)
        ]


@dataclass(slots=True)
class Ceiling:
    """Of one GPU, from polls; where those see no work or do not exist, from what stood beside
    samples.
    """

    polls: Looks = field(default_factory=Looks)
    samples: Looks = field(default_factory=Looks)

    def gpu(self, p: GpuPoint) -> None:
        """A poll."""
        self.polls.take(p.at_us, p.util, p.power_w)

    def canary(self, p: CanaryPoint) -> None:
        """A sample of which the answer was long enough to show in the GPU's reading."""
        if p.completion_tokens is not None and p.completion_tokens >= LEAST_TOKENS:
            self.samples.take(p.known_us, p.gpu_util, p.power_w)

    def signs(self, before_us: tuple[int, int], now_us: tuple[int, int]) -> tuple[Pair, Pair, Pair]:
        """Utilisation and power at the ceiling, and utilisation at the floor, in two spans of time:
        medians over quarters of an hour.
        """
        polled = [self.polls.between(before_us, True), self.polls.between(now_us, False)]
        sampled = [self.samples.between(before_us, True), self.samples.between(now_us, False)]
        util, power = _pair(polled, "util"), _pair(polled, "power_w")
        if util.before is None or util.now is None:
            util, power = _pair(sampled, "util"), _pair(sampled, "power_w")
        return util, power, _pair(polled, "floor")


def _pair(spans: Sequence[Sequence[Bounds]], name: str) -> Pair:
    before, now = (
        [value for bounds in span if (value := getattr(bounds, name)) is not None] for span in spans
    )
    return Pair(median(before) if before else None, median(now) if now else None)
