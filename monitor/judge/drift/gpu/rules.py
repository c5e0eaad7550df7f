"""The rules by which a GPU's minute counts towards a condition, with their thresholds and where
those come from.
"""

from __future__ import annotations

from monitor.judge.drift.gpu.baseline import GpuBaseline
from monitor.judge.drift.gpu.clock_model import ClockDeficit
from monitor.judge.drift.gpu.interval import Interval
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.drift.stats.hysteresis import HysteresisRule

#: Condition -> how many minutes open and close it. The figures come from simulated cooling losses
#: and 356 healthy GB10 traces (docs/detection.md).
RULES = {
    "thermal_duty": HysteresisRule(need=3, of=5, clear=15),
    "hw_thermal": HysteresisRule(need=1, of=1, clear=5),  # opened by two polls (conditions.py)
    "brake": HysteresisRule(need=2, of=3, clear=5),
    "margin": HysteresisRule(need=4, of=5, clear=10),
    "clock_deficit": HysteresisRule(need=9, of=10, clear=10),
    "clock_fall": HysteresisRule(need=3, of=4, clear=10),  # a large deficit needs no ten minutes
    "power_limit": HysteresisRule(need=2, of=2, clear=3),
    "power_duty": HysteresisRule(need=8, of=10, clear=15),
    "thermal_residual": HysteresisRule(need=5, of=6, clear=15),
    "memory_residual": HysteresisRule(need=5, of=6, clear=15),
}
#: A low clock is the consequence of one of these.
EXPLAINING = ("brake", "hw_thermal", "thermal_duty", "power_limit", "power_duty")
#: While one of these is open, the baseline is not learned. A small margin does not count: a GPU may
#: run near its limit for ever.
FREEZING = tuple(name for name in RULES if name != "margin")
# where there is no counter: share of readings with a thermal bit, since a sampled bit proves less
BITS_SHARE = 0.5
POWER_POINTS = 0.15  # share of time at the power cap, above the baseline
BRAKE_DUTY = 0.05
MARGIN_CLEAR_C = 2.0  # above the margin at which it opens
RESIDUAL_SDS = 2.0
RESIDUAL_MARGIN_C = 10.0  # a residual with a larger margin has no effect,
# ten below the lowest slowdown threshold of the GPUs without a margin (RTX 3090 83, 4090 84, A100
# 85)
HOT_C = 75.0
LARGE_RESIDUAL = 3.0  # unless it is this many times larger than the limit
MEMORY_FROM_C = 80.0  # no memory throttles below (V100, the lowest known, at 85 °C)
# of the expected clock; 3 % cost about 1.5 % of decode rate, and less has no practical effect
DEFICIT_SHARE, FALL_SHARE = 0.03, 0.15
LIMIT_SHARE = 0.02  # of the limit: some boards round it
AT_LIMIT = 0.97  # of the power limit: there the clock is what this work leaves at that power


def judge_minute(
    minute: Interval, baseline: GpuBaseline, deficit: ClockDeficit | None, settings: DriftSettings
) -> dict[str, bool | None]:
    """Each rule about one minute: True, False, or None where it is unknown."""
    slow = None if deficit is None or _is_at_limit(minute, baseline) else deficit
    unlikely = slow is not None and slow.sds > settings.clock_sds
    return {
        "thermal_duty": _throttled(minute, baseline, settings),
        "brake": None if minute.brake_duty is None else minute.brake_duty > BRAKE_DUTY,
        "margin": _has_small_margin(minute, settings),
        "clock_deficit": None if slow is None else unlikely and slow.share > DEFICIT_SHARE,
        "clock_fall": None if slow is None else unlikely and slow.share > FALL_SHARE,
        "power_limit": _is_limit_lowered(minute, baseline),
        "power_duty": _capped(minute, baseline, deficit),
        "thermal_residual": _unexplained_heat(minute, baseline, settings),
        "memory_residual": _unexplained_memory_heat(minute, baseline, settings),
    }


def is_unremarkable(minute: Interval, baseline: GpuBaseline, settings: DriftSettings) -> bool:
    """Whether no rule can be True of a minute with samples only: true of most of them, and years of
    them are to be replayed.
    """
    clock, margin_c = minute.sm_clock_mhz, minute.margin_c
    return (
        not minute.thermal_duty
        and not minute.brake_duty
        and settings.memory_max_c is None
        and minute.power_limit_w == baseline.power_limit_w
        and (margin_c is None or margin_c >= settings.margin_c)
        and (clock is None or clock >= baseline.clock.top_mhz * (1.0 - DEFICIT_SHARE))
    )


def _throttled(minute: Interval, baseline: GpuBaseline, settings: DriftSettings) -> bool | None:
    if minute.thermal_duty is not None:
        limit = baseline.thermal_duty_p99() + settings.thermal_duty_points / 100.0
        return minute.thermal_duty > limit
    return None if minute.thermal_bits is None else minute.thermal_bits >= BITS_SHARE


def _has_small_margin(minute: Interval, settings: DriftSettings) -> bool | None:
    margin_c = least_margin_c(minute, settings)
    if margin_c is None or not minute.busy:
        return None
    if margin_c < settings.margin_c:
        return True
    return False if margin_c >= settings.margin_c + MARGIN_CLEAR_C else None


def least_margin_c(minute: Interval, settings: DriftSettings) -> float | None:
    """Degrees to the nearest slowdown threshold: the one that the GPU reports, and the memory's
    where it is configured.
    """
    max_c, margin_c = settings.memory_max_c, minute.margin_c
    if max_c is None or minute.mem_temp_c is None:
        return margin_c
    memory_c = max_c - minute.mem_temp_c
    return memory_c if margin_c is None else min(margin_c, memory_c)


def _is_at_limit(minute: Interval, baseline: GpuBaseline) -> bool:
    """Whether the power limit, unchanged, sets the clock: then it is what this work leaves at that
    power.
    """
    if minute.power_w is None or minute.power_limit_w is None:
        return False
    at_limit = minute.power_w >= AT_LIMIT * minute.power_limit_w
    return at_limit and not _is_limit_lowered(minute, baseline)


def _is_limit_lowered(minute: Interval, baseline: GpuBaseline) -> bool | None:
    if minute.power_limit_w is None or baseline.power_limit_w is None:
        return None
    return minute.power_limit_w < baseline.power_limit_w * (1.0 - LIMIT_SHARE)


def _capped(minute: Interval, baseline: GpuBaseline, deficit: ClockDeficit | None) -> bool | None:
    """Whether it spends more time at the power cap than its baseline, with a lower clock: the limit
    cannot always be read (GB10, virtual GPUs).
    """
    p99 = baseline.power_duty_p99()
    if minute.power_duty is None or p99 is None or deficit is None:
        return None
    return minute.power_duty > p99 + POWER_POINTS and deficit.share > DEFICIT_SHARE


def _unexplained_heat(
    minute: Interval, baseline: GpuBaseline, settings: DriftSettings
) -> bool | None:
    if minute.residual_c is None:
        return None
    limit_c = residual_limit_c(baseline, settings)
    if minute.residual_c <= limit_c / 2:
        return False
    if minute.residual_c > LARGE_RESIDUAL * limit_c:
        return True
    return None if minute.residual_c <= limit_c else is_near_limit(minute, baseline, settings)


def residual_limit_c(baseline: GpuBaseline, settings: DriftSettings) -> float:
    """The smallest relevant residual, given this GPU's own scatter."""
    return max(settings.residual_c, RESIDUAL_SDS * (baseline.thermal.core.sd or 0.0))


def is_near_limit(minute: Interval, baseline: GpuBaseline, settings: DriftSettings) -> bool:
    """Within ten degrees of the slowdown threshold; for a GPU that does not report its margin
    (GeForce): hotter than ever, and hot.
    """
    margin_c = least_margin_c(minute, settings)
    if margin_c is not None:
        return margin_c < RESIDUAL_MARGIN_C
    return minute.temp_c is not None and minute.temp_c > max(baseline.hottest_c or 0.0, HOT_C)


def _unexplained_memory_heat(
    minute: Interval, baseline: GpuBaseline, settings: DriftSettings
) -> bool | None:
    """Whether memory is hotter than power explains, and more so than the core: what heats both is
    attributed to the core.

    A core that is too hot is kept at its limit by its governor, and draws less and less power,
    which the lines were not learned at: then the memory must also be further above the core than in
    the baseline.
    """
    if minute.mem_residual_c is None or minute.mem_temp_c is None:
        return None
    limit_c = max(settings.residual_c, RESIDUAL_SDS * (baseline.thermal.memory.sd or 0.0))
    core_c = minute.residual_c or 0.0
    own_c = minute.mem_residual_c - max(0.0, core_c)
    over_c = baseline.mem_over_core_c
    core_is_hot = core_c > residual_limit_c(baseline, settings)
    if core_is_hot and minute.temp_c is not None and over_c is not None:
        own_c = min(own_c, minute.mem_temp_c - minute.temp_c - over_c)
    return own_c > limit_c and minute.mem_temp_c >= MEMORY_FROM_C
