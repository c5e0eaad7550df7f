"""The judges on smaller real traces: the memory of a V100, an RTX 3090 at its power limit and
sweeps of power caps, with the errors of the predicted cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import traces_data
from common import table
from traces_data import Capped, Peak

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.elasticity import Elasticity
from monitor.judge.drift.gpu.rules import RULES
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.model import CanaryPoint, GpuPoint, GpuWarning, Predicted

V100_MEMORY_C = 85.0  # where its HBM throttles
BEFORE_H, AFTER_MIN = 4, 15
VARIATION = 0.02  # of the power of a busy GPU


#: Condition -> when a minute counts for it, and its severity.
RULE_TEXTS = {
    "thermal_duty": (
        "thermally throttled for 2 % more of the time than in 99 of 100 of its baseline minutes",
        "warning",
    ),
    "hw_thermal": (
        "the driver reports a hardware thermal slowdown (two polls in a row open it)",
        "page",
    ),
    "brake": (
        "external power brake for over 5 % of the time, or in two polls in a row",
        "page",
    ),
    "margin": (
        "busy, and less than 5 °C below the slowdown threshold that the GPU reports",
        "warning",
    ),
    "clock_deficit": (
        "busy clock over 4 standard deviations and 3 % below the baseline of this GPU at this "
        "temperature and power",
        "warning",
    ),
    "clock_fall": (
        "the same, by over 15 %; called hidden_limit where power is low too, the GPU is cool and "
        "no event reason is given",
        "warning",
    ),
    "power_limit": (
        "the power limit in force is lower than before",
        "warning, info where it has no effect",
    ),
    "power_duty": (
        "power-throttled for 15 % more of the time than the baseline, with a lower clock",
        "warning",
    ),
    "thermal_residual": (
        "4 °C (and two standard deviations) hotter than the power explains, with a margin under "
        "10 °C",
        "warning, info with a larger margin",
    ),
    "memory_residual": (
        "the same for the memory, beyond the excess of the core, at 80 °C or more",
        "warning",
    ),
}


def rule_lines() -> list[str]:
    """The table of conditions, from the rules themselves."""
    headings = ("condition", "a minute counts when", "to open", "to close", "severity")
    rows = []
    for name, rule in RULES.items():
        text, severity = RULE_TEXTS[name]
        rows.append((name, text, f"{rule.need} of {rule.of}", str(rule.clear), severity))
    return [
        "What is checked on a GPU, minute by minute. The baseline is learned half an hour late, "
        "and not while a warning is open. *To open*: minutes that must count, of the last ones; "
        "*to close*: good minutes in a row.",
        "",
        *table(headings, rows).splitlines(),
    ]


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
    """All warnings, each condition once, as first reported."""
    channel, found = GpuChannel(points[0].uuid), dict[str, GpuWarning]()
    for point in points:
        channel.gpu(point, settings)
        channel.advance(point.at_us, settings)
        for warning in channel.warnings(settings) if channel.conditions.open else ():
            found.setdefault(warning.condition, warning)
    return list(found.values())


def _reported(points: Sequence[GpuPoint], settings: DriftSettings) -> str:
    """The warnings on these points, for a table."""
    warnings = _play(points, settings)
    return ", ".join(f"{w.condition}: {w.cause}" for w in warnings) or "nothing"


def _repeated(point: GpuPoint, minutes: int) -> list[GpuPoint]:
    """A reading, repeated every ten seconds."""
    return [
        point._replace(at_us=point.at_us + step * 10 * SECOND_US) for step in range(1, minutes * 6)
    ]


# -- memory


def _memory(settings: DriftSettings) -> list[str]:
    rows = []
    for name, points in traces_data.v100().items():
        last = points[-1]
        reported = _reported([*points, *_repeated(last, AFTER_MIN)], settings)
        temps = (f"{last.temp_c:.0f} °C", f"{last.mem_temp_c:.0f} °C")
        rows.append((f"{name} decodes", *temps, "–", reported))
    for peak in traces_data.v100_peaks():
        reported = _reported(_peak_points(peak), settings)
        temps = (f"{peak.temp_c:.0f} °C", f"{peak.mem_temp_c:.0f} °C")
        run = f"{peak.work} at {peak.cap_w:.0f} W"
        rows.append((run, *temps, f"{peak.min_clock_mhz:.0f} MHz", reported))
    return [
        "**Memory heat, two V100** (`detector.memory_max_c: 85`, since a V100 reports no margin). "
        "The peaks of six runs, each repeated for 15 minutes, and 75 seconds of decoding whose "
        "last reading is repeated in the same way.",
        "",
        *table(("run", "core", "memory", "lowest SM clock", "reported"), rows).splitlines(),
    ]


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
    return [point, *_repeated(point, AFTER_MIN)]


# -- power


def _limits(settings: DriftSettings) -> list[str]:
    rows = []
    for name, points in traces_data.rtx3090().items():
        busy = [p for p in points if (p.util or 0) >= 0.5]
        near = sum((p.power_w or 0) >= 0.9 * (p.power_limit_w or 1e9) for p in busy)
        reported = _reported(points, settings)
        rows.append((name, str(len(points)), f"{near} of {len(busy)}", reported))
    headings = ("GPU and run", "readings", "busy readings within 10 % of the limit", "reported")
    return [
        "**At the power limit, two RTX 3090** limited to 230 W, one reading a second: work at an "
        "unchanged limit is not a finding.",
        "",
        *table(headings, rows).splitlines(),
    ]


def _sweeps(settings: DriftSettings) -> list[str]:
    rows = [_sweep(name, sweep, settings) for name, sweep in traces_data.power_caps().items()]
    headings = (
        "sweep",
        "lower caps",
        "named",
        "default: inside",
        "learned: inside",
        "mean error, points",
        "learned share",
    )
    return [
        "**Power caps and their cost.** Each sweep as the history of one GPU: four hours at its "
        "highest cap, then a lower one. *Named*: the lowered limit was reported as power_cap. "
        "*Default*: measured speeds inside the predicted interval before anything was learned; "
        "*learned*: the same after canaries at every second setting, with the mean error of the "
        "prediction.",
        "",
        *table(headings, rows).splitlines(),
    ]


def _sweep(name: str, sweep: Sequence[Capped], settings: DriftSettings) -> tuple[str, ...]:
    full, lower = sweep[0], sweep[1:]
    named = [
        capped
        for capped in lower
        if "power_limit: power_cap" in _reported(_capped_points(full, capped), settings)
    ]
    prefill, elasticity = "prefill" in name, _learned(sweep[::2])
    unseen = [
        capped
        for capped in lower
        if capped not in sweep[::2] and capped.clock_mhz < 0.99 * full.clock_mhz
    ]
    measured = [_change(full, capped, prefill) for capped in unseen]
    default, learned = (
        [_interval(model.predict(full.clock_mhz, capped.clock_mhz), prefill) for capped in unseen]
        for model in (Elasticity(), elasticity)
    )
    slope = elasticity.prefill() if prefill else elasticity.decode()
    errors = [abs(middle - was) for (_, middle, _), was in zip(learned, measured, strict=True)]
    return (
        name,
        str(len(lower)),
        f"{len(named)} of {len(lower)}",
        _inside(default, measured),
        _inside(learned, measured),
        f"{mean(errors):.1f}" if errors else "–",
        f"{slope.value:.2f} ({slope.low:.2f} to {slope.high:.2f})",
    )


def _inside(predicted: Sequence[tuple[float, float, float]], measured: Sequence[float]) -> str:
    pairs = zip(predicted, measured, strict=True)
    return f"{sum(low <= was <= high for (low, _, high), was in pairs)} of {len(measured)}"


def _capped_points(full: Capped, capped: Capped) -> list[GpuPoint]:
    """Four hours at the highest cap, then a quarter of an hour at a lower one."""
    found = []
    for minute in range(BEFORE_H * 60 + AFTER_MIN):
        now = full if minute < BEFORE_H * 60 else capped
        variation = 1.0 + VARIATION * math.sin(minute)
        found.append(
            GpuPoint(
                minute * MINUTE_US,
                "GPU",
                65.0,
                sm_clock_mhz=now.clock_mhz / variation,
                util=1.0,
                power_w=min(now.power_w * variation, now.cap_w),
                power_limit_w=now.cap_w,
                event_reasons=0x4,
            )
        )
    return found


def _learned(sweep: Sequence[Capped]) -> Elasticity:
    """The elasticity learned from ten canaries at each setting."""
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
            )
        )
    return elasticity


def _interval(p: Predicted, prefill: bool) -> tuple[float, float, float]:
    return (
        (p.ttft_low_pct, p.ttft_pct, p.ttft_high_pct)
        if prefill
        else (p.decode_low_pct, p.decode_pct, p.decode_high_pct)
    )


def _change(full: Capped, capped: Capped, prefill: bool) -> float:
    """The measured change in per cent: of the decode rate, or of the time to first token."""
    return (
        100.0 * (full.speed / capped.speed - 1.0)
        if prefill
        else 100.0 * (capped.speed / full.speed - 1.0)
    )
