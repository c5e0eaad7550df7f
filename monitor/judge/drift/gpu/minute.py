"""From readings to minutes: medians of busy readings, and counters as shares of time.

A single reading proves little (an H100 drops 300 MHz for a quarter of a second at a prefill burst;
a reason bit may be set at a change of P-state), so nothing is concluded from one. A counter that
grew faster than the clock, or ran backwards, is unknown (it was reset, or the driver was reloaded).
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.judge.drift.gpu.interval import Interval, all_bits, last_known, rounded
from monitor.judge.drift.gpu.reading import GAP_US, Reading
from monitor.judge.drift.stats.robust import known_mean, known_median

# how far a counter of time may get ahead of our clock over a minute before it is discarded
SLACK_US = 500_000
NS_PER_US = 1000
#: SwThermalSlowdown and HwThermalSlowdown (nvml.h, nvmlClocksEventReason*)
THERMAL_BITS = 0x20 | 0x40


def minute_of(
    at_us: int, readings: Sequence[Reading], before: Reading | None, top_power_w: float
) -> Interval:
    """The minute that begins at `at_us`, from its readings in order. `before` is the last poll
    ahead of it, for the counters; `top_power_w` the highest power this GPU was seen at.
    """
    polls = [reading for reading in readings if not reading.sampled]
    if not polls:
        return (
            _of_sample(at_us, readings[0]) if len(readings) == 1 else _of_samples(at_us, readings)
        )
    busy = [reading for reading in polls if reading.is_busy(top_power_w)]
    busy = busy or [reading for reading in readings if reading.sampled]
    typical = busy or readings
    chain = polls if before is None or polls[0].at_us - before.at_us > GAP_US else [before, *polls]
    return Interval(
        at_us=at_us,
        minutes=1,
        busy=1 if busy else 0,
        temp_c=known_median([reading.temp_c for reading in typical]),
        mem_temp_c=known_median([reading.mem_temp_c for reading in typical]),
        margin_c=known_median([reading.margin_c for reading in typical]),
        sm_clock_mhz=known_median([reading.sm_clock_mhz for reading in busy]),
        mem_clock_mhz=known_median([reading.mem_clock_mhz for reading in busy]),
        util=rounded(known_mean([reading.util for reading in polls]), 3),
        power_w=rounded(known_median([reading.power_w for reading in typical])),
        power_limit_w=last_known([reading.power_limit_w for reading in readings]),
        vram_used_mib=last_known([reading.vram_used_mib for reading in readings]),
        thermal_duty=_duty(chain, [reading.throttle_thermal_ns for reading in chain], 2),
        power_duty=_duty(chain, [reading.throttle_power_ns for reading in chain], 1),
        brake_duty=_duty(chain, [reading.throttle_brake_ns for reading in chain], 1),
        event_reasons=all_bits([reading.event_reasons for reading in busy]),
        thermal_bits=rounded(known_mean([_thermal_bit(reading) for reading in polls]), 3),
    )


def _of_sample(at_us: int, reading: Reading) -> Interval:
    """A minute with one sample only: the most frequent case of a replay without polls."""
    return Interval(
        at_us=at_us,
        minutes=1,
        busy=1,
        temp_c=reading.temp_c,
        mem_temp_c=reading.mem_temp_c,
        margin_c=reading.margin_c,
        sm_clock_mhz=reading.sm_clock_mhz,
        mem_clock_mhz=reading.mem_clock_mhz,
        util=reading.util,
        power_w=reading.power_w,
        power_limit_w=reading.power_limit_w,
        vram_used_mib=reading.vram_used_mib,
        thermal_duty=reading.thermal_duty,
        power_duty=reading.power_duty,
        brake_duty=reading.brake_duty,
    )


def _of_samples(at_us: int, readings: Sequence[Reading]) -> Interval:
    """A minute with samples only."""
    return Interval(
        at_us=at_us,
        minutes=1,
        busy=1,
        temp_c=known_median([reading.temp_c for reading in readings]),
        mem_temp_c=known_median([reading.mem_temp_c for reading in readings]),
        margin_c=known_median([reading.margin_c for reading in readings]),
        sm_clock_mhz=known_median([reading.sm_clock_mhz for reading in readings]),
        mem_clock_mhz=known_median([reading.mem_clock_mhz for reading in readings]),
        util=known_mean([reading.util for reading in readings]),
        power_w=known_median([reading.power_w for reading in readings]),
        power_limit_w=last_known([reading.power_limit_w for reading in readings]),
        vram_used_mib=last_known([reading.vram_used_mib for reading in readings]),
        thermal_duty=known_mean([reading.thermal_duty for reading in readings]),
        power_duty=known_mean([reading.power_duty for reading in readings]),
        brake_duty=known_mean([reading.brake_duty for reading in readings]),
    )


def _thermal_bit(reading: Reading) -> float | None:
    reasons = reading.event_reasons
    return None if reasons is None else float(reasons & THERMAL_BITS > 0)


def _duty(chain: Sequence[Reading], counter: Sequence[int | None], counters: int) -> float | None:
    """Share of the time in which a counter ran; `counters`: how many counters were added up in it
    (thermal: by software and by hardware, both may run).
    """
    known = [
        (reading.at_us, value)
        for reading, value in zip(chain, counter, strict=True)
        if value is not None
    ]
    if len(known) < 2:
        return None
    (start_us, first), (end_us, last) = known[0], known[-1]
    passed_us, grown_us = end_us - start_us, (last - first) / NS_PER_US
    if passed_us <= 0 or grown_us < 0 or grown_us > counters * passed_us + SLACK_US:
        return None
    return min(1.0, round(grown_us / passed_us, 4))
