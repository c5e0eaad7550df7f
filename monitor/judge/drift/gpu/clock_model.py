"""What one GPU's clock is at this temperature and power, learnt from its own busy minutes.

Boost bins that a GPU loses by the degree (GB10: 3 to 6 MHz per °C without any reason bit) and the
clock that heavy work leaves are normal and are in it. Clocks of identical GPUs differ (8 % on
average across clusters, arXiv 2208.11035), so it is one model a GPU.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.gpu.readings import Stretch
from monitor.judge.drift.stats.regression import Fit

MEMORY_MIN = 7 * 24 * 60.0  # busy minutes
ARMED_MIN = 60  # busy minutes learnt, before it may speak
# of the clock: a GPU that always ran at one clock has no spread, and 0.25 % is one step of most
# governors
SD_MIN_SHARE = 0.0025
WELL_KNOWN_MIN = 600  # from so many on, one minute in four teaches enough
AROUND_MIN, AROUND_MEMORY = (
    20,
    2000,
)  # busy minutes of one power: so many to speak of it, and so many are remembered
# of the most it ever drew: work that draws this much may be held by a limit that cannot be read
# (GB10)
NEAR_TOP = 0.8
POWER_STEP = math.log(1.08)  # powers within so much of each other are about the same
# the most that a GPU loses per degree without a reason (GB10, 3 to 6), beyond the temperatures
# that were learnt
BINS_MHZ_PER_C = 6.0


class Deficit(NamedTuple):
    """How far the clock is below what is usual here."""

    usual_mhz: float
    share: float  # of the usual clock; below 0: faster
    sds: float  # the same in standard deviations of what this GPU does


@dataclass(slots=True)
class Around:
    """What busy minutes of about one power showed beside the line: mean and variance of what it
    left, in MHz.
    """

    minutes: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def learn(self, error: float) -> None:
        """Take up one minute; at first a plain mean, later one that fades."""
        self.minutes += 1
        share = 1.0 / min(self.minutes, AROUND_MEMORY)
        off = error - self.mean
        self.mean += share * off
        self.variance = (1.0 - share) * (self.variance + share * off * off)


@dataclass(slots=True)
class ClockModel:
    """One GPU's busy SM clock against temperature and power: a line, and how minutes of each power
    lie about it.

    A line alone is not enough: near its own power limit, stated or not, a GPU leaves very
    different clocks to different work (GB10 at 85 to 95 W: 2240 to 2460 MHz, without a reason bit),
    far from it nearly the same to all.
    """

    line: Fit = field(default_factory=lambda: Fit(MEMORY_MIN))
    around: dict[str, Around] = field(default_factory=dict)  # by step of power
    known: list[int] = field(default_factory=list)  # the steps that were learnt well, in order
    temp_c: list[float] = field(default_factory=list)
    minutes: int = 0  # busy ones that were learnt from
    top_mhz: float = 0.0  # highest busy clock that was learnt
    top_power_w: float = 0.0  # highest busy minute that was learnt

    @property
    def armed(self) -> bool:
        """Whether enough was learnt to speak."""
        return self.minutes >= ARMED_MIN

    def learn(self, minute: Stretch) -> None:
        """Take up a busy minute."""
        if (
            not minute.busy
            or minute.sm_clock_mhz is None
            or minute.temp_c is None
            or minute.power_w is None
        ):
            return
        self.minutes += 1
        if self.minutes > WELL_KNOWN_MIN and self.minutes % 4:
            return
        said = self.line.predict([minute.temp_c, minute.power_w])
        if said is not None:
            step = power_step(minute.power_w)
            around = self.around.setdefault(str(step), Around())
            around.learn(minute.sm_clock_mhz - said)
            if around.minutes == AROUND_MIN:
                insort(self.known, step)
        self.line.learn([minute.temp_c, minute.power_w], minute.sm_clock_mhz)
        self.top_power_w = max(self.top_power_w, minute.power_w)
        self.temp_c = _widened(self.temp_c, minute.temp_c)
        self.top_mhz = max(self.top_mhz, minute.sm_clock_mhz)

    def deficit(self, minute: Stretch) -> Deficit | None:
        """Of one busy minute; None where it cannot be told: too little learnt, more power than it
        ever drew, or so much that a limit which it does not tell may be what leaves it this clock.
        Below the powers that were learnt the nearest is taken: a GPU that is held back draws less
        than it ever did, and that must not excuse its clock.
        """
        if (
            not self.armed
            or not minute.busy
            or minute.sm_clock_mhz is None
            or minute.temp_c is None
            or minute.power_w is None
        ):
            return None
        step, power_w = self._nearest(minute.power_w)
        usual = self.line.predict(
            [min(max(minute.temp_c, self.temp_c[0]), self.temp_c[1]), power_w]
        )
        held = minute.power_limit_w is None and minute.power_w >= NEAR_TOP * self.top_power_w
        if step is None or usual is None or held:
            return None
        usual = min(usual + step.mean, self.top_mhz) - BINS_MHZ_PER_C * max(
            0.0, minute.temp_c - self.temp_c[1]
        )
        if usual <= 0:
            return None
        lost = usual - minute.sm_clock_mhz
        return Deficit(
            usual, lost / usual, lost / max(math.sqrt(step.variance), SD_MIN_SHARE * usual)
        )

    def _nearest(self, power_w: float) -> tuple[Around | None, float]:
        """What is known about that power, or about the next higher one that was learnt well, and
        which power that is.
        """
        here = power_step(power_w)
        place = bisect_left(self.known, here)
        if place == len(self.known):
            return None, power_w
        step = self.known[place]
        return self.around[str(step)], power_w if step == here else power_of(step)


def power_step(power_w: float) -> int:
    """Powers in steps of 8 %."""
    return round(math.log(max(power_w, 1.0)) / POWER_STEP)


def power_of(step: int) -> float:
    """The middle of a step."""
    return math.exp(step * POWER_STEP)


def _widened(bounds: list[float], value: float) -> list[float]:
    return [min(bounds[0], value), max(bounds[1], value)] if bounds else [value, value]
