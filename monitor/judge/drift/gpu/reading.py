"""A reading of a GPU: one poll of the driver, or the values recorded with a sample."""

from __future__ import annotations

from typing import NamedTuple

from monitor.judge.drift.settings import SECOND_US
from monitor.model import CanaryPoint, GpuPoint

BUSY_UTIL = 0.5  # share of time with a kernel running, from which a reading counts as busy
# the same as a share of this GPU's highest power, where it does not report utilisation
BUSY_POWER_SHARE = 0.5
# readings further apart say nothing about the time between them (exporters are read every 30 to 60
# s)
GAP_US = 150 * SECOND_US
# readings around a sample lie at most this much further apart than it took
# (monitor/measure/gpu/figures.py)
POLL_MS = 10_000.0
# after a shorter answer an idle GPU's clocks may still be ramping up, which takes some tenths of a
# second
RAMP_MS = 500.0


class Reading(NamedTuple):
    """One reading. Counters of a poll run since the driver was loaded; duties are shares of a
    sample's time.
    """

    at_us: int
    # with a sample: the GPU has just been working, whatever its utilisation over the last second
    sampled: bool
    temp_c: float | None = None
    mem_temp_c: float | None = None
    margin_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    util: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    vram_used_mib: float | None = None
    event_reasons: int | None = None
    energy_j: float | None = None
    throttle_thermal_ns: int | None = None
    throttle_power_ns: int | None = None
    throttle_brake_ns: int | None = None
    thermal_duty: float | None = None
    power_duty: float | None = None
    brake_duty: float | None = None

    def is_busy(self, top_power_w: float) -> bool:
        """Whether the GPU is at work. `top_power_w`: the highest power it was seen at, which tells
        where utilisation is not reported (MIG).
        """
        if self.util is not None:
            return self.util >= BUSY_UTIL
        return self.power_w is not None and self.power_w >= BUSY_POWER_SHARE * top_power_w


def reading_of_poll(p: GpuPoint) -> Reading:
    """A poll of the driver. The fields after time and UUID are those of a reading, in the same
    order: there are millions of polls, and naming each field would double the cost of one.
    """
    return Reading(p.at_us, False, *p[2:])


def reading_of_sample(p: CanaryPoint, top_power_w: float = 0.0) -> Reading:
    """The GPU right after an answer, and how long it was throttled meanwhile.

    For an answer of unknown length that is no share of time, and its clock counts only where the
    GPU itself shows that it was at work.
    """
    took_ms = (p.known_us - p.at_us) / 1000 or _length_ms(p)
    awake = took_ms >= RAMP_MS if took_ms else _was_at_work(p, top_power_w)
    return Reading(
        at_us=p.known_us,
        sampled=True,
        temp_c=p.gpu_temp_c,
        mem_temp_c=p.gpu_mem_temp_c,
        margin_c=p.gpu_margin_c,
        sm_clock_mhz=p.sm_clock_mhz if awake else None,
        mem_clock_mhz=p.mem_clock_mhz if awake else None,
        util=p.gpu_util,
        power_w=p.power_w,
        power_limit_w=p.power_limit_w,
        vram_used_mib=p.vram_used_mib,
        thermal_duty=_duty(p.throttle_thermal_ms, took_ms, 2),
        power_duty=_duty(p.throttle_power_ms, took_ms, 1),
        brake_duty=_duty(p.throttle_brake_ms, took_ms, 1),
    )


def has_gpu_reading(p: CanaryPoint) -> bool:
    """Whether a sample carries any value that a GPU can be judged by."""
    if p.sm_clock_mhz is not None or p.gpu_temp_c is not None:
        return True
    readings = (
        p.gpu_margin_c,
        p.power_limit_w,
        p.throttle_thermal_ms,
        p.throttle_power_ms,
        p.throttle_brake_ms,
    )
    return any(reading is not None for reading in readings)


def _length_ms(p: CanaryPoint) -> float:
    """Length of an answer without a duration, by its first token and its rate. 0: unknown."""
    if p.ttft_ms is None or p.completion_tokens is None or not p.decode_tok_s:
        return 0.0
    return p.ttft_ms + 1000.0 * max(0.0, p.completion_tokens - 1.0) / p.decode_tok_s


def _was_at_work(p: CanaryPoint, top_power_w: float) -> bool:
    """By utilisation, or else by power; where neither is reported, by whether tokens came."""
    if p.gpu_util is not None:
        return p.gpu_util >= BUSY_UTIL
    if p.power_w is not None:
        return p.power_w >= BUSY_POWER_SHARE * top_power_w
    return p.decode_tok_s is not None


def _duty(throttle_ms: float | None, took_ms: float, counters: int) -> float | None:
    """Share of a sample's time; unknown where more was counted than can have passed between the
    readings around it. `counters`: how many counters were added up in it (thermal: by software and
    by hardware, both may run).
    """
    if throttle_ms is None or took_ms <= 0 or throttle_ms > counters * (took_ms + POLL_MS):
        return None
    return min(1.0, throttle_ms / took_ms) if throttle_ms else 0.0
