"""The baseline of one GPU: thermal and clock models, shares of throttled time, and limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.judge.drift.gpu.clock_model import ClockModel
from monitor.judge.drift.gpu.interval import Interval
from monitor.judge.drift.gpu.thermal_model import ThermalMinute, ThermalModel
from monitor.judge.drift.stats.share_histogram import ShareHistogram

DUTY_MIN = 720.0  # minutes learned before the share of throttled time is used; until then it is 0
OVER_MEMORY_MIN = 1440.0  # busy minutes after which one counts 1/e


@dataclass(slots=True)
class GpuBaseline:
    """Learned from minutes in which no condition was open."""

    thermal: ThermalModel = field(default_factory=ThermalModel)
    clock: ClockModel = field(default_factory=ClockModel)
    thermal_duty: ShareHistogram = field(default_factory=ShareHistogram)
    power_duty: ShareHistogram = field(default_factory=ShareHistogram)
    power_limit_w: float | None = None
    hottest_c: float | None = None
    mem_over_core_c: float | None = None  # how much hotter than the core its memory is at work

    def learn(self, minute: Interval, thermal: ThermalMinute | None) -> None:
        """Processes a minute."""
        self.clock.learn(minute)
        if thermal is not None:
            self.thermal.learn(thermal)
        if minute.thermal_duty is not None:
            self.thermal_duty.learn(minute.thermal_duty)
        if minute.power_duty is not None and minute.busy:
            self.power_duty.learn(minute.power_duty)
        if minute.power_limit_w is not None:
            self.power_limit_w = minute.power_limit_w
        if minute.temp_c is not None:
            self.hottest_c = max(self.hottest_c or minute.temp_c, minute.temp_c)
        if minute.busy and minute.temp_c is not None and minute.mem_temp_c is not None:
            over_c = minute.mem_temp_c - minute.temp_c
            before_c = over_c if self.mem_over_core_c is None else self.mem_over_core_c
            self.mem_over_core_c = before_c + (over_c - before_c) / OVER_MEMORY_MIN

    def thermal_duty_p99(self) -> float:
        """The share of thermally throttled time that 99 in 100 minutes stay below; 0 until enough
        was learned.
        """
        return (self.thermal_duty.p99 or 0.0) if self.thermal_duty.minutes >= DUTY_MIN else 0.0

    def power_duty_p99(self) -> float | None:
        """The same at the power cap, which many healthy GPUs reach all day: unknown until it was
        learned.
        """
        return self.power_duty.p99 if self.power_duty.minutes >= DUTY_MIN / 4 else None

    def accept(self, conditions: set[str]) -> None:
        """Discards what open conditions contradict, so that it is learned again."""
        if "power_limit" in conditions:
            self.power_limit_w = None
        if conditions & {"power_limit", "power_duty", "clock_deficit", "clock_fall"}:
            self.clock, self.power_duty = ClockModel(), ShareHistogram()
        if conditions & {"thermal_residual", "memory_residual"}:
            self.thermal = ThermalModel()
