"""Which judges of a GPU work, which are still learning, and which readings are missing and how to
get them.
"""

from __future__ import annotations

from collections.abc import Mapping

from monitor.judge.drift.evidence import Armed
from monitor.judge.drift.gpu.baseline import DUTY_MIN, GpuBaseline
from monitor.judge.drift.gpu.clock_model import ARMED_MIN as CLOCK_MIN
from monitor.judge.drift.gpu.thermal_model import ARMED_MIN as THERMAL_MIN
from monitor.judge.drift.settings import HOUR_US

STALE_US = HOUR_US  # a reading that did not come for this long is missing
_EXPORTER = "an exporter must list {name} in its counters file"
#: Reading -> its name for users, and how to get it.
MISSING: Mapping[str, str] = {
    "thermal_duty": (
        "thermally throttled time "
        f"({_EXPORTER.format(name='DCGM_FI_DEV_THERMAL_VIOLATION')}; NVML reports it)"
    ),
    "power_duty": (
        "time at the power cap "
        f"({_EXPORTER.format(name='DCGM_FI_DEV_POWER_VIOLATION')}; NVML reports it)"
    ),
    "event_reasons": (
        "clocks event reasons "
        f"({_EXPORTER.format(name='DCGM_FI_DEV_CLOCKS_EVENT_REASONS')}; NVML reports them, except "
        "for virtual GPUs)"
    ),
    "margin_c": (
        "margin to slowdown (NVML of newer drivers; GeForce and GPUs before Ada and Hopper do not "
        "report it)"
    ),
    "mem_temp_c": (
        "memory temperature (DCGM_FI_DEV_MEMORY_TEMP; GeForce, L40S and GB10 do not report it)"
    ),
    "sm_clock_mhz": "SM clock (DCGM_FI_DEV_SM_CLOCK)",
    "power_w": "power (DCGM_FI_DEV_POWER_USAGE)",
    "power_limit_w": (
        "the enforced power limit (DCGM_FI_DEV_ENFORCED_POWER_LIMIT; GB10 does not report it)"
    ),
}
_THROTTLING = ("thermal_duty", "event_reasons", "margin_c")  # what the first judge rests on


def missing_of(seen_us: Mapping[str, int], now_us: int | None) -> tuple[str, ...]:
    """The readings that did not come for an hour."""
    if now_us is None:
        return ()
    return tuple(
        text
        for name, text in MISSING.items()
        if seen_us.get(name, now_us - 2 * STALE_US) < now_us - STALE_US
    )


def armed_of(
    uuid: str, baseline: GpuBaseline, missing: tuple[str, ...], any_seen: bool, dropped: int
) -> list[Armed]:
    """The judges of one GPU: throttling needs no baseline, clock and temperature do. `dropped`:
    readings that arrived too late.
    """
    minutes, duty_minutes = baseline.thermal.core.count, int(baseline.thermal_duty.minutes)
    clock, thermal = baseline.clock, baseline.thermal
    return [
        _throttling(uuid, missing, any_seen, dropped),
        Armed(f"clock of GPU {uuid}", clock.armed, _from(clock.minutes, CLOCK_MIN, "busy minutes")),
        Armed(
            f"unexplained heat of GPU {uuid}", thermal.armed, _from(minutes, THERMAL_MIN, "minutes")
        ),
        Armed(
            f"throttle time baseline of GPU {uuid}",
            baseline.thermal_duty.minutes >= DUTY_MIN,
            _from(duty_minutes, int(DUTY_MIN), "minutes") + "; until then any throttling counts",
        ),
    ]


def _throttling(uuid: str, missing: tuple[str, ...], any_seen: bool, dropped: int) -> Armed:
    lacking = [MISSING[name] for name in _THROTTLING if MISSING[name] in missing]
    armed = any_seen and MISSING["thermal_duty"] not in missing
    detail = "no reading yet"
    if lacking:
        detail = f"missing: {'; '.join(lacking)}"
    elif armed:
        detail = "works from the first minute"
    if dropped:
        detail += (
            f"; {dropped} readings arrived after their minute was judged and were left out "
            "(stored late, or the clock was set back)"
        )
    return Armed(f"throttling of GPU {uuid}", armed, detail)


def _from(count: int, needed: int, what: str) -> str:
    if count >= needed:
        return f"baseline from {count} {what}"
    return f"learning the baseline ({count} of {needed} {what})"
