"""Figures from readings of a GPU: a window for storage, and the GPU's part of a sample. Pure;
docs/units.md defines them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from math import inf
from operator import or_
from statistics import median
from typing import TypedDict, TypeVar

from monitor.model import GpuReading

N = TypeVar("N", int, float)
SLACK_NS = 100_000_000  # a counter of time this far ahead of our clock is discarded
#: Readings further apart than the sample and this time do not describe the sample.
NEAR_NS = 10 * 10**9


@dataclass(frozen=True, slots=True)
class GpuWindow:
    """One GPU over some seconds, for storage: `count` readings, the last of them at `at`. None = in
    none of them.
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
    event_reasons: int | None  # every bit that was set
    energy_j: float | None  # the last value of each counter
    throttle_thermal_ns: int | None
    throttle_power_ns: int | None
    throttle_brake_ns: int | None


class SampleGpu(TypedDict, total=False):
    """The GPU's part of a sample; empty without a GPU."""

    gpu_uuid: str | None
    gpu_temp_c: float | None
    gpu_mem_temp_c: float | None
    gpu_margin_c: float | None
    sm_clock_mhz: float | None
    mem_clock_mhz: float | None
    gpu_util: float | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    vram_used_mib: float | None
    throttle_thermal_ms: float | None
    throttle_power_ms: float | None
    throttle_brake_ms: float | None
    gpu_age_ms: float | None


def summarise(readings: Sequence[GpuReading]) -> GpuWindow:
    """One GPU's readings, in the order of time, as a window."""
    temp, clock, power, util = (
        [*_known(readings, name)] for name in ("temp_c", "sm_clock_mhz", "power_w", "util")
    )
    reasons = [r.event_reasons for r in readings if r.event_reasons is not None]
    return GpuWindow(
        uuid=readings[-1].uuid,
        at=readings[-1].at,
        count=len(readings),
        temp_c_min=min(temp, default=None),
        temp_c_median=_median(temp),
        temp_c_max=max(temp, default=None),
        sm_clock_mhz_min=min(clock, default=None),
        sm_clock_mhz_median=_median(clock),
        sm_clock_mhz_max=max(clock, default=None),
        power_w_min=min(power, default=None),
        power_w_median=_median(power),
        power_w_max=max(power, default=None),
        util_min=min(util, default=None),
        util_median=_median(util),
        util_max=max(util, default=None),
        mem_temp_c=_median(_known(readings, "mem_temp_c")),
        margin_c=_median(_known(readings, "margin_c")),
        mem_clock_mhz=_median(_known(readings, "mem_clock_mhz")),
        vram_used_mib=_median(_known(readings, "vram_used_mib")),
        power_limit_w=_median(_known(readings, "power_limit_w")),
        event_reasons=reduce(or_, reasons) if reasons else None,
        energy_j=_last(r.energy_j for r in readings),
        throttle_thermal_ns=_last(r.throttle_thermal_ns for r in readings),
        throttle_power_ns=_last(r.throttle_power_ns for r in readings),
        throttle_brake_ns=_last(r.throttle_brake_ns for r in readings),
    )


def _known(readings: Iterable[GpuReading], name: str) -> list[float]:
    return [value for reading in readings if (value := getattr(reading, name)) is not None]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _last(values: Iterable[N | None]) -> N | None:
    """The last known value of a counter."""
    known = [value for value in values if value is not None]
    return known[-1] if known else None


def sample_fields(
    before: Mapping[str, GpuReading], after: Mapping[str, GpuReading], sent_ns: int, done_ns: int
) -> SampleGpu:
    """The GPU's part of a Sample, for the worst GPU: most thermal throttling during the sample,
    then least margin, then highest temperature (an unknown value counts as harmless). No GPUs: {}.

    `before` has the last readings before `sent_ns`, `after` the first ones after `done_ns`. Instant
    values are those of `after`, or else of `before`; counters are their increase from one to the
    other.
    """
    pairs = [(before.get(uuid), after.get(uuid)) for uuid in sorted({*before, *after})]
    return max(
        (_gpu_fields(first, last, sent_ns, done_ns) for first, last in pairs),
        key=_badness,
        default=SampleGpu(),
    )


def _badness(gpu: SampleGpu) -> tuple[float, float, float]:
    margin, temp = gpu["gpu_margin_c"], gpu["gpu_temp_c"]
    return (
        gpu["throttle_thermal_ms"] or 0.0,
        -inf if margin is None else -margin,
        -inf if temp is None else temp,
    )


def _gpu_fields(
    first: GpuReading | None, last: GpuReading | None, sent_ns: int, done_ns: int
) -> SampleGpu:
    shown = last or first
    if shown is None:
        return {}
    if first and last and last.monotonic_ns - first.monotonic_ns > done_ns - sent_ns + NEAR_NS:
        first = None
    return SampleGpu(
        gpu_uuid=shown.uuid,
        gpu_temp_c=shown.temp_c,
        gpu_mem_temp_c=shown.mem_temp_c,
        gpu_margin_c=shown.margin_c,
        sm_clock_mhz=shown.sm_clock_mhz,
        mem_clock_mhz=shown.mem_clock_mhz,
        gpu_util=shown.util,
        power_w=shown.power_w,
        power_limit_w=shown.power_limit_w,
        energy_j=_growth(first, last, "energy_j"),
        vram_used_mib=shown.vram_used_mib,
        throttle_thermal_ms=_throttled_ms(first, last, "throttle_thermal_ns", counters=2),
        throttle_power_ms=_throttled_ms(first, last, "throttle_power_ns"),
        throttle_brake_ms=_throttled_ms(first, last, "throttle_brake_ns"),
        gpu_age_ms=abs(shown.monotonic_ns - done_ns) / 1e6,
    )


def _growth(first: GpuReading | None, last: GpuReading | None, counter: str) -> float | None:
    """The increase of a counter; None where it fell, as after a reload of the driver."""
    start, end = getattr(first, counter, None), getattr(last, counter, None)
    return end - start if start is not None and end is not None and end >= start else None


def _throttled_ms(
    first: GpuReading | None, last: GpuReading | None, counter: str, counters: int = 1
) -> float | None:
    """The time throttled, at most the time that has passed. None where a counter ran faster than
    the clock; the thermal one is a sum of two (software and hardware slowdown), which run at the
    same time on the hottest GPUs.
    """
    growth_ns = _growth(first, last, counter)
    if first is None or last is None or growth_ns is None:
        return None
    passed_ns = last.monotonic_ns - first.monotonic_ns
    return min(growth_ns, passed_ns) / 1e6 if growth_ns <= counters * passed_ns + SLACK_NS else None
