"""Ceiling and floor of a GPU's work: its busiest and its idlest readings, a quarter of an hour at a
time.

Means follow the load; ceiling and floor do not. A GPU that is never more than two thirds busy
although requests wait is kept waiting by the host; one that draws less power at its ceiling, at the
same clock, runs other kernels; one that is never idle although its server is has a neighbour
(docs/detection.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.evidence import Pair
from monitor.judge.drift.settings import DAY_US, MINUTE_US
from monitor.model import CanaryPoint, GpuPoint

QUARTER_US = 15 * MINUTE_US
KEEP_US = 2 * DAY_US  # a day before an onset, and a day after it
LEAST_READINGS = 20
BUSY_UTIL = 0.5
LEAST_BUSY = 0.2  # share of readings: with fewer busy ones there is no ceiling
TOP_SHARE = 0.99
AT_TOP = 0.95
FLOOR_SHARE = 0.05
MOST_KEPT = KEEP_US // QUARTER_US
# this many readings in a row that are this much older than the open quarter: the clock was ahead
BACK_US, BACK_READINGS = QUARTER_US, 3
LEAST_TOKENS = 64  # a reading after a shorter answer shows more idling than work

Period = tuple[int, int]  # from, until


class UtilBounds(NamedTuple):
    """Ceiling and floor of a quarter of an hour. Utilisation 0..1, watts. None: it did not work
    hard enough for a ceiling.
    """

    at_us: int
    floor: float
    util: float | None
    power_w: float | None


@dataclass(slots=True)
class BoundSeries:
    """Quarters of an hour from readings of one source. The open quarter counts as soon as it holds
    enough readings.
    """

    start_us: int | None = None
    open: list[tuple[float, float | None]] = field(default_factory=list)
    closed: list[UtilBounds] = field(default_factory=list)
    behind: int = 0  # readings in a row that are far older than the open quarter

    def take(self, at_us: int, util: float | None, power_w: float | None) -> None:
        """Processes one reading."""
        if util is None or not self._is_in_order(at_us):
            return
        if self.start_us is None:
            self.start_us = at_us
        if at_us >= self.start_us + QUARTER_US:
            self.closed += self._current()
            self.open = []
            self.start_us += (at_us - self.start_us) // QUARTER_US * QUARTER_US
            # by number: one reading dated into the future makes none of them old
            del self.closed[:-MOST_KEPT]
        self.open.append((util, power_w))

    def _is_in_order(self, at_us: int) -> bool:
        """Whether a reading can be used; goes back in time after several old ones in a row."""
        if self.start_us is None or at_us >= self.start_us - BACK_US:
            self.behind = 0
            return True
        self.behind += 1
        if self.behind < BACK_READINGS:
            return False
        self.open, self.start_us, self.behind = [], at_us, 0
        self.closed = [bounds for bounds in self.closed if bounds.at_us <= at_us]
        return True

    def _current(self) -> list[UtilBounds]:
        """The open quarter, where it holds enough readings."""
        if self.start_us is None or len(self.open) < LEAST_READINGS:
            return []
        ordered = sorted(util for util, _ in self.open)
        floor = round(ordered[int(FLOOR_SHARE * len(ordered))], 3)
        if ordered[int((1.0 - LEAST_BUSY) * len(ordered))] < BUSY_UTIL:
            return [UtilBounds(self.start_us, floor, None, None)]
        top = ordered[int(TOP_SHARE * len(ordered))]
        powers = [power for util, power in self.open if util >= AT_TOP * top and power is not None]
        power_w = round(median(powers), 1) if powers else None
        return [UtilBounds(self.start_us, floor, round(top, 3), power_w)]

    def between(self, period: Period, whole: bool) -> list[UtilBounds]:
        """The quarters of an hour that begin in [from, until); with `whole` those that also end
        there.
        """
        start_us, end_us = period[0], period[1] - (QUARTER_US if whole else 0)
        every = [*self.closed, *self._current()]
        return [bounds for bounds in every if start_us <= bounds.at_us < end_us]


@dataclass(slots=True)
class GpuCeiling:
    """Bounds of one GPU from polls; where those see no work or do not exist, from samples."""

    polls: BoundSeries = field(default_factory=BoundSeries)
    samples: BoundSeries = field(default_factory=BoundSeries)

    def gpu(self, p: GpuPoint) -> None:
        """Processes a poll."""
        self.polls.take(p.at_us, p.util, p.power_w)

    def canary(self, p: CanaryPoint) -> None:
        """Processes a sample with an answer long enough to show in the GPU's reading."""
        if p.completion_tokens is not None and p.completion_tokens >= LEAST_TOKENS:
            self.samples.take(p.known_us, p.gpu_util, p.power_w)

    def compare(self, before: Period, now: Period) -> tuple[Pair, Pair, Pair]:
        """Utilisation and power at the ceiling, and utilisation at the floor, in two periods:
        medians over quarters of an hour.
        """
        polled = [self.polls.between(before, True), self.polls.between(now, False)]
        util, power = _pair(polled, "util"), _pair(polled, "power_w")
        if util.before is None or util.now is None:
            sampled = [self.samples.between(before, True), self.samples.between(now, False)]
            util, power = _pair(sampled, "util"), _pair(sampled, "power_w")
        return util, power, _pair(polled, "floor")


def _pair(periods: Sequence[Sequence[UtilBounds]], name: str) -> Pair:
    before, now = (
        [value for bounds in period if (value := getattr(bounds, name)) is not None]
        for period in periods
    )
    return Pair(median(before) if before else None, median(now) if now else None)
