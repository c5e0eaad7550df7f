"""Predicates on the server, its process and the effects: True, False, or None if unknown."""

from __future__ import annotations

from collections.abc import Iterable

from monitor.judge.drift.cause.scope import Scope, any_of, rose

QUEUE_MS = 50.0  # a longer wait shows in the first token
WAITING = 0.5  # requests, mean of a block
ACCEPTANCE_FELL = 0.05  # of drafted tokens; the standard error of a block's mean is 1 to 2 points
APART = 0.1  # prefill took this much longer than decoding
CALM = 0.03  # the most that a calm channel may have moved


def waits(scope: Scope) -> bool | None:
    """More requests wait to be scheduled, or they wait longer."""
    served = scope.observed.server
    longer = None
    if served.queue_ms.now is not None:
        longer = served.queue_ms.now - (served.queue_ms.before or 0.0) >= QUEUE_MS
    return any_of(rose(served.waiting, WAITING), longer)


def acceptance_fell(scope: Scope) -> bool | None:
    """Fewer of the drafted tokens are accepted."""
    pair = scope.observed.server.spec_acceptance
    return None if pair.rise is None else pair.rise <= -ACCEPTANCE_FELL


def cache_missed(scope: Scope) -> bool | None:
    """The second of two equal prompts no longer hits the prefix cache (server/prefix_cache.py)."""
    if "cache" in scope.observed.effects:
        return True
    return False if scope.observed.server.cached_share.now is not None else None


def restarted(scope: Scope) -> bool | None:
    """The effect follows a new start of the process."""
    return scope.observed.restarted_us is not None


def digest_changed(scope: Scope) -> bool | None:
    """The effect follows a change of the fingerprint."""
    return scope.observed.digest_changed_us is not None


def grows(scope: Scope) -> bool | None:
    """The loss grows steadily with the uptime of the process."""
    return scope.observed.slope_per_h is not None and scope.observed.slope_per_h < 0


def start_landed(scope: Scope) -> bool | None:
    """This start of the process is slower than the scatter of this server's starts
    (speed/starts.py).
    """
    return "start" in scope.observed.effects


def is_felt(scope: Scope, channels: Iterable[str]) -> bool:
    """Whether one of these channels moved."""
    return any(channel in scope.observed.effects for channel in channels)


def speed_felt(scope: Scope) -> bool | None:
    """Decoding or prefill is slower."""
    return is_felt(scope, ("decode", "ttft", "steps", "start"))


def decode_felt(scope: Scope) -> bool | None:
    """Decoding is slower."""
    return is_felt(scope, ("decode", "steps", "start"))


def level_broken(scope: Scope) -> bool | None:
    """A class waits too long for its first token."""
    return is_felt(scope, ("level",))


def wait_felt(scope: Scope) -> bool | None:
    """First tokens are late while decoding is unchanged: slow decoding causes a queue, a queue
    causes no slow decoding.
    """
    return is_felt(scope, ("level", "ttft")) and not is_felt(scope, ("decode", "start"))


def always(_scope: Scope) -> bool | None:
    """True: the cause needs no effect of its own."""
    return True


def apart(scope: Scope) -> bool | None:
    """Prefill took clearly longer than decoding did: a clock or a slow state moves both, a kernel
    only its own phase.

    Both as ratios of time, by the cautious end of their intervals. A constant part of the time to
    first token (network, host) only hides some of it.
    """
    effects, calm = scope.observed.effects, scope.observed.calm
    ttft = effects.get("ttft")
    decode = effects.get("start") or effects.get("decode") or effects.get("steps")
    if ttft is None:
        return False if "ttft" in calm else None
    if decode is None and "decode" not in calm:
        return None
    prefill_took = 1.0 + ttft.shift.low_pct / 100.0
    decode_took = 1.0 / (1.0 + decode.shift.low_pct / 100.0) if decode is not None else 1.0 + CALM
    return prefill_took >= decode_took * (1.0 + APART)
