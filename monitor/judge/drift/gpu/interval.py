"""An interval of one GPU, from a minute to days, and several merged into one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from monitor.judge.drift.stats.robust import known_median


class Interval(NamedTuple):
    """A minute or more of one GPU. Temperatures, clocks and power are medians of busy readings where
    there were any, else of all.
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
    typical = busy or parts
    minutes = [part.minutes for part in parts]
    return Interval(
        at_us=parts[0].at_us,
        minutes=sum(minutes),
        busy=sum([part.busy for part in parts]),
        temp_c=_median([part.temp_c for part in typical]),
        mem_temp_c=_median([part.mem_temp_c for part in typical]),
        margin_c=_median([part.margin_c for part in typical]),
        residual_c=_median([part.residual_c for part in typical]),
        mem_residual_c=_median([part.mem_residual_c for part in typical]),
        sm_clock_mhz=known_median([part.sm_clock_mhz for part in busy]),
        expected_clock_mhz=_median([part.expected_clock_mhz for part in busy]),
        mem_clock_mhz=known_median([part.mem_clock_mhz for part in busy]),
        util=_weighted(minutes, [part.util for part in parts]),
        power_w=_median([part.power_w for part in typical]),
        power_limit_w=last_known([part.power_limit_w for part in parts]),
        vram_used_mib=last_known([part.vram_used_mib for part in parts]),
        thermal_duty=_weighted(minutes, [part.thermal_duty for part in parts]),
        power_duty=_weighted(minutes, [part.power_duty for part in parts]),
        brake_duty=_weighted(minutes, [part.brake_duty for part in parts]),
        event_reasons=all_bits([part.event_reasons for part in parts]),
        thermal_bits=_weighted(minutes, [part.thermal_bits for part in parts]),
    )


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
