"""An interval of one GPU, from a minute to days, and several merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from monitor.judge.drift.stats.robust import known_median


class Interval(NamedTuple):
    """A minute or more of one GPU. Temperatures, clocks and power are medians of busy readings
    where there were any, else of all.
    """

    at_us: int  # its start
    minutes: int = 1  # with a reading
    busy: int = 0  # minutes with busy readings
    temp_c: float | None = None
    mem_temp_c: float | None = None
    margin_c: float | None = None
    residual_c: float | None = None  # temperature minus what its power explains
    mem_residual_c: float | None = None
    sm_clock_mhz: float | None = None  # busy only
    expected_clock_mhz: float | None = None  # at this temperature and power; busy only
    mem_clock_mhz: float | None = None  # busy only
    util: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None  # the last one
    vram_used_mib: float | None = None  # the last one
    thermal_duty: float | None = None  # share of time, 0..1
    power_duty: float | None = None
    brake_duty: float | None = None
    event_reasons: int | None = None  # every bit seen while busy
    thermal_bits: float | None = None  # share of readings with a thermal bit


def merge(parts: Sequence[Interval]) -> Interval:
    """Several intervals, in order, as one, with fewer digits, since it is stored for days."""
    busy = [part for part in parts if part.busy]
    every = _columns(parts)
    at_work = every if len(busy) == len(parts) else _columns(busy)
    typical = at_work if busy else every
    minutes = [part.minutes for part in parts]
    return Interval(
        at_us=parts[0].at_us,
        minutes=sum(minutes),
        busy=sum([part.busy for part in busy]),
        temp_c=_median(typical["temp_c"]),
        mem_temp_c=_median(typical["mem_temp_c"]),
        margin_c=_median(typical["margin_c"]),
        residual_c=_median(typical["residual_c"]),
        mem_residual_c=_median(typical["mem_residual_c"]),
        sm_clock_mhz=known_median(at_work["sm_clock_mhz"]),
        expected_clock_mhz=_median(at_work["expected_clock_mhz"]),
        mem_clock_mhz=known_median(at_work["mem_clock_mhz"]),
        util=_weighted(minutes, every["util"]),
        power_w=_median(typical["power_w"]),
        power_limit_w=last_known(every["power_limit_w"]),
        vram_used_mib=last_known(every["vram_used_mib"]),
        thermal_duty=_weighted(minutes, every["thermal_duty"]),
        power_duty=_weighted(minutes, every["power_duty"]),
        brake_duty=_weighted(minutes, every["brake_duty"]),
        event_reasons=all_bits([part.event_reasons for part in parts]),
        thermal_bits=_weighted(minutes, every["thermal_bits"]),
    )


def _columns(parts: Sequence[Interval]) -> dict[str, Sequence[float | None]]:
    """The values of each field."""
    if not parts:
        return dict.fromkeys(Interval._fields, ())
    return dict(zip(Interval._fields, zip(*parts, strict=True), strict=True))


def last_known(values: Sequence[float | None]) -> float | None:
    """The newest known value."""
    for value in reversed(values):
        if value is not None:
            return value
    return None


def all_bits(masks: Sequence[int | None]) -> int | None:
    """Every bit of the known masks."""
    known = [mask for mask in masks if mask is not None]
    return reduce(or_, known) if known else None


def rounded(value: float | None, digits: int = 1) -> float | None:
    """Fewer digits, for values that are stored for days."""
    return None if value is None else round(value, digits)


def _median(values: Sequence[float | None]) -> float | None:
    return rounded(known_median(values))


def _weighted(minutes: Sequence[int], values: Sequence[float | None]) -> float | None:
    """Mean of the known values, weighted by minutes."""
    known = [(weight, value) for weight, value in zip(minutes, values, strict=True) if value]
    if not known:
        return 0.0 if 0.0 in values else None
    weights = [weight for weight, value in zip(minutes, values, strict=True) if value is not None]
    return round(sum([weight * value for weight, value in known]) / sum(weights), 4)
