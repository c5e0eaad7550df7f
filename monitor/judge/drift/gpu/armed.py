"""Which judges of a GPU work, which still learn, and which reading a proof would need and how to
get it.
"""

from __future__ import annotations

from collections.abc import Mapping

from monitor.judge.drift.evidence import Armed
from monitor.judge.drift.gpu.clock_model import ARMED_MIN as CLOCK_MIN
from monitor.judge.drift.gpu.rules import NORMAL_FROM_MIN, Normal
from monitor.judge.drift.gpu.thermal_model import ARMED_MIN as THERMAL_MIN
from monitor.judge.drift.settings import HOUR_US

STALE_US = HOUR_US  # a reading that was not there for so long is missing
_EXPORTER = "an exporter must list {name} in its counters file"
#: Reading -> what a person calls it, and how to get it.
MISSING: Mapping[str, str] = {
    "thermal_duty": (
        "time throttled for heat "
        f"({_EXPORTER.format(name='DCGM_FI_DEV_THERMAL_VIOLATION')}; NVML has it by itself)"
    ),
    "power_duty": (
        "time at the power cap "
        f"({_EXPORTER.format(name='DCGM_FI_DEV_POWER_VIOLATION')}; NVML has it by itself)"
    ),
    "reasons": (
        "clocks event reasons "
        f"({_EXPORTER.format(name='DCGM_FI_DEV_CLOCKS_EVENT_REASONS')}; NVML has them, not on "
        "virtual GPUs)"
    ),
    "margin_c": (
        "degrees left to the GPU's own limit (NVML of newer drivers; GeForce and "
        "GPUs before Ada and Hopper do not tell it)"
    ),
    "mem_temp_c": (
        "memory temperature (DCGM_FI_DEV_MEMORY_TEMP; GeForce, L40S and GB10 do not tell it)"
    ),
    "sm_clock_mhz": "SM clock (DCGM_FI_DEV_SM_CLOCK)",
    "power_w": "power (DCGM_FI_DEV_POWER_USAGE)",
    "power_limit_w": (
        "the power limit in force (DCGM_FI_DEV_ENFORCED_POWER_LIMIT; GB10 does not tell it)"
    ),
}


def missing_of(seen_us: Mapping[str, int], now_us: int | None) -> tuple[str, ...]:
    """The readings that were not there for an hour."""
    if now_us is None:
        return ()
    return tuple(
        text
        for name, text in MISSING.items()
        if seen_us.get(name, now_us - 2 * STALE_US) < now_us - STALE_US
    )


def armed_of(
    uuid: str, normal: Normal, missing: tuple[str, ...], any_seen: bool, dropped: int
) -> list[Armed]:
    """Heat without learning, clock and thermal model with it; and how many looks were left out."""
    lacks = [
        text
        for text in missing
        if text in (MISSING["thermal_duty"], MISSING["reasons"], MISSING["margin_c"])
    ]
    proof = any_seen and MISSING["thermal_duty"] not in missing
    detail = (
        "works from the first minute"
        if proof and not lacks
        else f"missing: {'; '.join(lacks)}"
        if lacks
        else "no reading yet"
    )
    if dropped:
        detail += (
            f"; left out: {dropped} looks that came when their minute was judged already "
            "(stored late, or the clock was set back)"
        )
    clocks, minutes = normal.clock.minutes, normal.thermal.core.seen
    return [
        Armed(f"throttling of GPU {uuid}", proof, detail),
        Armed(f"clock of GPU {uuid}", normal.clock.armed, _from(clocks, CLOCK_MIN, "busy minutes")),
        Armed(
            f"unexplained heat of GPU {uuid}",
            normal.thermal.armed,
            _from(minutes, THERMAL_MIN, "minutes"),
        ),
        Armed(
            f"usual throttle time of GPU {uuid}",
            normal.thermal_duty.seen >= NORMAL_FROM_MIN,
            _from(int(normal.thermal_duty.seen), int(NORMAL_FROM_MIN), "minutes")
            + "; until then any throttling counts",
        ),
    ]


def _from(seen: int, needed: int, what: str) -> str:
    return f"learnt from {seen} {what}" if seen >= needed else f"learns: {seen} of {needed} {what}"
