"""The catalogue of causes as data: for each the kind of incident, the predicate that decides, and
what adds to its weight. attribution.py applies it.

A counter of the driver outweighs a conclusion from medians. A GPU that is throttled explains what
is slow; if its clock is free, the cause lies elsewhere: the queue, the drafts, the cache, the CPU,
other kernels, the process itself (docs/detection-method.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monitor.judge.drift.cause import cause_predicates as decide
from monitor.judge.drift.cause import gpu_predicates as gpu
from monitor.judge.drift.cause import server_predicates as server
from monitor.judge.drift.cause.scope import Predicate
from monitor.model import Cause, Kind


class Support(NamedTuple):
    """An observation that adds to the weight of a cause; a weight below 0 speaks against it."""

    name: str  # in the evidence
    holds: Predicate
    weight: float


@dataclass(frozen=True, slots=True)
class CauseRule:
    """One cause.

    `needs`: readings of a GPU or of the server without which the predicate is unknown.
    `felt`: the effect without which it is the cause of nothing.
    """

    cause: Cause
    kind: Kind
    predicate: Predicate
    weight: float
    needs: Sequence[str] = ()
    felt: Predicate = server.always
    support: Sequence[Support] = ()


CLOCK_NORMAL = Support("clock_normal", gpu.clock_free, 0.5)

CATALOGUE: tuple[CauseRule, ...] = (
    CauseRule(
        cause=Cause.POWER_BRAKE,
        kind=Kind.POWER,
        predicate=gpu.brake_time,
        weight=6.0,
        needs=("brake_duty",),
        support=(
            Support("clock_far_down", gpu.clock_far_down, 1.0),
            Support("power_down", gpu.power_down, 0.5),
        ),
    ),
    CauseRule(
        cause=Cause.MEMORY_HEAT,
        kind=Kind.THERMAL,
        predicate=decide.memory_heat,
        weight=5.5,
        needs=("thermal_duty", "temp_c", "sm_clock_mhz"),
        support=(
            Support("memory_clock_down", gpu.memory_clock_down, 1.0),
            Support("near_limit", gpu.near_limit, 0.5),
            Support("core_no_hotter", gpu.cooler, 0.5),
        ),
    ),
    CauseRule(
        cause=Cause.HEAT,
        kind=Kind.THERMAL,
        predicate=decide.heat,
        weight=5.0,
        needs=("thermal_duty", "temp_c", "sm_clock_mhz"),
        support=(
            Support("clock_down", gpu.clock_down, 1.0),
            Support("near_limit", gpu.near_limit, 1.0),
            Support("hotter", gpu.hotter, 1.0),
            Support("power_falls_with_the_clock", gpu.power_down, 0.5),
            Support("limit_fell", gpu.limit_fell, -2.0),
        ),
    ),
    CauseRule(
        cause=Cause.POWER_CAP,
        kind=Kind.POWER,
        predicate=decide.power_cap,
        weight=4.5,
        needs=("power_duty", "power_limit_w", "power_w", "sm_clock_mhz"),
        support=(
            Support("limit_fell", gpu.limit_fell, 1.5),
            Support("clock_down", gpu.clock_down, 1.0),
            Support("power_at_limit", gpu.power_at_limit, 0.5),
            Support("cooler", gpu.cooler, 0.5),
        ),
    ),
    CauseRule(
        cause=Cause.HIDDEN_LIMIT,
        kind=Kind.SPEED,
        predicate=decide.hidden_limit,
        weight=4.0,
        needs=("sm_clock_mhz", "power_w", "brake_duty"),
        support=(
            Support("cooler", gpu.cooler, 0.5),
            Support("decode_felt", server.decode_felt, 0.5),
        ),
    ),
    CauseRule(
        cause=Cause.QUEUEING,
        kind=Kind.SERVICE_LEVEL,
        predicate=server.waits,
        weight=4.0,
        needs=("waiting",),
        felt=server.wait_felt,
        support=(Support("level_broken", server.level_broken, 1.0),),
    ),
    CauseRule(
        cause=Cause.CACHE_LOST,
        kind=Kind.SPEED,
        predicate=server.cache_missed,
        weight=4.0,
        felt=server.cache_missed,
        support=(
            Support("digest_changed", server.digest_changed, 0.5),
            Support("restarted", server.restarted, 0.5),
        ),
    ),
    CauseRule(
        cause=Cause.SPECULATION,
        kind=Kind.SPEED,
        predicate=server.acceptance_fell,
        weight=4.0,
        felt=server.decode_felt,
        support=(CLOCK_NORMAL,),
    ),
    CauseRule(
        cause=Cause.NEIGHBOUR,
        kind=Kind.SPEED,
        predicate=decide.neighbour,
        weight=3.5,
        needs=("vram_used_mib",),
        felt=server.speed_felt,
        support=(
            Support("power_not_down", decide.power_not_down, 0.5),
            Support("util_not_down", decide.util_not_down, 0.5),
            Support("works_while_the_server_rests", gpu.works_alone, 0.5),
        ),
    ),
    CauseRule(
        cause=Cause.HOST_BOUND,
        kind=Kind.SPEED,
        predicate=decide.host_bound,
        weight=3.0,
        needs=("sm_clock_mhz", "top_util", "power_w"),
        felt=server.speed_felt,
        support=(
            Support("power_down", gpu.power_down, 0.5),
            Support("cooler", gpu.cooler, 0.5),
            Support("waits", server.waits, -1.0),
        ),
    ),
    CauseRule(
        cause=Cause.CONFIG_CHANGE,
        kind=Kind.CONFIG_CHANGE,
        predicate=server.digest_changed,
        weight=3.0,
        support=(CLOCK_NORMAL,),
    ),
    CauseRule(
        cause=Cause.KERNEL_FALLBACK,
        kind=Kind.SPEED,
        predicate=decide.kernel_fallback,
        weight=2.5,
        needs=("sm_clock_mhz", "top_util", "power_w"),
        felt=server.speed_felt,
        support=(
            Support("prefill_and_decode_apart", server.apart, 1.0),
            Support("power_down", gpu.power_down, 1.0),
            Support("restarted", server.restarted, 0.5),
        ),
    ),
    CauseRule(
        cause=Cause.UPTIME_DECAY,
        kind=Kind.SPEED,
        predicate=decide.uptime_decay,
        weight=3.8,
        felt=server.speed_felt,
        support=(CLOCK_NORMAL,),
    ),
    CauseRule(
        cause=Cause.SLOW_STATE,
        kind=Kind.SLOW_START,
        predicate=decide.slow_state,
        weight=2.5,
        felt=server.start_landed,
        support=(
            CLOCK_NORMAL,
            Support("power_down", gpu.power_down, -1.0),
            Support("apart", server.apart, -1.0),
        ),
    ),
)
