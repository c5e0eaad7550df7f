"""From looks at a GPU to figures: a window for storage, and the GPU's part of a sample. Pure;
docs/units.md tells what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import reduce
from math import inf
from operator import or_
from statistics import median
from typing import Any

from monitor.model import GpuReading

SLACK_NS = (
    100_000_000  # how far a counter of time may get ahead of our clock before it is disbelieved
)
NEAR_NS = (
    10 * 10**9
)  # readings this much further apart than the sample took say nothing about the sample


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """One GPU over some seconds, for storage: `count` readings, the last of them at `at`. None =
    no reading had it.
    """

    uuid: str
    at: datetime
    count: int
    temp_c_min: float | None
    temp_c_median: float | None
    temp_c_max: float | None
    sm_clock_mhz_min: float | None
    sm_clock_mhz_median: float | None
    sm_clock_mhz_max: float | None
    power_w_min: float | None
    power_w_median: float | None
    power_w_max: float | None
    util_min: float | None
    util_median: float | None
    util_max: float | None
    mem_temp_c: float | None  # this one and the next four are medians
    margin_c: float | None
    mem_clock_mhz: float | None
    vram_used_mib: float | None
    power_limit_w: float | None
    event_reasons: int | None  # every bit seen
    energy_j: float | None  # the last value of each counter
    throttle_thermal_ns: int | None
    throttle_power_ns: int | None
    throttle_brake_ns: int | None


def summarise(readings: Sequence[GpuReading]) -> GpuWindow:
    """One GPU's readings, in the order of time, as a window."""
    seen = {
        f.name: [v for r in readings if (v := getattr(r, f.name)) is not None]
        for f in fields(GpuReading)
    }
    values: dict[str, Any] = {
        "event_reasons": reduce(or_, seen["event_reasons"]) if seen["event_reasons"] else None
    }
    for name in ("temp_c", "sm_clock_mhz", "power_w", "util"):
        values |= {
            f"{name}_{of.__name__}": of(seen[name]) if seen[name] else None
            for of in (min, median, max)
        }
    for name in ("mem_temp_c", "margin_c", "mem_clock_mhz", "vram_used_mib", "power_limit_w"):
        values[name] = median(seen[name]) if seen[name] else None
    for name in ("energy_j", "throttle_thermal_ns", "throttle_power_ns", "throttle_brake_ns"):
        values[name] = seen[name][-1] if seen[name] else None
    return GpuWindow(uuid=readings[-1].uuid, at=readings[-1].at, count=len(readings), **values)


def sample_fields(
    before: Mapping[str, GpuReading], after: Mapping[str, GpuReading], sent_ns: int, done_ns: int
) -> dict[str, Any]:
    """The GPU's part of a Sample, of the worst GPU: most thermal throttling during the sample,
    then least margin, then highest temperature (what is unknown counts as harmless). No GPUs: {}.

    `before` has the last readings before `sent_ns`, `after` the first ones after `done_ns`. Instant
    values are those of `after`, or else of `before`; counters are what they grew by from one to the
    other.
    """
    pairs = [(before.get(uuid), after.get(uuid)) for uuid in sorted({*before, *after})]
    return max(
        (_gpu_fields(first, last, sent_ns, done_ns) for first, last in pairs),
        key=_badness,
        default={},
    )


def _badness(gpu: Mapping[str, Any]) -> tuple[float, float, float]:
    margin, temp = gpu["gpu_margin_c"], gpu["gpu_temp_c"]
    return (
        gpu["throttle_thermal_ms"] or 0.0,
        -inf if margin is None else -margin,
        -inf if temp is None else temp,
    )


def _gpu_fields(
    first: GpuReading | None, last: GpuReading | None, sent_ns: int, done_ns: int
) -> dict[str, Any]:
    shown: Any = last or first
    if first and last and last.monotonic_ns - first.monotonic_ns > done_ns - sent_ns + NEAR_NS:
        first = None
    return {
        "gpu_uuid": shown.uuid,
        "gpu_temp_c": shown.temp_c,
        "gpu_mem_temp_c": shown.mem_temp_c,
        "gpu_margin_c": shown.margin_c,
        "sm_clock_mhz": shown.sm_clock_mhz,
        "mem_clock_mhz": shown.mem_clock_mhz,
        "gpu_util": shown.util,
        "power_w": shown.power_w,
        "power_limit_w": shown.power_limit_w,
        "energy_j": _growth(first, last, "energy_j"),
        "vram_used_mib": shown.vram_used_mib,
        "throttle_thermal_ms": _throttled_ms(first, last, "throttle_thermal_ns", counters=2),
        "throttle_power_ms": _throttled_ms(first, last, "throttle_power_ns"),
        "throttle_brake_ms": _throttled_ms(first, last, "throttle_brake_ns"),
        "gpu_age_ms": abs(shown.monotonic_ns - done_ns) / 1e6,
    }


def _growth(first: GpuReading | None, last: GpuReading | None, counter: str) -> float | None:
    """None where the counter ran backwards, as after a reload of the driver."""
    start, end = getattr(first, counter, None), getattr(last, counter, None)
    return end - start if start is not None and end is not None and end >= start else None


def _throttled_ms(
    first: GpuReading | None, last: GpuReading | None, counter: str, counters: int = 1
) -> float | None:
    """Time throttled, never more than has passed. None where a counter outran the clock; the
    thermal one is a sum of two (by software and by hardware), which run at the same time when a
    GPU is at its hottest.
    """
    growth_ns = _growth(first, last, counter)
    if first is None or last is None or growth_ns is None:
        return None
    passed_ns = last.monotonic_ns - first.monotonic_ns
    return min(growth_ns, passed_ns) / 1e6 if growth_ns <= counters * passed_ns + SLACK_NS else None
