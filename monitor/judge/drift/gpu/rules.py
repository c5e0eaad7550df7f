"""The rules by which a GPU's minute counts as a sign of trouble, with their thresholds and where
those come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.judge.drift.gpu.clock_model import ClockModel, Deficit
from monitor.judge.drift.gpu.readings import Heat, Stretch
from monitor.judge.drift.gpu.thermal_model import ThermalModel
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.drift.stats.hysteresis import Rule, Usual

#: Sign -> how many minutes make it. Ladder and figures: simulated cooling losses and 356 healthy
#: GB10 traces (docs/detection.md).
RULES = {
    "thermal_duty": Rule(3, 5, 15),
    "hw_thermal": Rule(1, 1, 5),  # opened by two polls, not by minutes; see heat.py
    "brake": Rule(2, 3, 5),
    "margin": Rule(4, 5, 10),
    "clock_deficit": Rule(9, 10, 10),
    "clock_fall": Rule(3, 4, 10),  # a large deficit needs no ten minutes
    "power_limit": Rule(2, 2, 3),
    "power_duty": Rule(8, 10, 15),
    "thermal_residual": Rule(5, 6, 15),
    "memory_residual": Rule(5, 6, 15),
}
#: A low clock beside one of these is its consequence.
EXPLAINING = ("brake", "hw_thermal", "thermal_duty", "power_limit", "power_duty")
#: While one of these is open, nothing is learnt as normal.
FREEZING = tuple(
    name for name in RULES if name != "margin"
)  # a GPU may run near its limit for ever, and that is its norm
# where there is no counter: share of looks with a thermal bit, since a sampled bit is worth less
BITS_SHARE = 0.5
POWER_POINTS = 0.15  # share of time at the power cap, above what is usual
BRAKE_DUTY = 0.05
MARGIN_CLEAR_C = 2.0  # above the margin at which it opens
RESIDUAL_SDS = 2.0
RESIDUAL_MARGIN_C = 10.0  # a residual with more room than this is nobody's business,
HOT_C = (
    75.0  # ten below where the first of them slow themselves down (RTX 3090 83, 4090 84, A100 85)
)
LARGE_RESIDUAL = 3.0  # unless it is so many times larger than what counts
MEMORY_FROM_C = 80.0  # no memory throttles below (V100, the lowest known, at 85 °C)
DEFICIT_SHARE, FALL_SHARE = (
    0.03,
    0.15,
)  # of the usual clock; 3 % cost a decode rate about 1.5 %, and less is nobody's business
LIMIT_SHARE = 0.02  # of the limit: some boards round it
AT_LIMIT = 0.97  # of the power limit: the clock is what this work leaves at that power
OVER_MEMORY_MIN = 1440.0  # busy minutes after which one counts 1/e
NORMAL_FROM_MIN = (
    720.0  # minutes learnt before a GPU's usual share of time is believed; until then it is 0
)


@dataclass(slots=True)
class Normal:
    """What is normal for one GPU."""

    thermal: ThermalModel = field(default_factory=ThermalModel)
    clock: ClockModel = field(default_factory=ClockModel)
    thermal_duty: Usual = field(default_factory=Usual)
    power_duty: Usual = field(default_factory=Usual)
    power_limit_w: float | None = None
    hottest_c: float | None = None
    memory_over_c: float | None = (
        None  # how much hotter than the core its memory usually is at work
    )

    def learn(self, minute: Stretch, heat: Heat | None) -> None:
        """Take up a minute that nothing was wrong in."""
        self.clock.learn(minute)
        if heat is not None:
            self.thermal.learn(*heat)
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
            before_c = over_c if self.memory_over_c is None else self.memory_over_c
            self.memory_over_c = before_c + (over_c - before_c) / OVER_MEMORY_MIN

    def usual_thermal(self) -> float:
        """The throttle time that this GPU usually stays below, as a share; 0 until there is enough
        to know better.
        """
        return (self.thermal_duty.most or 0.0) if self.thermal_duty.seen >= NORMAL_FROM_MIN else 0.0

    def usual_power(self) -> float | None:
        """Likewise at the power cap, which many healthy GPUs touch all day: unknown until it was
        learnt.
        """
        return self.power_duty.most if self.power_duty.seen >= NORMAL_FROM_MIN / 4 else None


def judge_minute(
    minute: Stretch, normal: Normal, deficit: Deficit | None, settings: DriftSettings
) -> dict[str, bool | None]:
    """What one minute says to each rule: True it is there, False it is not, None it cannot be
    told.
    """
    slow = None if deficit is None or _at_its_limit(minute, normal) else deficit
    return {
        "thermal_duty": _throttled(minute, normal, settings),
        "brake": None if minute.brake_duty is None else minute.brake_duty > BRAKE_DUTY,
        "margin": _near_limit(minute, settings),
        "clock_deficit": None
        if slow is None
        else slow.sds > settings.clock_sds and slow.share > DEFICIT_SHARE,
        "clock_fall": None
        if slow is None
        else slow.sds > settings.clock_sds and slow.share > FALL_SHARE,
        "power_limit": _lowered(minute, normal),
        "power_duty": _capped(minute, normal, deficit),
        "thermal_residual": _unexplained_heat(minute, normal, settings),
        "memory_residual": _unexplained_memory_heat(minute, normal, settings),
    }


def is_dull(minute: Stretch, normal: Normal, settings: DriftSettings) -> bool:
    """Whether no rule can say yes to a minute that only samples tell of: most of them, and years of
    them are to be replayed.
    """
    clock, margin_c = minute.sm_clock_mhz, minute.margin_c
    return (
        not minute.thermal_duty
        and not minute.brake_duty
        and settings.memory_max_c is None
        and minute.power_limit_w == normal.power_limit_w
        and (margin_c is None or margin_c >= settings.margin_c)
        and (clock is None or clock >= normal.clock.top_mhz * (1.0 - DEFICIT_SHARE))
    )


def _throttled(minute: Stretch, normal: Normal, settings: DriftSettings) -> bool | None:
    if minute.thermal_duty is not None:
        return minute.thermal_duty > normal.usual_thermal() + settings.thermal_duty_points / 100.0
    return None if minute.thermal_bits is None else minute.thermal_bits >= BITS_SHARE


def _near_limit(minute: Stretch, settings: DriftSettings) -> bool | None:
    margin_c = room(minute, settings)
    if margin_c is None or not minute.busy:
        return None
    if margin_c < settings.margin_c:
        return True
    return False if margin_c >= settings.margin_c + MARGIN_CLEAR_C else None


def room(minute: Stretch, settings: DriftSettings) -> float | None:
    """Degrees to the nearest limit: what the GPU says, and its memory's where a person told where
    that one is.
    """
    memory_c = (
        None
        if settings.memory_max_c is None or minute.mem_temp_c is None
        else settings.memory_max_c - minute.mem_temp_c
    )
    return min((value for value in (minute.margin_c, memory_c) if value is not None), default=None)


def _at_its_limit(minute: Stretch, normal: Normal) -> bool:
    """Whether the power limit, unchanged, is what holds the clock: then it is what this work leaves
    at that power.
    """
    if (
        minute.power_w is not None
        and minute.power_limit_w is not None
        and minute.power_w >= AT_LIMIT * minute.power_limit_w
    ):
        return not _lowered(minute, normal)
    return False


def _lowered(minute: Stretch, normal: Normal) -> bool | None:
    if minute.power_limit_w is None or normal.power_limit_w is None:
        return None
    return minute.power_limit_w < normal.power_limit_w * (1.0 - LIMIT_SHARE)


def _capped(minute: Stretch, normal: Normal, deficit: Deficit | None) -> bool | None:
    """More time at the power cap than usual, and a lower clock for it: the limit cannot always be
    read (GB10, virtual GPUs).
    """
    usual = normal.usual_power()
    if minute.power_duty is None or usual is None or deficit is None:
        return None
    return minute.power_duty > usual + POWER_POINTS and deficit.share > DEFICIT_SHARE


def _unexplained_heat(minute: Stretch, normal: Normal, settings: DriftSettings) -> bool | None:
    if minute.residual_c is None:
        return None
    limit_c = residual_limit_c(normal, settings)
    if minute.residual_c <= limit_c / 2:
        return False
    if minute.residual_c > LARGE_RESIDUAL * limit_c:
        return True
    return None if minute.residual_c <= limit_c else little_room(minute, normal, settings)


def residual_limit_c(normal: Normal, settings: DriftSettings) -> float:
    """How much hotter than power explains is worth a word, with this GPU's own scatter."""
    return max(settings.residual_c, RESIDUAL_SDS * (normal.thermal.core.sd or 0.0))


def little_room(minute: Stretch, normal: Normal, settings: DriftSettings) -> bool:
    """Within ten degrees of the limit; of a GPU that does not tell its margin (GeForce): hotter
    than it ever was, and hot.
    """
    margin_c = room(minute, settings)
    if margin_c is not None:
        return margin_c < RESIDUAL_MARGIN_C
    return minute.temp_c is not None and minute.temp_c > max(normal.hottest_c or 0.0, HOT_C)


def _unexplained_memory_heat(
    minute: Stretch, normal: Normal, settings: DriftSettings
) -> bool | None:
    """Memory hotter than power explains, and more so than the core: what heats both is told of the
    core.

    A core that is too hot is held at its limit by its governor, and draws less and less for it,
    which the lines were not learnt at: beside one the memory must also stand further above it than
    it usually does.
    """
    if minute.mem_residual_c is None or minute.mem_temp_c is None:
        return None
    limit_c = max(settings.residual_c, RESIDUAL_SDS * (normal.thermal.memory.sd or 0.0))
    own_c = minute.mem_residual_c - max(0.0, minute.residual_c or 0.0)
    if (
        (minute.residual_c or 0.0) > residual_limit_c(normal, settings)
        and minute.temp_c is not None
        and normal.memory_over_c is not None
    ):
        own_c = min(own_c, minute.mem_temp_c - minute.temp_c - normal.memory_over_c)
    return own_c > limit_c and minute.mem_temp_c >= MEMORY_FROM_C
