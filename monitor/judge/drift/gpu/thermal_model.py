"""How hot a GPU is for what it draws: temperature as a linear function of power, filtered as the
GPU's own masses filter it.

A GPU's heat has several time constants (die seconds, heat sink 20 to 90 s, fans and case minutes;
fitted on V100, H100 and GB10 traces). A few exponential filters of power, a factor of four apart,
stand for any of them; which of them count, and how much, is learnt. What is left, the residual, is
what power does not explain: dust, a fan, the air that comes in, another GPU beside it. A slope of
temperature by itself is worth nothing: every warm-up looks like drift (it fired on 110 to 187 of
356 healthy GB10 traces).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.judge.drift.gpu.clock_model import power_step
from monitor.judge.drift.gpu.readings import GAP_US, Look
from monitor.judge.drift.settings import MINUTE_US, SECOND_US
from monitor.judge.drift.stats.regression import Fit

TAUS_S = (15.0, 60.0, 240.0)
SETTLE_US = (
    12 * MINUTE_US
)  # three of the longest: before that a filter that began at an unknown temperature teaches nothing
MEMORY_MIN = (
    2 * 24 * 60.0
)  # minutes: the room's temperature moves from day to day, and the model with it
ARMED_MIN = 120  # minutes learnt, before it may speak
SUPPORT_MIN = 10.0  # minutes learnt at about this power, before it may speak there
MAX_W = 5000.0  # an energy counter that says more was reset, or counts in another unit


@dataclass(slots=True)
class ThermalModel:
    """One GPU's temperatures against its power. Core and memory share the filters; each has its
    line.
    """

    core: Fit = field(default_factory=lambda: Fit(MEMORY_MIN))
    memory: Fit = field(default_factory=lambda: Fit(MEMORY_MIN))
    filters: list[float] = field(default_factory=list)  # watts, one for each of TAUS_S
    at_us: int | None = None  # of the last look
    energy_j: float | None = None
    since_us: int = 0  # the filters have run without a gap since then
    power: dict[str, float] = field(default_factory=dict)  # minutes learnt, by the step of power

    @property
    def armed(self) -> bool:
        """Whether enough was learnt to speak at all."""
        return self.core.seen >= ARMED_MIN

    def step(self, look: Look) -> None:
        """Let the filters follow one look."""
        if look.power_w is None:
            return
        passed_us = None if self.at_us is None else look.at_us - self.at_us
        if passed_us is None or passed_us > GAP_US or not self.filters:
            self._begin(look, look.power_w)
        elif passed_us > 0:
            power_w, passed_s = (
                self._mean_power(look, look.power_w, passed_us),
                passed_us / SECOND_US,
            )
            self.filters = [
                value + (power_w - value) * -math.expm1(-passed_s / tau_s)
                for value, tau_s in zip(self.filters, TAUS_S, strict=True)
            ]
        self.at_us, self.energy_j = look.at_us, look.energy_j

    def _begin(self, look: Look, power_w: float) -> None:
        """After a gap nobody knows what was drawn: begin where what was learnt explains the
        temperature there is now.
        """
        self.since_us = look.at_us
        slow, start_w = sum(self.core.slopes[2:]), power_w
        if self.armed and slow > 0 and look.temp_c is not None:
            by_now = self.core.predict([power_w, *[0.0] * (len(TAUS_S) - 1)])
            start_w = min(max((look.temp_c - (by_now or 0.0)) / slow, 0.0), MAX_W)
        self.filters = [power_w, *[start_w] * (len(TAUS_S) - 1)]

    def _mean_power(self, look: Look, power_w: float, passed_us: int) -> float:
        """From the energy counter, which misses nothing between two looks, where there is one."""
        if look.energy_j is None or self.energy_j is None:
            return power_w
        drawn_w = (look.energy_j - self.energy_j) / (passed_us / SECOND_US)
        return drawn_w if 0.0 < drawn_w < MAX_W else power_w

    def residuals(
        self, filters: Sequence[float], temp_c: float | None, mem_temp_c: float | None
    ) -> tuple[float | None, float | None]:
        """Core and memory temperature less what power explains, °C; None where it is not known, or
        power is outside what was learnt.
        """
        if not self.armed or not self._supported(filters):
            return None, None
        said, mem_said = self.core.predict(filters), self.memory.predict(filters)
        return (
            None if said is None or temp_c is None else temp_c - said,
            None
            if mem_said is None or mem_temp_c is None or self.memory.seen < ARMED_MIN
            else mem_temp_c - mem_said,
        )

    def settled(self, at_us: int) -> bool:
        """Whether the filters have run long enough to teach."""
        return at_us - self.since_us >= SETTLE_US

    def learn(
        self, filters: Sequence[float], temp_c: float | None, mem_temp_c: float | None
    ) -> None:
        """Take up one minute: the mean of the filters in it, and the temperatures."""
        if temp_c is None:
            return
        self.core.learn(filters, temp_c)
        if mem_temp_c is not None:
            self.memory.learn(filters, mem_temp_c)
        name = str(power_step(filters[-1]))
        self.power[name] = self.power.get(name, 0.0) + 1.0

    def _supported(self, filters: Sequence[float]) -> bool:
        middle = power_step(filters[-1])
        return (
            sum(self.power.get(str(step), 0.0) for step in (middle - 1, middle, middle + 1))
            >= SUPPORT_MIN
        )
