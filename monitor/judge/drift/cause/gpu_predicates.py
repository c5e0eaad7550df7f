"""Predicates on one GPU: True, False, or None if a reading is missing.

A change is judged against the GPU's own past under like work, never against a data sheet.
"""

from __future__ import annotations

from monitor.judge.drift.cause.scope import Scope, all_of, any_of, fell, negated, rose

# share of time: two points, as the default of `thermal_duty_points`
DUTY_RISE = 0.02
# share of time: many healthy GPUs are at their power cap for much of it, so that only a large
# change counts (the SwPowerCap bit is set in nearly all readings of a healthy RTX 3090 under load,
# ashalliants/ninfer-3090#72)
POWER_DUTY_RISE = 0.2
# log; the busy median of a healthy H100 moves by less (grantwilkins/powertrace-sim)
CLOCK_MOVED = 0.015
# log; more than the 4 % that a hot GB10 loses without a reason (djangodevreng/dgx-spark-benchmarks)
CLOCK_LOW = 0.05
POWER_MOVED = 0.05  # log
UTIL_MOVED = 0.07  # log
FEW_RUNNING = 0.7  # requests, on average
WORKS_ALONE = 0.1  # utilisation of the idlest readings
STILL_BUSY = 0.2  # log: mean utilisation follows the load
HOTTER_C = 4.0  # above what its power explains, as the default of `residual_c`
COOL_C = 3.0  # a smaller rise is no rise
NEAR_LIMIT_C = 5.0  # margin, as the default of `margin_c`
LIMIT_FELL = 0.02  # log
MEMORY_APART_C = 5.0  # memory further above the core than before
ALWAYS_RUNNING = 1.0  # requests, on average
# vLLM allocates its memory at start and keeps it: later growth belongs to another process
VRAM_MIB = 256.0


def thermal_time(scope: Scope) -> bool | None:
    """More time thermally throttled, core or memory, by the driver's counter."""
    return None if scope.gpu is None else rose(scope.gpu.thermal_duty, DUTY_RISE)


def power_time(scope: Scope) -> bool | None:
    """More time power-throttled, by the driver's counter."""
    return None if scope.gpu is None else rose(scope.gpu.power_duty, POWER_DUTY_RISE)


def brake_time(scope: Scope) -> bool | None:
    """More time under the external power brake, which the power limit never raises (nvml.h)."""
    return None if scope.gpu is None else rose(scope.gpu.brake_duty, DUTY_RISE)


def clock_down(scope: Scope) -> bool | None:
    """The busy median of the SM clock is lower."""
    return None if scope.gpu is None else fell(scope.gpu.sm_clock_mhz, CLOCK_MOVED)


def clock_far_down(scope: Scope) -> bool | None:
    """The SM clock is lower by far more than a warm GPU loses by itself."""
    return None if scope.gpu is None else fell(scope.gpu.sm_clock_mhz, CLOCK_LOW)


def memory_clock_down(scope: Scope) -> bool | None:
    """The memory clock is lower."""
    return None if scope.gpu is None else fell(scope.gpu.mem_clock_mhz, CLOCK_MOVED)


def hotter(scope: Scope) -> bool | None:
    """The core is hotter than before, and than its power explains; before that is learned: hotter
    at no more power.
    """
    gpu = scope.gpu
    if gpu is None:
        return None
    rise, power = gpu.temp_c.rise, gpu.power_w.log_ratio
    if gpu.residual_c is not None:
        # the heat sink is slow: after a fall of power a residual may remain for a while
        return all_of(gpu.residual_c >= HOTTER_C, None if rise is None else rise >= HOTTER_C / 2)
    return None if rise is None else rise >= HOTTER_C and (power is None or power <= POWER_MOVED)


def cooler(scope: Scope) -> bool | None:
    """The core is no hotter than before."""
    rise = None if scope.gpu is None else scope.gpu.temp_c.rise
    return None if rise is None else rise <= COOL_C


def core_at_fault(scope: Scope) -> bool | None:
    """The core is hotter than before, or than its power explains: a governor that keeps it at its
    limit hides the rise.
    """
    residual = None if scope.gpu is None else scope.gpu.residual_c
    return any_of(negated(cooler(scope)), None if residual is None else residual >= HOTTER_C)


def near_limit(scope: Scope) -> bool | None:
    """The GPU reports that it is a few degrees below a slowdown threshold."""
    margin = None if scope.gpu is None else scope.gpu.margin_c.now
    return None if margin is None else margin <= NEAR_LIMIT_C


def memory_apart(scope: Scope) -> bool | None:
    """The memory is further above the core than before; without a memory temperature: thermally
    throttled although the core is no hotter.
    """
    gpu = scope.gpu
    if gpu is None:
        return None
    memory, core = gpu.mem_temp_c.rise, gpu.temp_c.rise
    if memory is not None and core is not None:
        return memory - core >= MEMORY_APART_C
    return all_of(thermal_time(scope), negated(core_at_fault(scope)))


def limit_fell(scope: Scope) -> bool | None:
    """The power limit in force is lower."""
    return None if scope.gpu is None else fell(scope.gpu.power_limit_w, LIMIT_FELL)


def power_at_limit(scope: Scope) -> bool | None:
    """The GPU draws nearly its power limit."""
    gpu = scope.gpu
    if gpu is None or gpu.power_w.now is None or gpu.power_limit_w.now is None:
        return None
    return gpu.power_w.now >= 0.9 * gpu.power_limit_w.now


def power_down(scope: Scope) -> bool | None:
    """Less peak power; if that was not seen, a lower median of busy readings."""
    gpu = scope.gpu
    if gpu is None:
        return None
    found = fell(gpu.top_power_w, POWER_MOVED)
    return fell(gpu.power_w, POWER_MOVED) if found is None else found


def util_down(scope: Scope) -> bool | None:
    """Kernels run for less of the time, even in the busiest readings: the GPU waits.

    A GPU that waits for long may have no busy reading any more. Its mean utilisation then counts,
    but only while a request runs at all times: with less load, a GPU may be idle.
    """
    if scope.gpu is None:
        return None
    found = fell(scope.gpu.top_util, UTIL_MOVED)
    if found is not None or (scope.observed.server.running.now or 0.0) < ALWAYS_RUNNING:
        return found
    return fell(scope.gpu.util, STILL_BUSY)


def still_busy(scope: Scope) -> bool | None:
    """Kernels run for no less of the time than before."""
    if scope.gpu is None:
        return None
    util = scope.gpu.util.log_ratio
    if util is not None:
        return util > -STILL_BUSY
    return negated(fell(scope.gpu.top_util, UTIL_MOVED))


def works_alone(scope: Scope) -> bool | None:
    """The GPU works although the server does not: even its idlest readings show kernels.

    With fewer than FEW_RUNNING requests on average, for at least the rest of the time none runs,
    and a GPU that only this server uses is idle then.
    """
    running = scope.observed.server.running.now
    if scope.gpu is None or running is None or running > FEW_RUNNING:
        return None
    return rose(scope.gpu.idle_util, WORKS_ALONE)


def more_memory(scope: Scope) -> bool | None:
    """More GPU memory is in use, without a new start."""
    rise = None if scope.gpu is None else scope.gpu.vram_used_mib.rise
    return None if rise is None else rise >= VRAM_MIB


def clock_free(scope: Scope) -> bool | None:
    """Nothing lowers the clock: what is slower is not the GPU."""
    return all_of(negated(clock_down(scope)), negated(thermal_time(scope) or False))
