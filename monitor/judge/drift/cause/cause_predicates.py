"""The predicates that decide on a cause, composed of those on one GPU and on the server."""

from __future__ import annotations

from monitor.judge.drift.cause import gpu_predicates as gpu
from monitor.judge.drift.cause import server_predicates as server
from monitor.judge.drift.cause.scope import Scope, all_of, any_of, negated


def heat(scope: Scope) -> bool | None:
    """Thermally throttled; or (boost bins, GPUs without the counter) a lower clock on a core that
    is hotter than its power explains.
    """
    by_clock = all_of(gpu.clock_down(scope), any_of(gpu.hotter(scope), gpu.near_limit(scope)))
    return all_of(any_of(gpu.thermal_time(scope), by_clock), negated(memory_heat(scope) or False))


def memory_heat(scope: Scope) -> bool | None:
    """Thermally throttled, and the memory is the hotter part."""
    return all_of(gpu.thermal_time(scope), gpu.memory_apart(scope))


def power_cap(scope: Scope) -> bool | None:
    """A lowered limit that binds; or far more time at the limit on a GPU that is not hotter."""
    lowered = all_of(
        gpu.limit_fell(scope), any_of(gpu.power_time(scope), gpu.power_at_limit(scope))
    )
    capped = all_of(gpu.power_time(scope), gpu.clock_down(scope), negated(gpu.hotter(scope)))
    return all_of(any_of(lowered, capped), negated(gpu.thermal_time(scope) or False))


def hidden_limit(scope: Scope) -> bool | None:
    """Clock and power are far lower at full utilisation, and the driver gives no reason. If the
    thermal counter is missing, the core must be cool.
    """
    heat = gpu.thermal_time(scope)
    not_hot = negated(heat) if heat is not None else gpu.cooler(scope)
    cap = gpu.power_time(scope)
    not_capped = negated(cap) if cap is not None else negated(gpu.power_at_limit(scope))
    no_reason = all_of(
        not_hot,
        not_capped,
        negated(gpu.brake_time(scope)),
        negated(gpu.limit_fell(scope) or False),
    )
    return all_of(
        gpu.clock_far_down(scope), gpu.power_down(scope), gpu.still_busy(scope), no_reason
    )


def kernel_fallback(scope: Scope) -> bool | None:
    """The same clock and utilisation at less power, or prefill and decode apart since a start.

    An effect of a changed configuration belongs to the change. Without the time in the queue, a
    queue would look like slow prefill.
    """
    apart = all_of(
        server.apart(scope), server.restarted(scope), negated(server.waits(scope) or False)
    )
    return all_of(
        gpu.clock_free(scope),
        any_of(gpu.power_down(scope), apart),
        negated(gpu.util_down(scope)),
        negated(server.digest_changed(scope)),
    )


def neighbour(scope: Scope) -> bool | None:
    """Memory that is not ours, or work while the server rests; neither after a start of ours."""
    return all_of(
        any_of(gpu.more_memory(scope), gpu.works_alone(scope)), negated(server.restarted(scope))
    )


def host_bound(scope: Scope) -> bool | None:
    """The GPU waits although nothing lowers its clock."""
    return all_of(gpu.util_down(scope), gpu.clock_free(scope))


def uptime_decay(scope: Scope) -> bool | None:
    """The loss grows with the uptime of the process."""
    return all_of(server.grows(scope), _clock_may_be_free(scope))


def _clock_may_be_free(scope: Scope) -> bool:
    """Nothing is known to lower the clock."""
    return gpu.clock_free(scope) is not False


def slow_state(scope: Scope) -> bool | None:
    """The same configuration and clock, and the start as a whole is slower."""
    return all_of(
        server.start_landed(scope), negated(server.digest_changed(scope)), _clock_may_be_free(scope)
    )


def power_not_down(scope: Scope) -> bool | None:
    """The GPU draws no less power."""
    return negated(gpu.power_down(scope))


def util_not_down(scope: Scope) -> bool | None:
    """Kernels run for no less of the time."""
    return negated(gpu.util_down(scope))
