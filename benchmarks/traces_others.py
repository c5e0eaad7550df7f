"""Smaller real traces: what a V100's memory, a 3090 at its limit and sweeps of power caps are taken
for, and how good predictions are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import traces_data
from traces_data import Capped, Peak

from monitor.judge.drift.evidence import GpuWarning
from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.elasticity import Elasticity, Predicted
from monitor.judge.drift.gpu.rules import RULES
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.model import CanaryPoint, GpuPoint

V100_MEMORY_C = 85.0  # where its HBM throttles
USUAL_H, AFTER_MIN = 4, 15
WAVER = 0.02  # a GPU at work does not draw exactly the same


#: Sign -> what makes a minute count for it, and how loud it is.
RULE_TEXTS = {
    "thermal_duty": (
        "throttled for heat for 2 % more of the time than in 99 of 100 of its minutes",
        "warning",
    ),
    "hw_thermal": (
        "the driver shows a hardware thermal slowdown (two polls in a row open it)",
        "page",
    ),
    "brake": (
        "braked from outside for over 5 % of the time, or two polls in a row show it",
        "page",
    ),
    "margin": ("busy, and under 5 °C from the limit that the GPU itself tells", "warning"),
    "clock_deficit": (
        (
            "busy clock over 4 standard deviations and 3 % below what this GPU does at this "
            "temperature and power"
        ),
        "warning",
    ),
    "clock_fall": (
        (
            "the same, by over 15 %; called hidden_limit where power is low too, it is cool and no "
            "reason is given"
        ),
        "warning",
    ),
    "power_limit": (
        "the limit in force is lower than it was",
        "warning, info where it binds nothing",
    ),
    "power_duty": (
        "at the power cap for 15 % more of the time than usual, and the clock lower for it",
        "warning",
    ),
    "thermal_residual": (
        "4 °C (and two standard deviations) hotter than power explains, under 10 °C of room",
        "warning, info with room",
    ),
    "memory_residual": (
        "the same of the memory, beyond what heats the core too, at 80 °C or more",
        "warning",
    ),
}


def rule_lines() -> list[str]:
    """The table of signs, from the rules themselves."""
    found = [
        (
            "What a GPU is watched for, minute by minute. What is learnt is learnt half an hour "
            "late, and not while a sign is open."
        ),
        "",
        "| sign | a minute counts when | minutes to open | good minutes to close | severity |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rule in RULES.items():
        text, severity = RULE_TEXTS[name]
        found.append(f"| {name} | {text} | {rule.need} of {rule.of} | {rule.clear} | {severity} |")
    return found


def lines(settings: DriftSettings) -> list[str]:
    """The tables."""
    return [
        *_memory(replace(settings, memory_max_c=V100_MEMORY_C)),
        "",
        *_limits(settings),
        "",
        *_sweeps(settings),
    ]


def _play(points: Sequence[GpuPoint], settings: DriftSettings) -> list[GpuWarning]:
    """Everything that was ever said, each sign once, as it was first said."""
    channel, found = GpuChannel(points[0].uuid), dict[str, GpuWarning]()
    for point in points:
        channel.gpu(point, settings)
        channel.advance(point.at_us, settings)
        for warning in channel.warnings(settings) if channel.open else ():
            found.setdefault(warning.sign, warning)
    return list(found.values())


def _held(point: GpuPoint, minutes: int) -> list[GpuPoint]:
    """A look, repeated every ten seconds."""
    return [
        point._replace(at_us=point.at_us + step * 10 * SECOND_US) for step in range(1, minutes * 6)
    ]


# -- memory


def _memory(settings: DriftSettings) -> list[str]:
    found = [
        (
            "**Memory heat, two V100** (`detector.memory_max_c: 85`, since a V100 tells no "
            "margin). The peaks of six runs, held for 15"
        ),
        "minutes, and 75 seconds of decoding whose last look is held likewise.",
        "",
        "| run | core | memory | least SM clock | said |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, points in traces_data.v100().items():
        last = points[-1]
        said = _said(_play([*points, *_held(last, AFTER_MIN)], settings))
        found.append(
            f"| {name} decodes | {last.temp_c:.0f} °C | {last.mem_temp_c:.0f} °C | – | {said} |"
        )
    for peak in traces_data.v100_peaks():
        said = _said(_play(_peak_points(peak), settings))
        run = f"{peak.work} at {peak.cap_w:.0f} W"
        found.append(
            f"| {run} | {peak.temp_c:.0f} °C | {peak.mem_temp_c:.0f} °C | "
            f"{peak.min_clock_mhz:.0f} MHz | {said} |"
        )
    return found


def _peak_points(peak: Peak) -> list[GpuPoint]:
    point = GpuPoint(
        0,
        "V100",
        peak.temp_c,
        mem_temp_c=peak.mem_temp_c,
        sm_clock_mhz=peak.min_clock_mhz,
        util=1.0,
        power_w=min(peak.power_w, peak.cap_w),
        power_limit_w=peak.cap_w,
    )
    return [point, *_held(point, AFTER_MIN)]


def _said(warnings: Sequence[GpuWarning]) -> str:
    return ", ".join(f"{w.sign}: {w.evidence['cause']}" for w in warnings) or "nothing"


# -- power


def _limits(settings: DriftSettings) -> list[str]:
    found = [
        (
            "**At the power limit, two RTX 3090** limited to 230 W, once a second: working at an "
            "unchanged limit is no finding."
        ),
        "",
        "| GPU and run | looks | busy looks within 10 % of the limit | said |",
        "| --- | --- | --- | --- |",
    ]
    for name, points in traces_data.rtx3090().items():
        busy = [p for p in points if (p.util or 0) >= 0.5]
        near = sum((p.power_w or 0) >= 0.9 * (p.power_limit_w or 1e9) for p in busy)
        found.append(
            f"| {name} | {len(points)} | {near} of {len(busy)} | {_said(_play(points, settings))} |"
        )
    return found


def _sweeps(settings: DriftSettings) -> list[str]:
    found = [
        (
            "**Power caps and what they cost.** Each sweep as the story of one GPU: four hours at "
            "its highest cap, then a lower one."
        ),
        (
            "*Named*: the lowered limit was reported as power_cap. *Default*: measured speeds "
            "inside the predicted interval before"
        ),
        (
            "anything was learnt; *learnt*: the same after canaries at every second setting were "
            "seen, with the mean error of the prediction."
        ),
        "",
        (
            "| sweep | lower caps | named | default: inside | learnt: inside | mean error, points "
            "| share learnt |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, sweep in traces_data.power_caps().items():
        found.append(_sweep(name, sweep, settings))
    return found


def _sweep(name: str, sweep: Sequence[Capped], settings: DriftSettings) -> str:
    usual, lower = sweep[0], sweep[1:]
    named = [
        capped
        for capped in lower
        if "power_limit: power_cap" in _said(_play(_capped_points(usual, capped), settings))
    ]
    prefill, elasticity = "prefill" in name, _learnt(sweep[::2], settings)
    fresh = [
        capped
        for capped in lower
        if capped not in sweep[::2] and capped.clock_mhz < 0.99 * usual.clock_mhz
    ]
    real = [_change(usual, capped, prefill) for capped in fresh]
    default, learnt = (
        [_of(model.predict(usual.clock_mhz, capped.clock_mhz), prefill) for capped in fresh]
        for model in (Elasticity(), elasticity)
    )
    slope = elasticity.prefill() if prefill else elasticity.decode()
    error = (
        f"{mean(abs(predicted[1] - was) for predicted, was in zip(learnt, real, strict=True)):.1f}"
        if fresh
        else "–"
    )
    cells = [
        name,
        len(lower),
        f"{len(named)} of {len(lower)}",
        _inside(default, real),
        _inside(learnt, real),
        error,
    ]
    return (
        f"| {' | '.join(map(str, cells))} | {slope.value:.2f} ({slope.low:.2f} to "
        f"{slope.high:.2f}) |"
    )


def _inside(predicted: Sequence[tuple[float, float, float]], real: Sequence[float]) -> str:
    return (
        f"{sum(low <= was <= high for (low, _, high), was in zip(predicted, real, strict=True))} "
        f"of {len(real)}"
    )


def _capped_points(usual: Capped, capped: Capped) -> list[GpuPoint]:
    """Four hours at the usual cap, then a quarter of an hour at the other."""
    found = []
    for minute in range(USUAL_H * 60 + AFTER_MIN):
        now = usual if minute < USUAL_H * 60 else capped
        waver = 1.0 + WAVER * math.sin(minute)
        found.append(
            GpuPoint(
                minute * MINUTE_US,
                "GPU",
                65.0,
                sm_clock_mhz=now.clock_mhz / waver,
                util=1.0,
                power_w=min(now.power_w * waver, now.cap_w),
                power_limit_w=now.cap_w,
                event_reasons=0x4,
            )
        )
    return found


def _learnt(sweep: Sequence[Capped], settings: DriftSettings) -> Elasticity:
    """From ten canaries at each setting."""
    elasticity = Elasticity()
    for number in range(10 * len(sweep)):
        capped = sweep[number % len(sweep)]
        at_us = number * MINUTE_US
        ttft_ms = 1e6 / capped.speed
        elasticity.canary(
            CanaryPoint(
                at_us,
                at_us + 3 * SECOND_US,
                probe="sweep",
                e2e_ms=3000.0,
                ttft_ms=max(ttft_ms, 200.0 * ttft_ms / (1e6 / sweep[0].speed)),
                decode_tok_s=capped.speed,
                completion_tokens=128.0,
                prompt_tokens=2000.0,
                sm_clock_mhz=capped.clock_mhz,
            ),
            settings,
        )
    return elasticity


def _of(p: Predicted, prefill: bool) -> tuple[float, float, float]:
    return (
        (p.ttft_low_pct, p.ttft_pct, p.ttft_high_pct)
        if prefill
        else (p.decode_low_pct, p.decode_pct, p.decode_high_pct)
    )


def _change(usual: Capped, capped: Capped, prefill: bool) -> float:
    """What was measured, in per cent: decode rate, or time to first token."""
    return (
        100.0 * (usual.speed / capped.speed - 1.0)
        if prefill
        else 100.0 * (capped.speed / usual.speed - 1.0)
    )
