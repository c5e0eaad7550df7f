"""What can be seen of each cause, one function a sign: True, False, or None where the reading is
missing. See causes.py for the table.

A change is judged against its own past under like work, never against a data sheet. Sources: [n.m]
are sections of the project's notes on drift (docs/detection.md tells them), NVML is nvml.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from monitor.judge.drift.evidence import GpuComparison, Observations, Pair
from monitor.judge.drift.settings import MINUTE_US

DUTY_RISE = 0.02  # share of time: two points above its own baseline (3.3, the ladder's second step)
# the power cap's bit is on for much of the time on many healthy GPUs: only a large change counts
# (0.2)
POWER_DUTY_RISE = 0.2
# log; below it the busy median of a healthy GPU wanders (H100, 1.3: prefill dips are medianed
# away)
CLOCK_MOVED = 0.015
CLOCK_LOW = 0.05  # log; far more than boost bins take by themselves (5.1: GB10 loses 4 % when hot)
POWER_MOVED = 0.05  # log
UTIL_MOVED = 0.07  # log
FEW_RUNNING = 0.7  # requests in the mean
WORKS_ALONE = 0.1  # utilisation of the idlest looks
STILL_BUSY = 0.2  # log: mean utilisation follows the load
HOTTER_C = 4.0  # beyond what its power explains (3.3)
COOL_C = 3.0  # no hotter than that is not hotter
NEAR_LIMIT_C = 5.0  # margin (5.4)
LIMIT_FELL = 0.02
MEMORY_APART_C = 5.0  # memory further above the core than it was
QUEUE_MS = 50.0  # a wait that a person's first token shows
WAITING = 0.5  # requests, in the mean of a block
ALWAYS_RUNNING = 1.0  # requests in the mean
ACCEPTANCE_FELL = 0.05  # of drafted tokens; SE of a block's mean is a point or two
VRAM_MIB = (
    256.0  # vLLM takes its memory at the start and keeps it: what comes later is somebody else's
)
FOLLOWS_US = (
    15 * MINUTE_US
)  # an effect that begins within this after a restart or a change follows it (3.3 b)
APART = 0.1  # prefill took longer by so much more than decoding
CALM = 0.03  # the most that a channel moved which is said to be calm


class Scope(NamedTuple):
    """What a sign looks at: all signs, and one GPU of the target (None: no GPU is known)."""

    signs: Observations
    gpu: GpuComparison | None


def any_of(*found: bool | None) -> bool | None:
    """True where one holds; unknown where none does and one is unknown."""
    return True if True in found else None if None in found else False


def all_of(*found: bool | None) -> bool | None:
    """False where one does not hold; unknown where all others do and one is unknown."""
    return False if False in found else None if None in found else True


def negated(found: bool | None) -> bool | None:
    """Unknown stays unknown."""
    return None if found is None else not found


def _fell(pair: Pair, by: float) -> bool | None:
    ratio = pair.log_ratio
    return None if ratio is None else ratio <= -by


def _rose(pair: Pair, by: float) -> bool | None:
    """By so much; a counter whose past is unknown is compared with none, for a healthy GPU counts
    nothing.
    """
    rise = pair.rise if pair.before is not None else pair.now
    return None if rise is None else rise >= by


# -- GPUs
# ------------------------------------------------------------------------------------------------------------


def thermal_time(look: Scope) -> bool | None:
    """The driver's own count of time spent throttled by heat of core or memory (NVML: SW and HW
    thermal slowdown).
    """
    return None if look.gpu is None else _rose(look.gpu.thermal_duty, DUTY_RISE)


def power_time(look: Scope) -> bool | None:
    """Likewise by the power limit."""
    return None if look.gpu is None else _rose(look.gpu.power_duty, POWER_DUTY_RISE)


def brake_time(look: Scope) -> bool | None:
    """Likewise by the external power brake, which the configured limit never raises (1.1)."""
    return None if look.gpu is None else _rose(look.gpu.brake_duty, DUTY_RISE)


def clock_down(look: Scope) -> bool | None:
    """The busy median of the SM clock is lower."""
    return None if look.gpu is None else _fell(look.gpu.sm_clock_mhz, CLOCK_MOVED)


def clock_far_down(look: Scope) -> bool | None:
    """It is lower by far more than a warm GPU loses by itself."""
    return None if look.gpu is None else _fell(look.gpu.sm_clock_mhz, CLOCK_LOW)


def memory_clock_down(look: Scope) -> bool | None:
    """The memory's clock is lower."""
    return None if look.gpu is None else _fell(look.gpu.mem_clock_mhz, CLOCK_MOVED)


def hotter(look: Scope) -> bool | None:
    """The core is hotter than it was, and than its power explains; where that is not learnt yet,
    hotter at no more power.
    """
    gpu = look.gpu
    if gpu is None:
        return None
    rise, power = gpu.temp_c.rise, gpu.power_w.log_ratio
    if (
        gpu.residual_c is not None
    ):  # after a fall of power a residual may be left for a while: the heat sink is slow
        return all_of(gpu.residual_c >= HOTTER_C, None if rise is None else rise >= HOTTER_C / 2)
    return None if rise is None else rise >= HOTTER_C and (power is None or power <= POWER_MOVED)


def cooler(look: Scope) -> bool | None:
    """The core is no hotter than it was."""
    rise = None if look.gpu is None else look.gpu.temp_c.rise
    return None if rise is None else rise <= COOL_C


def core_at_fault(look: Scope) -> bool | None:
    """The core is hotter than it was, or than its power explains: a governor that holds it at its
    limit hides the rise.
    """
    residual = None if look.gpu is None else look.gpu.residual_c
    return any_of(negated(cooler(look)), None if residual is None else residual >= HOTTER_C)


def near_limit(look: Scope) -> bool | None:
    """The GPU says that it is a few degrees from a slowdown threshold."""
    margin = None if look.gpu is None else look.gpu.margin_c.now
    return None if margin is None else margin <= NEAR_LIMIT_C


def memory_apart(look: Scope) -> bool | None:
    """The memory is further above the core than it was; where the GPU does not tell: throttled by
    heat though the core is no hotter.
    """
    gpu = look.gpu
    if gpu is None:
        return None
    memory, core = gpu.mem_temp_c.rise, gpu.temp_c.rise
    if memory is not None and core is not None:
        return memory - core >= MEMORY_APART_C
    return all_of(thermal_time(look), negated(core_at_fault(look)))


def limit_fell(look: Scope) -> bool | None:
    """The power limit in force is lower."""
    return None if look.gpu is None else _fell(look.gpu.power_limit_w, LIMIT_FELL)


def power_at_limit(look: Scope) -> bool | None:
    """It draws about what it may."""
    gpu = look.gpu
    if gpu is None or gpu.power_w.now is None or gpu.power_limit_w.now is None:
        return None
    return gpu.power_w.now >= 0.9 * gpu.power_limit_w.now


def power_down(look: Scope) -> bool | None:
    """It draws less at its ceiling; where that was not seen, by the median of busy readings."""
    gpu = look.gpu
    if gpu is None:
        return None
    found = _fell(gpu.top_power_w, POWER_MOVED)
    return _fell(gpu.power_w, POWER_MOVED) if found is None else found


def util_down(look: Scope) -> bool | None:
    """Kernels run for less of the time, even when the GPU works hardest: it is kept waiting.

    A GPU that is kept waiting for long may never work hard any more. Then by the mean, where a
    request runs at all times: less load than that leaves a GPU idle for a better reason.
    """
    if look.gpu is None:
        return None
    found = _fell(look.gpu.top_util, UTIL_MOVED)
    if found is not None or (look.signs.flow.running.now or 0.0) < ALWAYS_RUNNING:
        return found
    return _fell(look.gpu.util, STILL_BUSY)


def still_busy(look: Scope) -> bool | None:
    """Kernels run for no less of the time than before: it is not idle, whatever its clock."""
    if look.gpu is None:
        return None
    util = look.gpu.util.log_ratio
    return util > -STILL_BUSY if util is not None else negated(_fell(look.gpu.top_util, UTIL_MOVED))


def works_alone(look: Scope) -> bool | None:
    """The GPU works although the server does not: its idlest looks show kernels, and fewer
    requests run than would keep it busy.

    Where on average less than so many requests run, at least the rest of the time none does; then a
    GPU of one server is idle.
    """
    running = look.signs.flow.running.now
    if look.gpu is None or running is None or running > FEW_RUNNING:
        return None
    return _rose(look.gpu.idle_util, WORKS_ALONE)


def more_memory(look: Scope) -> bool | None:
    """Video memory in use has grown without a new start; or another process was seen on the
    GPU.
    """
    if look.signs.neighbours is not None:
        return look.signs.neighbours
    rise = None if look.gpu is None else look.gpu.vram_used_mib.rise
    return None if rise is None else rise >= VRAM_MIB


# -- the server
# -------------------------------------------------------------------------------------------------------


def waits(look: Scope) -> bool | None:
    """Requests wait to be scheduled, more than before."""
    flow = look.signs.flow
    longer = None
    if flow.queue_ms.now is not None:
        longer = flow.queue_ms.now - (flow.queue_ms.before or 0.0) >= QUEUE_MS
    return any_of(_rose(flow.waiting, WAITING), longer)


def acceptance_fell(look: Scope) -> bool | None:
    """Fewer of the drafted tokens are taken."""
    pair = look.signs.flow.spec_acceptance
    return None if pair.rise is None else pair.rise <= -ACCEPTANCE_FELL


def cache_missed(look: Scope) -> bool | None:
    """The second of two equal prompts finds nothing of the first (prefix.py)."""
    return "cache" in look.signs.effects or (
        False if look.signs.flow.cached_share.now is not None else None
    )


# -- the story
# --------------------------------------------------------------------------------------------------------


def restarted(look: Scope) -> bool | None:
    """It begins with a new start of the process."""
    return look.signs.restarted_us is not None


def digest_changed(look: Scope) -> bool | None:
    """It begins with a change of what is served, or how."""
    return look.signs.digest_changed_us is not None


def grows(look: Scope) -> bool | None:
    """The loss grows steadily with the uptime of the process."""
    return look.signs.slope_per_h is not None and look.signs.slope_per_h < 0


def start_landed(look: Scope) -> bool | None:
    """This start of the process is slower as a whole than starts of this server scatter
    (starts.py).
    """
    return "start" in look.signs.effects


def is_felt(look: Scope, channels: Iterable[str]) -> bool:
    """One of these channels moved."""
    return any(channel in look.signs.effects for channel in channels)


def speed_felt(look: Scope) -> bool | None:
    """Decoding or prefill is slower."""
    return is_felt(look, ("decode", "ttft", "steps", "start"))


def decode_felt(look: Scope) -> bool | None:
    """Decoding is slower."""
    return is_felt(look, ("decode", "steps", "start"))


def wait_felt(look: Scope) -> bool | None:
    """First tokens come later, or not in time, while decoding is as it was: slow decoding makes a
    queue, a queue no slow decoding.
    """
    return is_felt(look, ("level", "ttft")) and not is_felt(look, ("decode", "start"))


def apart(look: Scope) -> bool | None:
    """Prefill took longer by clearly more than decoding did: clocks and slow states move both, a
    kernel only its own.

    Both as ratios of time, beyond their intervals. A constant part of the first token's time
    (network, host) only hides some of it.
    """
    effects = look.signs.effects
    ttft, decode = (
        effects.get("ttft"),
        effects.get("start") or effects.get("decode") or effects.get("steps"),
    )
    if ttft is None:
        return False if "ttft" in look.signs.calm else None
    if decode is None and "decode" not in look.signs.calm:
        return None
    prefill_took = 1.0 + ttft.shift.low_pct / 100.0
    decode_took = 1.0 / (1.0 + decode.shift.low_pct / 100.0) if decode is not None else 1.0 + CALM
    return prefill_took >= decode_took * (1.0 + APART)
