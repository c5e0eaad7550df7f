"""Expected clock of one GPU at a temperature and power, learned from its own busy minutes.

Clock steps that a GPU loses per degree (GB10: 3 to 6 MHz per °C without any reason bit) and the
clock that heavy work leaves are part of the baseline. Clocks of identical GPUs differ (8 % on
average across clusters, arXiv 2208.11035), so there is one model per GPU.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.gpu.interval import Interval
from monitor.judge.drift.stats.regression import FadingRegression

MEMORY_MIN = 7 * 24 * 60.0  # busy minutes
ARMED_MIN = 60  # busy minutes learned, before it is used
# of the clock: a GPU that always ran at one clock has no spread, and 0.25 % is one step of most
# governors
SD_MIN_SHARE = 0.0025
WELL_KNOWN_MIN = 600  # from this many on, one minute in four is enough
# busy minutes at one power before the model is used there, and how many it remembers
BAND_MIN, BAND_MEMORY = 20, 2000
# of the highest power: work at this power may be limited by a limit that cannot be read (GB10)
NEAR_TOP = 0.8
POWER_STEP = math.log(1.08)  # width of a band of power
# the most that a GPU loses per degree without a reason (GB10, 3 to 6), beyond the temperatures
# that were learned
LOSS_MHZ_PER_C = 6.0


class ClockDeficit(NamedTuple):
    """How far a clock is below the expected one."""

    expected_mhz: float
    share: float  # of the expected clock; below 0: faster
    sds: float  # the same in standard deviations of this GPU's clock


@dataclass(slots=True)
class BandResiduals:
    """Residuals of the regression in one band of power: mean and variance, in MHz."""

    minutes: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def learn(self, error: float) -> None:
        """Processes one minute; at first a plain mean, later a fading one."""
        self.minutes += 1
        share = 1.0 / min(self.minutes, BAND_MEMORY)
        off = error - self.mean
        self.mean += share * off
        self.variance = (1.0 - share) * (self.variance + share * off * off)


@dataclass(slots=True)
class ClockModel:
    """One GPU's busy SM clock against temperature and power: a line, and the residuals in each band
    of power.

    A line alone is not enough: near its power limit, stated or not, a GPU leaves very different
    clocks to different work (GB10 at 85 to 95 W: 2240 to 2460 MHz, without a reason bit), far from
    it nearly the same to all.
    """

    line: FadingRegression = field(default_factory=lambda: FadingRegression(MEMORY_MIN))
    bands: dict[str, BandResiduals] = field(default_factory=dict)  # by band of power
    known: list[int] = field(default_factory=list)  # the bands that were learned well, in order
    temp_c: list[float] = field(default_factory=list)  # lowest and highest learned
    minutes: int = 0  # busy ones that were learned from
    top_mhz: float = 0.0  # highest busy clock that was learned
    top_power_w: float = 0.0  # highest busy minute that was learned

    @property
    def armed(self) -> bool:
        """Whether enough was learned."""
        return self.minutes >= ARMED_MIN

    def learn(self, minute: Interval) -> None:
        """Processes a busy minute."""
        temp_c, power_w, clock_mhz = minute.temp_c, minute.power_w, minute.sm_clock_mhz
        if not minute.busy or clock_mhz is None or temp_c is None or power_w is None:
            return
        self.minutes += 1
        if self.minutes > WELL_KNOWN_MIN and self.minutes % 4:
            return
        predicted = self.line.predict([temp_c, power_w])
        if predicted is not None:
            self._learn_band(power_band(power_w), clock_mhz - predicted)
        self.line.learn([temp_c, power_w], clock_mhz)
        self.top_power_w = max(self.top_power_w, power_w)
        low, high = self.temp_c or (temp_c, temp_c)
        self.temp_c = [min(low, temp_c), max(high, temp_c)]
        self.top_mhz = max(self.top_mhz, clock_mhz)

    def _learn_band(self, number: int, error: float) -> None:
        band = self.bands.setdefault(str(number), BandResiduals())
        band.learn(error)
        if band.minutes == BAND_MIN:
            insort(self.known, number)

    def deficit(self, minute: Interval) -> ClockDeficit | None:
        """Deficit of one busy minute; None where it is unknown: too little learned, more power than
        ever, or so much that a limit which the GPU does not report may be what leaves it this
        clock.

        Below the learned powers the nearest band is taken: a capped GPU draws less than ever, and
        that must not excuse its clock.
        """
        temp_c, power_w, clock_mhz = minute.temp_c, minute.power_w, minute.sm_clock_mhz
        if not self.armed or not minute.busy or clock_mhz is None:
            return None
        if temp_c is None or power_w is None:
            return None
        band, near_w = self._nearest(power_w)
        low_c, high_c = self.temp_c
        expected = self.line.predict([min(max(temp_c, low_c), high_c), near_w])
        limited = minute.power_limit_w is None and power_w >= NEAR_TOP * self.top_power_w
        if band is None or expected is None or limited:
            return None
        expected = min(expected + band.mean, self.top_mhz)
        expected -= LOSS_MHZ_PER_C * max(0.0, temp_c - high_c)
        if expected <= 0:
            return None
        lost = expected - clock_mhz
        sd = max(math.sqrt(band.variance), SD_MIN_SHARE * expected)
        return ClockDeficit(expected, lost / expected, lost / sd)

    def _nearest(self, power_w: float) -> tuple[BandResiduals | None, float]:
        """The residuals at that power, or in the next higher band that was learned well, and which
        power that is.
        """
        here = power_band(power_w)
        place = bisect_left(self.known, here)
        if place == len(self.known):
            return None, power_w
        number = self.known[place]
        return self.bands[str(number)], power_w if number == here else power_of(number)


def power_band(power_w: float) -> int:
    """Number of a power in bands of 8 %."""
    return round(math.log(max(power_w, 1.0)) / POWER_STEP)


def power_of(number: int) -> float:
    """The middle of a band."""
    return math.exp(number * POWER_STEP)
