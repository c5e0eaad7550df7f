"""Faults applied to a real trace: the thermal model of a GB10 with worse cooling, or with a limited
clock.

Two poles: T = inlet + a + b, a' = (P·R1 - a)/t1, b' = (P·R2·m - b)/t2, with the factor m of the
thermal resistance (1: unchanged). Only the differences to the real trace are computed: more heat
from m and, when the clock falls, less power. The governor lowers the clock above the maximum
temperature and raises it below; above the slowdown temperature the hardware halves it. Constants:
fits on the same traces (t2 = 67 s), the measured loss of 4.5 MHz per degree above 62 °C, and a
decode rate that depends on the clock for 20 % of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monitor.model import GpuPoint

R1, T1_S, R2, T2_S = 0.15, 5.0, 0.52, 67.0
MAX_C, SLOWDOWN_C, BINS_MHZ_PER_C, BINS_FROM_C = 94.0, 96.0, 4.5, 62.0
STEP_MHZ, GOVERNOR_S, LEAST_MHZ = 13.0, 0.5, 208.0
P0_W, CLOCK_MHZ, POWER_EXPONENT, DECODE_SHARE = 20.0, 2509.0, 2.0, 0.20
SW_THERMAL, HW_SLOWDOWN, HW_THERMAL = 0x20, 0x8, 0x40
BUSY = 0.5


@dataclass(slots=True)
class Gpu:
    """The state of the model from second to second."""

    die_c: float = 0.0  # above the real trace
    sink_c: float = 0.0
    lowered_mhz: float = 0.0
    halved: bool = False
    thermal_ns: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """The changed points, and the loss of decode rate at each, as a share."""

    points: list[GpuPoint]
    decode_loss: list[float]


def changed(
    points: Sequence[GpuPoint],
    cooling: Callable[[float], float] = lambda _: 1.0,
    limit_mhz: Callable[[float], float] = lambda _: 1e9,
    counters: bool = True,
) -> Changed:
    """Applies a factor on the thermal resistance and a limit on the clock, both by the seconds
    since the first point. `counters` False: without throttle counters and event reasons, as in the
    traces.
    """
    gpu, found, losses = Gpu(), list[GpuPoint](), list[float]()
    before_us = points[0].at_us
    for point in points:
        passed_s = min(600, round((point.at_us - before_us) / 1e6))
        since_s, before_us = (point.at_us - points[0].at_us) / 1e6, point.at_us
        clock, power_w, reasons = _reading(gpu, point, limit_mhz(since_s))
        for _ in range(passed_s):
            _second(gpu, point, power_w, cooling(since_s))
            clock, power_w, reasons = _reading(gpu, point, limit_mhz(since_s))
            gpu.thermal_ns += 1_000_000_000 if reasons & SW_THERMAL and _busy(point) else 0
        temp_c = round((point.temp_c or 0.0) + gpu.die_c + gpu.sink_c)
        new = point._replace(
            temp_c=float(temp_c), margin_c=MAX_C - temp_c, sm_clock_mhz=clock, power_w=power_w
        )
        if counters:
            new = new._replace(
                event_reasons=reasons,
                throttle_thermal_ns=gpu.thermal_ns,
                throttle_power_ns=0,
                throttle_brake_ns=0,
            )
        found.append(new)
        losses.append(_decode_loss(point.sm_clock_mhz or CLOCK_MHZ, clock))
    return Changed(found, losses)


def _busy(point: GpuPoint) -> bool:
    return (point.util or 0.0) >= BUSY


def _reading(gpu: Gpu, point: GpuPoint, limit_mhz: float) -> tuple[float, float, int]:
    """Returns clock, power and event reasons."""
    real_mhz, real_w, real_c = (
        point.sm_clock_mhz or CLOCK_MHZ,
        point.power_w or 0.0,
        point.temp_c or 0.0,
    )
    if not _busy(point):
        return real_mhz, real_w, 0x1
    temp_c = real_c + gpu.die_c + gpu.sink_c
    bins = BINS_MHZ_PER_C * (max(0.0, temp_c - BINS_FROM_C) - max(0.0, real_c - BINS_FROM_C))
    clock = min(real_mhz - bins - gpu.lowered_mhz, limit_mhz)
    clock = max(LEAST_MHZ, clock / 2 if gpu.halved else clock)
    working_w = max(0.0, real_w - P0_W)
    power_w = real_w - working_w + working_w * (clock / real_mhz) ** POWER_EXPONENT
    reasons = (SW_THERMAL if gpu.lowered_mhz > 0 else 0) | (
        HW_SLOWDOWN | HW_THERMAL if gpu.halved else 0
    )
    return clock, power_w, reasons


def _second(gpu: Gpu, point: GpuPoint, power_w: float, cooling: float) -> None:
    real_w = point.power_w or 0.0
    gpu.die_c += ((power_w - real_w) * R1 - gpu.die_c) / T1_S
    gpu.sink_c += ((power_w * cooling - real_w) * R2 - gpu.sink_c) / T2_S
    temp_c = (point.temp_c or 0.0) + gpu.die_c + gpu.sink_c
    steps = 1.0 / GOVERNOR_S
    if temp_c > MAX_C:
        gpu.lowered_mhz = min(
            CLOCK_MHZ - LEAST_MHZ, gpu.lowered_mhz + steps * STEP_MHZ * (1.0 + temp_c - MAX_C)
        )
    elif temp_c < MAX_C - 2.0:
        gpu.lowered_mhz = max(0.0, gpu.lowered_mhz - steps * STEP_MHZ / 4)
    gpu.halved = temp_c >= SLOWDOWN_C or (gpu.halved and temp_c >= SLOWDOWN_C - 5.0)


def _decode_loss(real_mhz: float, clock: float) -> float:
    """The loss of decode rate, with rate = 1 / ((1 - share) + share · f0/f)."""
    before, now = (
        1.0 / (1.0 - DECODE_SHARE + DECODE_SHARE * CLOCK_MHZ / mhz) for mhz in (real_mhz, clock)
    )
    return 1.0 - now / before
