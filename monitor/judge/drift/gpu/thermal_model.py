"""Expected temperature of a GPU: a linear function of power, filtered as the GPU's thermal masses
filter it.

A GPU's temperature follows power with several time constants (die seconds, heat sink 20 to 90 s,
fans and case minutes; fitted on V100, H100 and GB10 traces). A few exponential filters of power, a
factor of four apart, stand for any of them; their weights are learned. The residual is what power
does not explain: dust, a fan, intake air, a neighbouring GPU. A slope of temperature by itself
proves nothing: every warm-up looks like drift (it fired on 110 to 187 of 356 healthy GB10 traces).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.gpu.clock_model import power_band
from monitor.judge.drift.gpu.reading import GAP_US, Reading
from monitor.judge.drift.settings import MINUTE_US, SECOND_US
from monitor.judge.drift.stats.regression import FadingRegression
from monitor.judge.drift.stats.robust import known_mean

TAUS_S = (15.0, 60.0, 240.0)
# three of the longest: before that a filter that began at an unknown temperature teaches nothing
SETTLE_US = 12 * MINUTE_US
# minutes: the room's temperature changes from day to day, and the model with it
MEMORY_MIN = 2 * 24 * 60.0
ARMED_MIN = 120  # minutes learned, before it is used
SUPPORT_MIN = 10.0  # minutes learned at about this power, before it is used there
MAX_W = 5000.0  # an energy counter that says more was reset, or counts in another unit


class ThermalMinute(NamedTuple):
    """Means over all polls of a minute: filtered power in watts, and temperatures."""

    filters: tuple[float, ...]
    temp_c: float | None
    mem_temp_c: float | None


@dataclass(slots=True)
class ThermalModel:
    """One GPU's temperatures against its power. Core and memory share the filters; each has its
    line.
    """

    core: FadingRegression = field(default_factory=lambda: FadingRegression(MEMORY_MIN))
    memory: FadingRegression = field(default_factory=lambda: FadingRegression(MEMORY_MIN))
    filters: list[float] = field(default_factory=list)  # watts, one for each of TAUS_S
    at_us: int | None = None  # of the last reading
    energy_j: float | None = None
    since_us: int = 0  # the filters have run without a gap since then
    power: dict[str, float] = field(default_factory=dict)  # minutes learned, by band of power

    @property
    def armed(self) -> bool:
        """Whether enough was learned."""
        return self.core.count >= ARMED_MIN

    def follow(self, polls: Sequence[Reading]) -> ThermalMinute | None:
        """Processes the polls of a minute; their means, or None where no power is known."""
        states = []
        for poll in polls:
            self.step(poll)
            if self.filters:
                states.append(self.filters)
        if not states:
            return None
        means = [round(sum(values) / len(states), 2) for values in zip(*states, strict=True)]
        return ThermalMinute(
            tuple(means),
            known_mean([poll.temp_c for poll in polls]),
            known_mean([poll.mem_temp_c for poll in polls]),
        )

    def step(self, poll: Reading) -> None:
        """Lets the filters follow one poll."""
        if poll.power_w is None:
            return
        passed_us = None if self.at_us is None else poll.at_us - self.at_us
        if passed_us is None or passed_us > GAP_US or not self.filters:
            self._begin(poll, poll.power_w)
        elif passed_us > 0:
            power_w = self._mean_power(poll, poll.power_w, passed_us)
            passed_s = passed_us / SECOND_US
            self.filters = [
                value + (power_w - value) * -math.expm1(-passed_s / tau_s)
                for value, tau_s in zip(self.filters, TAUS_S, strict=True)
            ]
        self.at_us, self.energy_j = poll.at_us, poll.energy_j

    def _begin(self, poll: Reading, power_w: float) -> None:
        """Starts the filters where they explain the present temperature: the power during a gap is
        unknown.
        """
        self.since_us = poll.at_us
        slow, start_w = sum(self.core.slopes[2:]), power_w
        if self.armed and slow > 0 and poll.temp_c is not None:
            fast = self.core.predict([power_w, *[0.0] * (len(TAUS_S) - 1)])
            start_w = min(max((poll.temp_c - (fast or 0.0)) / slow, 0.0), MAX_W)
        self.filters = [power_w, *[start_w] * (len(TAUS_S) - 1)]

    def _mean_power(self, poll: Reading, power_w: float, passed_us: int) -> float:
        """From the energy counter, which misses nothing between two polls, where there is one."""
        if poll.energy_j is None or self.energy_j is None:
            return power_w
        mean_w = (poll.energy_j - self.energy_j) / (passed_us / SECOND_US)
        return mean_w if 0.0 < mean_w < MAX_W else power_w

    def residuals(self, minute: ThermalMinute) -> tuple[float | None, float | None]:
        """Core and memory temperature less what power explains, °C; None where it is not known, or
        power is outside the learned range.
        """
        if not self.armed or not self._supported(minute.filters):
            return None, None
        core_c = self.core.predict(minute.filters)
        memory_c = None
        if self.memory.count >= ARMED_MIN:
            memory_c = self.memory.predict(minute.filters)
        return _less(minute.temp_c, core_c), _less(minute.mem_temp_c, memory_c)

    def settled(self, at_us: int) -> bool:
        """Whether the filters have run long enough to learn from."""
        return at_us - self.since_us >= SETTLE_US

    def learn(self, minute: ThermalMinute) -> None:
        """Processes one minute."""
        if minute.temp_c is None:
            return
        self.core.learn(minute.filters, minute.temp_c)
        if minute.mem_temp_c is not None:
            self.memory.learn(minute.filters, minute.mem_temp_c)
        name = str(power_band(minute.filters[-1]))
        self.power[name] = self.power.get(name, 0.0) + 1.0

    def _supported(self, filters: Sequence[float]) -> bool:
        middle = power_band(filters[-1])
        near = (self.power.get(str(band), 0.0) for band in (middle - 1, middle, middle + 1))
        return sum(near) >= SUPPORT_MIN


def _less(temp_c: float | None, expected_c: float | None) -> float | None:
    return None if temp_c is None or expected_c is None else temp_c - expected_c
