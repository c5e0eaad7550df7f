"""What is wrong with a GPU: each open condition as a warning with its cause and its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from monitor.judge.drift.gpu.baseline import GpuBaseline
from monitor.judge.drift.gpu.elasticity import Elasticity
from monitor.judge.drift.gpu.forecast import minutes_to_limit
from monitor.judge.drift.gpu.history import GpuHistory
from monitor.judge.drift.gpu.interval import Interval, merge
from monitor.judge.drift.gpu.rules import (
    EXPLAINING,
    MEMORY_FROM_C,
    is_near_limit,
    least_margin_c,
    residual_limit_c,
)
from monitor.judge.drift.settings import DriftSettings
from monitor.model import Cause, GpuFigures, GpuWarning, Predicted, Severity

NOW_MIN = 5
# every clocks event reason of nvml.h that explains a low clock
SLOWING_REASONS = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80
LOW_POWER_SHARE = 0.85  # of the baseline of busy power
HIDDEN_SHARE = 0.10  # a hidden limit takes more clock than this
COOL_C = 3.0  # a core whose residual is lower is as cool as at its baseline
# a V100 at work has its memory at 78 °C with a core of 62 °C, and throttles at 85 °C
# (bradrlaw/ai-server)
MEMORY_OVER_C, MEMORY_HOT_C = 12.0, 85.0
BINDING_SHARE = 0.97  # of a power limit: power that comes this close is limited by it
CLOCK_LOST_SHARE = 0.005  # a smaller loss of clock predicts no effect


class Scene(NamedTuple):
    """What the warnings of one GPU are made from."""

    uuid: str
    history: GpuHistory
    before: Interval  # the GPU before the first condition that is open now
    baseline: GpuBaseline
    elasticity: Elasticity
    settings: DriftSettings
    away_us: int | None = None  # when it was last seen, if that is long ago


class Judged(NamedTuple):
    """Cause, severity and figures of one condition."""

    cause: Cause
    severity: Severity
    figures: GpuFigures


def warned_of(conditions: Mapping[str, int], scene: Scene) -> list[GpuWarning]:
    """Returns every open condition (name -> since) as a warning, the most severe first."""
    names = dict(conditions)
    falls = [names.pop(name) for name in ("clock_deficit", "clock_fall") if name in names]
    if falls and not _is_explained(names, scene):
        names[_kind_of_deficit(_now(min(falls), scene), scene)] = min(falls)
    found = [_warning(name, since_us, scene) for name, since_us in names.items()]
    return sorted(found, key=lambda w: (-w.severity.rank, w.since_us))


def _is_explained(names: Mapping[str, int], scene: Scene) -> bool:
    """Whether a low clock is the consequence of another condition that is reported."""
    if any(name in names for name in (*EXPLAINING, "margin", "memory_residual")):
        return True
    since_us = names.get("thermal_residual")
    return since_us is not None and is_near_limit(
        _now(since_us, scene), scene.baseline, scene.settings
    )


def _now(since_us: int, scene: Scene) -> Interval:
    """The newest busy minutes since the condition began."""
    minutes = scene.history.last(NOW_MIN)
    recent = [
        minute for minute in scene.history.last(NOW_MIN, busy=True) if minute.at_us >= since_us
    ] or minutes[-1:]
    return merge(recent) if recent else Interval(since_us)


def _warning(name: str, since_us: int, scene: Scene) -> GpuWarning:
    now = _now(since_us, scene)
    judged = JUDGES[name](now, scene)
    figures, before_mhz = judged.figures, scene.before.sm_clock_mhz
    if before_mhz is not None and now.sm_clock_mhz is not None:
        figures = replace(figures, sm_clock_mhz=now.sm_clock_mhz, usual_clock_mhz=before_mhz)
    return GpuWarning(
        condition=name,
        uuid=scene.uuid,
        severity=judged.severity,
        since_us=since_us,
        cause=judged.cause,
        figures=figures,
        expected=_expected(now, scene),
        not_seen_since_us=scene.away_us,
    )


def _expected(now: Interval, scene: Scene) -> Predicted | None:
    """The effect on speed that the lost clock predicts."""
    before_mhz = scene.before.sm_clock_mhz
    if before_mhz is None or now.sm_clock_mhz is None:
        return None
    if now.sm_clock_mhz >= before_mhz * (1.0 - CLOCK_LOST_SHARE):
        return None
    return scene.elasticity.predict(before_mhz, now.sm_clock_mhz)


def _kind_of_deficit(now: Interval, scene: Scene) -> str:
    """`hidden_limit` if clock and power are far below their baselines on a cool GPU that gives no
    reason, else `clock_deficit`.
    """
    explained = (
        now.event_reasons is None
        or now.event_reasons & SLOWING_REASONS
        or (now.thermal_duty or 0.0) > 0.0
    )
    before_mhz, before_w = now.expected_clock_mhz, scene.before.power_w
    unknown = None in (now.sm_clock_mhz, before_mhz, now.power_w, before_w)
    if explained or unknown or _is_hot(now, scene):
        return "clock_deficit"
    slow = (now.sm_clock_mhz or 0.0) < (before_mhz or 0.0) * (1.0 - HIDDEN_SHARE)
    weak = (now.power_w or 0.0) < (before_w or 0.0) * LOW_POWER_SHARE
    return "hidden_limit" if slow and weak else "clock_deficit"


def _is_hot(now: Interval, scene: Scene) -> bool:
    """Whether it is hotter than its power explains, and near its slowdown threshold."""
    return (now.residual_c or 0.0) > residual_limit_c(
        scene.baseline, scene.settings
    ) and is_near_limit(now, scene.baseline, scene.settings)


# -- one function per condition


def _thermal_duty(now: Interval, scene: Scene) -> Judged:
    """Uses the share of readings with a thermal reason if the counter cannot be read."""
    figures = _heat_figures(now)
    if now.thermal_duty is None:
        figures = replace(figures, thermal_bits=now.thermal_bits)
    else:
        figures = replace(figures, usual_thermal_duty=scene.baseline.thermal_duty_p99())
    return Judged(heat_cause(now, scene), Severity.WARNING, figures)


def _hw_thermal(now: Interval, scene: Scene) -> Judged:
    return Judged(heat_cause(now, scene), Severity.PAGE, _heat_figures(now))


def _brake(now: Interval, scene: Scene) -> Judged:  # noqa: ARG001 - one signature for all
    return Judged(Cause.POWER_BRAKE, Severity.PAGE, _power_figures(now))


def _margin(now: Interval, scene: Scene) -> Judged:
    figures = replace(_heat_figures(now), least_margin_c=least_margin_c(now, scene.settings))
    return Judged(heat_cause(now, scene), Severity.WARNING, figures)


def _thermal_residual(now: Interval, scene: Scene) -> Judged:
    severity = (
        Severity.WARNING if is_near_limit(now, scene.baseline, scene.settings) else Severity.INFO
    )
    margins = [
        margin_c
        for minute in scene.history.last(NOW_MIN, busy=True)
        if (margin_c := least_margin_c(minute, scene.settings)) is not None
    ]
    # the hottest minute: bursts reach the threshold first
    left_min = minutes_to_limit(scene.history.minutes, min(margins, default=None))
    rounded_min = None if left_min is None else round(left_min, 1)
    figures = replace(_heat_figures(now), minutes_to_limit=rounded_min)
    return Judged(Cause.HEAT, severity, figures)


def _memory_residual(now: Interval, scene: Scene) -> Judged:  # noqa: ARG001
    return Judged(Cause.MEMORY_HEAT, Severity.WARNING, _heat_figures(now))


def _clock_deficit(now: Interval, scene: Scene) -> Judged:
    cause = Cause.HEAT if _is_hot(now, scene) else Cause.UNEXPLAINED
    return Judged(cause, Severity.WARNING, _heat_and_power_figures(now))


def _hidden_limit(now: Interval, scene: Scene) -> Judged:  # noqa: ARG001
    return Judged(Cause.HIDDEN_LIMIT, Severity.WARNING, _heat_and_power_figures(now))


def _power_limit(now: Interval, scene: Scene) -> Judged:
    """An INFO as long as the GPU does not draw what the lowered limit allows."""
    before_w, limit_w = scene.baseline.power_limit_w or 0.0, now.power_limit_w or 0.0
    binding = (
        now.power_w is None
        or now.power_w >= BINDING_SHARE * limit_w
        or (now.power_duty or 0.0) > 0.0
    )
    figures = replace(_power_figures(now), usual_power_limit_w=before_w, binding=binding)
    return Judged(Cause.POWER_CAP, Severity.WARNING if binding else Severity.INFO, figures)


def _power_duty(now: Interval, scene: Scene) -> Judged:
    figures = replace(_power_figures(now), usual_power_duty=scene.baseline.power_duty_p99() or 0.0)
    return Judged(Cause.POWER_CAP, Severity.WARNING, figures)


JUDGES: Mapping[str, Callable[[Interval, Scene], Judged]] = {
    "thermal_duty": _thermal_duty,
    "hw_thermal": _hw_thermal,
    "brake": _brake,
    "margin": _margin,
    "clock_deficit": _clock_deficit,
    "hidden_limit": _hidden_limit,
    "power_limit": _power_limit,
    "power_duty": _power_duty,
    "thermal_residual": _thermal_residual,
    "memory_residual": _memory_residual,
}


def _core_is_cool(now: Interval, baseline: GpuBaseline) -> bool:
    """Whether the core is no hotter than its power explains; before that is learned: clearly cooler
    than the hottest minute of the baseline.
    """
    if now.residual_c is not None:
        return now.residual_c < COOL_C
    return (
        now.temp_c is not None
        and baseline.hottest_c is not None
        and now.temp_c <= baseline.hottest_c - COOL_C
    )


def heat_cause(now: Interval, scene: Scene) -> Cause:
    """Returns MEMORY_HEAT if the memory is hot, or hotter than its power explains, and the core is
    not; else HEAT.

    The driver's thermal slowdown is one reason for core and memory (nvml.h,
    nvmlClocksEventReasonSwThermalSlowdown). Without a memory temperature, a core that is no hotter
    than its power explains leaves the memory.
    """
    baseline, max_c = scene.baseline, scene.settings.memory_max_c
    if now.mem_temp_c is None:
        return Cause.MEMORY_HEAT if _core_is_cool(now, baseline) else Cause.HEAT
    if now.temp_c is None or now.mem_temp_c < MEMORY_FROM_C:
        return Cause.HEAT
    near = max_c is not None and max_c - now.mem_temp_c < scene.settings.margin_c
    hot = (now.mem_residual_c or 0.0) > COOL_C or now.mem_temp_c >= MEMORY_HOT_C or near
    known_cool = now.residual_c is not None and now.residual_c < COOL_C
    cool = (
        known_cool
        or (baseline.hottest_c is not None and now.temp_c <= baseline.hottest_c)
        or now.mem_temp_c - now.temp_c >= MEMORY_OVER_C
    )
    return Cause.MEMORY_HEAT if hot and cool else Cause.HEAT


def _heat_figures(now: Interval) -> GpuFigures:
    return GpuFigures(
        temp_c=now.temp_c,
        mem_temp_c=now.mem_temp_c,
        margin_c=now.margin_c,
        residual_c=now.residual_c,
        mem_residual_c=now.mem_residual_c,
        thermal_duty=now.thermal_duty,
        util=now.util,
    )


def _power_figures(now: Interval) -> GpuFigures:
    return GpuFigures(
        power_w=now.power_w,
        power_limit_w=now.power_limit_w,
        power_duty=now.power_duty,
        brake_duty=now.brake_duty,
        util=now.util,
    )


def _heat_and_power_figures(now: Interval) -> GpuFigures:
    return replace(
        _heat_figures(now),
        power_w=now.power_w,
        power_limit_w=now.power_limit_w,
        power_duty=now.power_duty,
        brake_duty=now.brake_duty,
    )
