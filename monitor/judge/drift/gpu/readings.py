"""From looks at a GPU to minutes, and from minutes to longer stretches: medians of busy looks, and
counters as shares of time.

What a GPU says at one moment is worth little (an H100 drops 300 MHz for a quarter of a second at a
prefill burst; a reason bit may flash at a change of P-state), so nothing here is concluded from one
look. A counter that grew faster than the clock, or ran backwards, is unknown (it was reset, or the
driver was loaded anew).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from monitor.judge.drift.settings import SECOND_US
from monitor.model import CanaryPoint, GpuPoint

BUSY_UTIL = 0.5  # share of time with a kernel running, from which a look counts as busy
# likewise, of the most that this GPU was seen to draw, where it does not tell its utilisation
BUSY_POWER_SHARE = 0.5
GAP_US = (
    150 * SECOND_US
    # looks further apart say nothing about the time between them (exporters are read every 30 to 60
    # s)
)
# how far a counter of time may get ahead of our clock over a minute before it is disbelieved
SLACK_US = 500_000
NS_PER_US = 1000
# readings around a sample lie at most so much further apart than it took
# (monitor/measure/gpu/figures.py)
POLL_MS = 10_000.0
# after a shorter answer an idle GPU's clocks may still be on their way up, which takes some tenths
# of a second
WAKING_MS = 500.0


class Look(NamedTuple):
    """One look at a GPU: a poll of the driver, or what stood beside a sample. Shares of time are
    of the time since the look before.
    """

    at_us: int
    # beside a sample: the GPU has just been working, whatever its utilisation over the last second
    sampled: bool
    temp_c: float | None
    mem_temp_c: float | None
    margin_c: float | None
    sm_clock_mhz: float | None
    mem_clock_mhz: float | None
    util: float | None
    power_w: float | None
    power_limit_w: float | None
    vram_used_mib: float | None
    reasons: int | None = None
    energy_j: float | None = None
    thermal_ns: int | None = None  # counters since the driver was loaded
    power_ns: int | None = None
    brake_ns: int | None = None
    thermal_share: float | None = None  # of a sample's time
    power_share: float | None = None
    brake_share: float | None = None


class Heat(NamedTuple):
    """Means over all looks of a minute: power as the filters of the thermal model have it, in
    watts, and temperatures.
    """

    filters: tuple[float, ...]
    temp_c: float | None
    mem_temp_c: float | None


class Stretch(NamedTuple):
    """A minute or more of one GPU. Temperatures, clocks and power are medians of busy looks where
    there were any, else of all.
    """

    at_us: int  # its beginning
    minutes: int = 1  # in which there was a look
    busy: int = 0  # minutes with busy looks
    temp_c: float | None = None
    mem_temp_c: float | None = None
    margin_c: float | None = None
    residual_c: float | None = None  # temperature minus what its power explains
    mem_residual_c: float | None = None
    sm_clock_mhz: float | None = None  # busy only
    usual_clock_mhz: float | None = (
        None  # what this GPU does at this temperature and power; busy only
    )
    mem_clock_mhz: float | None = None  # busy only
    util: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None  # the last one
    vram_used_mib: float | None = None  # likewise
    thermal_duty: float | None = None  # share of time, 0..1
    power_duty: float | None = None
    brake_duty: float | None = None
    reasons: int | None = None  # every bit seen while busy
    thermal_bits: float | None = None  # share of looks with a thermal bit


def look_of_gpu(p: GpuPoint) -> Look:
    """A poll of the driver."""
    return Look(
        p.at_us, False, p.temp_c, p.mem_temp_c, p.margin_c, p.sm_clock_mhz, p.mem_clock_mhz, p.util, p.power_w, p.power_limit_w,
        p.vram_used_mib, p.event_reasons, p.energy_j, p.throttle_thermal_ns, p.throttle_power_ns, p.throttle_brake_ns,
    )  # fmt: skip


def look_of_sample(p: CanaryPoint, top_power_w: float = 0.0) -> Look:
    """What stands beside a sample: the GPU right after the answer, and how long it was held back
    meanwhile. Of an answer whose length nobody knows that is no share of time, and whether the
    clock is that of a GPU at work must show in the GPU itself.
    """
    took_ms = (p.known_us - p.at_us) / 1000 or _length_ms(p)
    awake = took_ms >= WAKING_MS if took_ms else _was_at_work(p, top_power_w)
    return Look(
        p.known_us, True, p.gpu_temp_c, p.gpu_mem_temp_c, p.gpu_margin_c, p.sm_clock_mhz if awake else None,
        p.mem_clock_mhz if awake else None, p.gpu_util, p.power_w,
        p.power_limit_w, p.vram_used_mib, None, None, None, None, None, _share(p.throttle_thermal_ms, took_ms, 2),
        _share(p.throttle_power_ms, took_ms, 1), _share(p.throttle_brake_ms, took_ms, 1),
    )  # fmt: skip


def tells_of_gpu(p: CanaryPoint) -> bool:
    """Whether anything stands beside a sample that a GPU can be judged by."""
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
    """Of an answer whose duration was not told: by its first token and its rate. 0: unknown."""
    if p.ttft_ms is None or p.completion_tokens is None or not p.decode_tok_s:
        return 0.0
    return p.ttft_ms + 1000.0 * max(0.0, p.completion_tokens - 1.0) / p.decode_tok_s


def _was_at_work(p: CanaryPoint, top_power_w: float) -> bool:
    """By how busy the GPU was, or else by what it drew; where it tells neither, by whether tokens
    came.
    """
    if p.gpu_util is not None:
        return p.gpu_util >= BUSY_UTIL
    if p.power_w is not None:
        return p.power_w >= BUSY_POWER_SHARE * top_power_w
    return p.decode_tok_s is not None


def _share(held_ms: float | None, took_ms: float, counters: int) -> float | None:
    """Share of a sample's time; unknown where more was counted than can have passed between the
    readings around it. `counters`: as in _duty.
    """
    if held_ms is None or took_ms <= 0 or held_ms > counters * (took_ms + POLL_MS):
        return None
    return min(1.0, held_ms / took_ms) if held_ms else 0.0


def minute_of(
    at_us: int, looks: Sequence[Look], before: Look | None, top_power_w: float
) -> Stretch:
    """The minute that begins at `at_us`, from its looks in order. `before` is the last poll ahead
    of it, for the counters; `top_power_w` the highest power this GPU was seen at, which tells a
    busy look where utilisation is not shown (MIG).
    """
    polls = [look for look in looks if not look.sampled]
    if not polls:
        return _sampled_minute(at_us, looks)
    busy = [look for look in polls if _is_busy(look, top_power_w)] or [
        look for look in looks if look.sampled
    ]
    told = busy or looks
    chain = polls if before is None or polls[0].at_us - before.at_us > GAP_US else [before, *polls]
    return Stretch(
        at_us,
        1,
        1 if busy else 0,
        middle([look.temp_c for look in told]),
        middle([look.mem_temp_c for look in told]),
        middle([look.margin_c for look in told]),
        None,
        None,
        middle([look.sm_clock_mhz for look in busy]),
        None,
        middle([look.mem_clock_mhz for look in busy]),
        rounded(mean([look.util for look in polls]), 3),
        rounded(middle([look.power_w for look in told])),
        _last([look.power_limit_w for look in looks]),
        _last([look.vram_used_mib for look in looks]),
        _duty(chain, [look.thermal_ns for look in chain], 2),
        _duty(chain, [look.power_ns for look in chain], 1),
        _duty(chain, [look.brake_ns for look in chain], 1),
        _bits(busy),
        rounded(
            mean(
                [
                    None if look.reasons is None else float(look.reasons & THERMAL_BITS > 0)
                    for look in polls
                ]
            ),
            3,
        ),
    )


def _sampled_minute(at_us: int, looks: Sequence[Look]) -> Stretch:
    """A minute that only samples tell of."""
    if len(looks) == 1:
        look = looks[0]
        return Stretch(
            at_us, 1, 1, look.temp_c, look.mem_temp_c, look.margin_c, None, None, look.sm_clock_mhz, None, look.mem_clock_mhz, look.util,
            look.power_w, look.power_limit_w, look.vram_used_mib, look.thermal_share, look.power_share, look.brake_share,
        )  # fmt: skip
    (
        _,
        _,
        temp_c,
        mem_temp_c,
        margin_c,
        clock,
        mem_clock,
        util,
        power_w,
        limit_w,
        vram,
        _,
        _,
        _,
        _,
        _,
        *shares,
    ) = zip(*looks, strict=True)
    return Stretch(
        at_us, 1, 1, middle(temp_c), middle(mem_temp_c), middle(margin_c), None, None, middle(clock), None, middle(mem_clock), mean(util),
        middle(power_w), _last(limit_w), _last(vram), mean(shares[0]), mean(shares[1]), mean(shares[2]),
    )  # fmt: skip


#: SwThermalSlowdown and HwThermalSlowdown (nvml.h, nvmlClocksEventReason*)
THERMAL_BITS = 0x20 | 0x40


def _is_busy(look: Look, top_power_w: float) -> bool:
    if look.util is not None:
        return look.util >= BUSY_UTIL
    return look.power_w is not None and look.power_w >= BUSY_POWER_SHARE * top_power_w


def _bits(looks: Sequence[Look]) -> int | None:
    known = [look.reasons for look in looks if look.reasons is not None]
    return reduce(or_, known) if known else None


def _duty(chain: Sequence[Look], counter: Sequence[int | None], counters: int) -> float | None:
    """Share of the time in which a counter ran; `counters`: how many were added up in it (by
    software and by hardware: both may run).
    """
    known = [
        (look.at_us, value) for look, value in zip(chain, counter, strict=True) if value is not None
    ]
    if len(known) < 2:
        return None
    (start_us, first), (end_us, last) = known[0], known[-1]
    passed_us, grown_us = end_us - start_us, (last - first) / NS_PER_US
    if passed_us <= 0 or grown_us < 0 or grown_us > counters * passed_us + SLACK_US:
        return None
    return min(1.0, round(grown_us / passed_us, 4))


def middle(values: Sequence[float | None]) -> float | None:
    """The median of what is known. Written out: it is taken so often that the checks of the
    standard library's would be felt.
    """
    known = sorted([value for value in values if value is not None])
    count = len(known)
    if not count:
        return None
    return known[count // 2] if count % 2 else (known[count // 2 - 1] + known[count // 2]) / 2


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _last(values: Sequence[float | None]) -> float | None:
    """The newest that is known."""
    for value in reversed(values):
        if value is not None:
            return value
    return None


def merged(parts: Sequence[Stretch]) -> Stretch:
    """Several stretches, in order, as one, with fewer digits: it is stored for days."""
    busy = [part for part in parts if part.busy]
    every = _columns(parts)
    worked = every if len(busy) == len(parts) else _columns(busy)
    told = worked if busy else every
    reasons = [mask for mask in every.reasons if mask is not None]
    weights = every.minutes
    return Stretch(
        parts[0].at_us,
        sum(weights),
        sum(every.busy),
        _middle(told.temp_c),
        _middle(told.mem_temp_c),
        _middle(told.margin_c),
        _middle(told.residual_c),
        _middle(told.mem_residual_c),
        middle(worked.sm_clock_mhz),
        _middle(worked.usual_clock_mhz),
        middle(worked.mem_clock_mhz),
        _weighed(weights, every.util),
        _middle(told.power_w),
        _last(every.power_limit_w),
        _last(every.vram_used_mib),
        _weighed(weights, every.thermal_duty),
        _weighed(weights, every.power_duty),
        _weighed(weights, every.brake_duty),
        reduce(or_, reasons) if reasons else None,
        _weighed(weights, every.thermal_bits),
    )


def _columns(parts: Sequence[Stretch]) -> Any:
    """One sequence of values in each field, which no type can say."""
    columns: list[Any] = list(zip(*parts, strict=True)) or [()] * len(Stretch._fields)
    return Stretch(*columns)


def _middle(values: Sequence[float | None]) -> float | None:
    return rounded(middle(values))


def rounded(value: float | None, digits: int = 1) -> float | None:
    """Fewer digits, for what is stored for days."""
    return None if value is None else round(value, digits)


def _weighed(minutes: Sequence[int], values: Sequence[float | None]) -> float | None:
    known = [(weight, value) for weight, value in zip(minutes, values, strict=True) if value]
    if not known:
        return 0.0 if 0.0 in values else None
    weights = [weight for weight, value in zip(minutes, values, strict=True) if value is not None]
    return round(sum([weight * value for weight, value in known]) / sum(weights), 4)
