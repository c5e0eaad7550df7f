"""The table of causes: the kind of incident, what proves each, what speaks for it, and what to look
at. As data; causes.py applies it.

It is the attribution table of the project's notes on drift (docs/detection.md), with these rules. A
counter of the driver outweighs what is concluded from medians. A GPU that is held back explains
what is slow beside it; what the GPU does freely must come from elsewhere: the queue, the drafts,
the cache, the processor, other kernels, the process itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monitor.judge.drift.cause import predicates as p
from monitor.judge.drift.cause.predicates import Scope, all_of, any_of, negated
from monitor.model import Cause, Kind

Sign = Callable[[Scope], bool | None]


@dataclass(frozen=True, slots=True)
class CauseRule:
    """One cause: the kind of incident, what proves it, what speaks for it with which weight, and
    what to look at.
    """

    cause: Cause
    kind: Kind
    proof: Sign
    needs: Sequence[
        str
        # readings of a GPU (GpuSigns) or of the server without which the proof is unknown; none:
        # it never is
    ]
    felt: Sign  # what must have moved for it to be the cause of anything
    weight: float  # of the proof: a counter of the driver outweighs what is concluded from medians
    signs: Sequence[
        tuple[str, Sign, float]
    ]  # name in the evidence, what is seen, weight (below 0: speaks against it)
    look_at: str


def _heat(look: Scope) -> bool | None:
    """Throttled by heat, or (boost bins, GPUs without the counter) a clock that is lower on a core
    that is hotter than its power.
    """
    by_clock = all_of(p.clock_down(look), any_of(p.hotter(look), p.near_limit(look)))
    return all_of(any_of(p.thermal_time(look), by_clock), negated(_memory(look) or False))


def _memory(look: Scope) -> bool | None:
    return all_of(p.thermal_time(look), p.memory_apart(look))


def _power_cap(look: Scope) -> bool | None:
    """Held by a limit that was lowered, or by the same limit far more of the time without being
    hotter.
    """
    lowered = all_of(p.limit_fell(look), any_of(p.power_time(look), p.power_at_limit(look)))
    held = all_of(p.power_time(look), p.clock_down(look), negated(p.hotter(look)))
    return all_of(any_of(lowered, held), negated(p.thermal_time(look) or False))


def _hidden_limit(look: Scope) -> bool | None:
    """Clock and power far down at full utilisation, and none of the driver's reasons. Cool, where
    the thermal counter is missing.
    """
    heat = p.thermal_time(look)
    not_hot = negated(heat) if heat is not None else p.cooler(look)
    cap = p.power_time(look)
    not_capped = negated(cap) if cap is not None else negated(p.power_at_limit(look))
    no_reason = all_of(
        not_hot, not_capped, negated(p.brake_time(look)), negated(p.limit_fell(look) or False)
    )
    return all_of(p.clock_far_down(look), p.power_down(look), p.still_busy(look), no_reason)


def _free_clock(look: Scope) -> bool | None:
    """Nothing holds the GPU back: then what is slower is not the GPU."""
    return all_of(negated(p.clock_down(look)), negated(p.thermal_time(look) or False))


def _kernel(look: Scope) -> bool | None:
    """The same clock and utilisation, and less power, or prefill and decode apart since a start:
    other kernels run.

    What a changed configuration does is the change's doing. Without the time in the queue, a queue
    would look like slow prefill.
    """
    apart = all_of(p.apart(look), p.restarted(look), negated(p.waits(look) or False))
    other = any_of(p.power_down(look), apart)
    return all_of(
        _free_clock(look), other, negated(p.util_down(look)), negated(p.digest_changed(look))
    )


def _neighbour(look: Scope) -> bool | None:
    """Memory that is not ours, or work while the server rests; neither a new start of ours."""
    return all_of(any_of(p.more_memory(look), p.works_alone(look)), negated(p.restarted(look)))


def _host(look: Scope) -> bool | None:
    return all_of(p.util_down(look), _free_clock(look))


def _decay(look: Scope) -> bool | None:
    return all_of(p.grows(look), _free_clock_or_unknown(look))


def _free_clock_or_unknown(look: Scope) -> bool:
    return _free_clock(look) is not False


def _slow_state(look: Scope) -> bool | None:
    """The same configuration, the same clock and the same power, and the start as a whole is
    slower.
    """
    return all_of(
        p.start_landed(look), negated(p.digest_changed(look)), _free_clock_or_unknown(look)
    )


def _always(_look: Scope) -> bool | None:
    return True


CATALOGUE: tuple[CauseRule, ...] = (
    CauseRule(
        Cause.POWER_BRAKE, Kind.POWER, p.brake_time, ("brake_duty",), _always, 6.0,
        (("clock_far_down", p.clock_far_down, 1.0), ("power_down", p.power_down, 0.5)),
        ("power supplies, cables and the rack's power distribution: the brake is asserted "
"from outside"),
    ),
    CauseRule(
        Cause.MEMORY_HEAT, Kind.THERMAL, _memory, ("thermal_duty", "temp_c", "sm_clock_mhz"), _always, 5.5,
        (("memory_clock_down", p.memory_clock_down, 1.0), ("near_limit", p.near_limit, 0.5), ("core_no_hotter", p.cooler, 0.5)),
        "thermal pads and air flow over the memory: the core is cool; nvidia-smi -q -d TEMPERATURE",
    ),
    CauseRule(
        Cause.HEAT, Kind.THERMAL, _heat, ("thermal_duty", "temp_c", "sm_clock_mhz"), _always, 5.0,
        (
            ("clock_down", p.clock_down, 1.0), ("near_limit", p.near_limit, 1.0), ("hotter", p.hotter, 1.0),
            ("power_falls_with_the_clock", p.power_down, 0.5), ("limit_fell", p.limit_fell, -2.0),
        ),
        ("fans, dust, air flow, the room and neighbouring GPUs; nvidia-smi -q -d "
"TEMPERATURE,PERFORMANCE"),
    ),
    CauseRule(
        Cause.POWER_CAP, Kind.POWER, _power_cap, ("power_duty", "power_limit_w", "power_w", "sm_clock_mhz"), _always, 4.5,
        (
            ("limit_fell", p.limit_fell, 1.5), ("clock_down", p.clock_down, 1.0), ("power_at_limit", p.power_at_limit, 0.5),
            ("cooler", p.cooler, 0.5),
        ),
        ("who lowered the limit: nvidia-smi -q -d POWER (enforced and requested limit), then "
"nvidia-smi -pl"),
    ),
    CauseRule(
        Cause.HIDDEN_LIMIT, Kind.SPEED, _hidden_limit, ("sm_clock_mhz", "power_w", "brake_duty"), _always, 4.0,
        (("cooler", p.cooler, 0.5), ("decode_felt", p.decode_felt, 0.5)),
        ("firmware and power supply: unplug the machine for a minute (a reboot does not clear "
"it), then firmware updates"),
    ),
    CauseRule(
        Cause.QUEUEING, Kind.SERVICE_LEVEL, p.waits, ("waiting",), p.wait_felt,
        4.0, (("level_broken", lambda look: "level" in look.signs.effects, 1.0),),
        ("who sends so much: vllm-canary history --json shows running and waiting; give batch "
"work a lower priority or another server"),
    ),
    CauseRule(
        Cause.CACHE_LOST, Kind.SPEED, p.cache_missed, (), p.cache_missed, 4.0,
        (("digest_changed", p.digest_changed, 0.5), ("restarted", p.restarted, 0.5)),
        "the options of the last start: --enable-prefix-caching, the size of the KV cache, kv_usage",
    ),
    CauseRule(
        Cause.SPECULATION, Kind.SPEED, p.acceptance_fell, (), p.decode_felt, 4.0,
        (("clock_normal", _free_clock, 0.5),),
        ("the drafts: does the draft model still fit the traffic and the weights? "
"num_speculative_tokens"),
    ),
    CauseRule(
        Cause.NEIGHBOUR, Kind.SPEED, _neighbour, ("vram_used_mib",), p.speed_felt, 3.5,
        (
            ("power_not_down", lambda look: negated(p.power_down(look)), 0.5),
            ("util_not_down", lambda look: negated(p.util_down(look)), 0.5),
            ("works_while_the_server_rests", p.works_alone, 0.5),
        ),
        ("other processes on the GPU: nvidia-smi --query-compute-apps=pid,name,used_memory "
"--format=csv"),
    ),
    CauseRule(
        Cause.HOST_BOUND, Kind.SPEED, _host, ("sm_clock_mhz", "top_util", "power_w"), p.speed_felt, 3.0,
        (("power_down", p.power_down, 0.5), ("cooler", p.cooler, 0.5), ("waits", p.waits, -1.0)),
        ("the processor: top, cgroup CPU limits, other work on the machine, swapping; the GPU "
"waits for it"),
    ),
    CauseRule(
        Cause.CONFIG_CHANGE, Kind.CONFIG_CHANGE, p.digest_changed, (), _always, 3.0,
        (("clock_normal", _free_clock, 0.5),),
        "vllm-canary fingerprint: what changed, and whether it was meant",
    ),
    CauseRule(
        Cause.KERNEL_FALLBACK, Kind.SPEED, _kernel, ("sm_clock_mhz", "top_util", "power_w"), p.speed_felt, 2.5,
        (
            ("prefill_and_decode_apart", p.apart, 1.0), ("power_down", p.power_down, 1.0), ("restarted", p.restarted, 0.5),
        ),
        ("the server's log of the last start: attention backend, sampler, quantisation kernels, "
"compile cache"),
    ),
    CauseRule(
        Cause.UPTIME_DECAY, Kind.SPEED, _decay, (), p.speed_felt, 3.8,
        (("clock_normal", _free_clock, 0.5),),
        ("memory of the server's process, caches that grow; a restart cures it: plan one, and "
"report it upstream"),
    ),
    CauseRule(
        Cause.SLOW_STATE, Kind.SLOW_START, _slow_state, (), p.start_landed, 2.5,
        (("clock_normal", _free_clock, 0.5), ("power_down", p.power_down, -1.0), ("apart", p.apart, -1.0)),
        "start the process again: this start landed in a slow state although nothing changed",
    ),
)  # fmt: skip
