"""What is open, as findings with a sentence for three at night: how much, since when, why, what
proves it, and where to look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from monitor.judge.drift.problem.problem import Problem
from monitor.model import Cause, Finding, Kind, Severity

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_TOLD = 3  # sentences about GPUs
MOST_MISSING = 2  # readings that are named at three at night
METRICS = {
    "decode_tok_s": "decode rate",
    "ttft_ms": "time to first token",
    "engine_steps_s": "engine steps a second",
    "prompt_tokens": "prompt length",
    "cached_share": "cached share of a repeated prompt",
}
CAUSES: Mapping[Cause, str] = {
    Cause.HEAT: "the GPU is held back by heat",
    Cause.MEMORY_HEAT: "the GPU is held back by the heat of its memory",
    Cause.POWER_CAP: "the GPU is held back by its power limit",
    Cause.POWER_BRAKE: "the power brake holds the GPU back from outside",
    Cause.HIDDEN_LIMIT: (
        "something holds the clock down without a reason bit: firmware or power supply"
    ),
    Cause.QUEUEING: "requests wait in the queue",
    Cause.CONFIG_CHANGE: "the configuration changed just before",
    Cause.KERNEL_FALLBACK: "other kernels run, at the same clock",
    Cause.CACHE_LOST: "the prefix cache finds nothing any more",
    Cause.UPTIME_DECAY: "it grows with the uptime of the process",
    Cause.SPECULATION: "fewer drafted tokens are accepted",
    Cause.NEIGHBOUR: "another process works on the GPU",
    Cause.HOST_BOUND: "the GPU waits for the processor",
    Cause.SLOW_STATE: "this start of the process landed slow, although nothing changed",
    Cause.UNEXPLAINED: "not known",
}
#: Readings that prove a cause, in the order in which they are told.
PROOFS: Mapping[Cause, tuple[str, ...]] = {
    Cause.HEAT: ("thermal_duty", "temp_c", "margin_c", "thermal_residual_c", "sm_clock_mhz"),
    Cause.MEMORY_HEAT: ("thermal_duty", "mem_temp_c", "temp_c", "sm_clock_mhz"),
    Cause.POWER_CAP: ("power_limit_w", "power_w", "power_duty", "sm_clock_mhz"),
    Cause.POWER_BRAKE: ("brake_duty", "sm_clock_mhz", "power_w"),
    Cause.HIDDEN_LIMIT: ("sm_clock_mhz", "power_w", "util", "temp_c"),
    Cause.QUEUEING: ("waiting", "queue_ms", "running", "kv_usage"),
    Cause.KERNEL_FALLBACK: ("top_power_w", "sm_clock_mhz"),
    Cause.CACHE_LOST: ("cached_share",),
    Cause.SPECULATION: ("spec_acceptance",),
    Cause.NEIGHBOUR: ("vram_used_mib", "idle_util", "power_w"),
    Cause.HOST_BOUND: ("top_util", "sm_clock_mhz"),
    Cause.SLOW_STATE: ("sm_clock_mhz", "top_power_w"),
    Cause.UPTIME_DECAY: ("sm_clock_mhz",),
}
READINGS: Mapping[str, tuple[str, str, float, int]] = {  # words, unit, scale, digits
    "thermal_duty": ("throttled by heat", " % of the time", 100.0, 0),
    "power_duty": ("at the power cap", " % of the time", 100.0, 0),
    "brake_duty": ("braked", " % of the time", 100.0, 0),
    "temp_c": ("core", " °C", 1.0, 0),
    "mem_temp_c": ("memory", " °C", 1.0, 0),
    "margin_c": ("margin", " °C", 1.0, 0),
    "thermal_residual_c": ("hotter than its power explains by", " °C", 1.0, 0),
    "sm_clock_mhz": ("SM clock", " MHz", 1.0, 0),
    "mem_clock_mhz": ("memory clock", " MHz", 1.0, 0),
    "power_w": ("power", " W", 1.0, 0),
    "top_power_w": ("power at full work", " W", 1.0, 0),
    "power_limit_w": ("power limit", " W", 1.0, 0),
    "vram_used_mib": ("memory in use", " MiB", 1.0, 0),
    "util": ("utilisation", " %", 100.0, 0),
    "top_util": ("utilisation at most", " %", 100.0, 0),
    "idle_util": ("utilisation at rest", " %", 100.0, 0),
    "waiting": ("waiting", " requests", 1.0, 1),
    "running": ("running", "", 1.0, 1),
    "kv_usage": ("KV cache", " %", 100.0, 0),
    "queue_ms": ("queue", " ms", 1.0, 0),
    "spec_acceptance": ("accepted", " % of drafted tokens", 100.0, 0),
    "cached_share": ("cached of a repeated prompt", " %", 100.0, 0),
}


def finding_of(trouble: Problem, target: str) -> Finding:
    """The finding of one trouble."""
    evidence = {key: value for key, value in trouble.evidence.items() if key != "effects"}
    if "effects" in trouble.evidence:
        evidence["effects"] = [_dated(effect) for effect in trouble.evidence["effects"]]
    return Finding(
        kind=Kind(trouble.kind),
        target=target,
        subject=trouble.subject,
        severity=Severity(trouble.severity),
        summary=summary_of(trouble, target),
        since=_time(trouble.since_us),
        cause=None if trouble.cause is None else Cause(trouble.cause),
        evidence=evidence,
    )


def _dated(effect: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{key: value for key, value in effect.items() if key != "since_us"},
        "since": _time(effect["since_us"]).isoformat(),
    }


def _time(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def summary_of(trouble: Problem, target: str) -> str:
    """One paragraph for a person."""
    parts = [_what(trouble, target)]
    proof = _proof(trouble)
    if trouble.told:
        more = [
            _shorter(trouble.told[n], trouble.told[:n])
            for n in range(1, min(len(trouble.told), MOST_TOLD))
        ]
        parts += [_begun(trouble.told[0]), *more]
    elif trouble.cause is not None and trouble.kind != Kind.CONFIG_CHANGE.value:
        parts.append(
            f"Cause: {CAUSES.get(Cause(trouble.cause), trouble.cause)}{f' ({proof})' if proof else ''}."
        )
    missing = trouble.evidence.get("missing", ())
    if missing and trouble.cause == Cause.UNEXPLAINED:
        others = (
            f"; and {len(missing) - MOST_MISSING} more readings (in the evidence)"
            if len(missing) > MOST_MISSING
            else ""
        )
        parts.append(
            "It cannot be told from other causes without "
            f"{'; '.join(missing[:MOST_MISSING])}{others}."
        )
    if trouble.look_at and not trouble.told:
        parts.append(f"Look at {trouble.look_at}.")
    return " ".join(parts)


def _shorter(text: str, before: Sequence[str]) -> str:
    """A further sentence: what to expect and where to look was said, what was read of the same GPU
    too, and which GPU it is, if the sentence just before is about it.
    """
    words = text.partition(". ")[0].removesuffix(".")
    head, _, readings = words.rpartition(": ")
    if head and any(f": {readings}" in told for told in before if _gpu(told) == _gpu(text)):
        words = head
    return (
        f"It {' '.join(words.split(' ')[2:])}."
        if _gpu(before[-1]) == _gpu(text)
        else _begun(f"{words}.")
    )


def _gpu(sentence: str) -> list[str]:
    """The two words that a GPU's sentence begins with."""
    return sentence.split(" ")[:2]


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _what(trouble: Problem, target: str) -> str:
    since = f"since {_time(trouble.since_us):%Y-%m-%d %H:%M} UTC"
    evidence = trouble.evidence
    if trouble.kind == Kind.SERVICE_LEVEL.value:
        told = [
            f"{name} ({_level(figures)})" for name, figures in evidence.get("levels", {}).items()
        ]
        return (
            f"{', '.join(told) or trouble.subject} on {target} waits too long for the first "
            f"token {since}."
        )
    if trouble.kind == Kind.WORKLOAD_SHIFT.value:
        return (
            f"The prompts of {target} have become longer {since}: {evidence['tokens']} tokens "
            "a request in the last hour, at most "
            f"{evidence['usual_tokens']} in any hour before."
        )
    moved = list(_moved(evidence.get("effects", ())).values())
    if trouble.kind == Kind.CONFIG_CHANGE.value:
        what = (
            f"The configuration of {target} changed at {_time(trouble.since_us):%Y-%m-%d %H:%M} UTC"
        )
        return (
            f"{what}: {', '.join(moved)}."
            if moved
            else f"{what}; it is being compared with before."
        )
    if moved:  # a GPU may have been in trouble for long before anything is felt
        felt_us = min(effect["since_us"] for effect in evidence["effects"])
        return (
            f"{target}: {', '.join(moved)} since "
            f"{_time(max(felt_us, trouble.since_us)):%Y-%m-%d %H:%M} UTC."
        )
    felt = (
        "not felt yet"
        if "decode" in evidence.get("calm", ())
        else "whether decoding is slower for it cannot be told yet"
    )
    return f"{target}: {since}; {felt}."


def _level(figures: Mapping[str, Any]) -> str:
    waited = figures.get("waited_ms")
    return f"{figures.get('over')} of the last {figures.get('of')} canaries" + (
        f", {waited / 1000:.1f} s" if waited is not None else ""
    )


def _moved(effects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Each metric once: a start that is slow shows in the decode rate too, and is told as the
    start.
    """
    told: dict[str, str] = {}
    for effect in effects:
        cached = effect["channel"] == "cache" and effect["metric"] == "ttft_ms"
        name = (
            "a cached prompt's time to first token"
            if cached
            else METRICS.get(effect["metric"], effect["metric"])
        )
        told.setdefault(
            name,
            (
                f"{name} {effect['change_pct']:+.1f} % ({effect['low_pct']:+.1f} to "
                f"{effect['high_pct']:+.1f})"
            ),
        )
    return told


def _proof(trouble: Problem) -> str:
    """The readings that prove the cause, before and now."""
    if trouble.cause is None:
        return ""
    readings = trouble.evidence.get("readings", {})
    told = [
        _reading(name, readings[name])
        for name in PROOFS.get(Cause(trouble.cause), ())
        if name in readings
    ]
    if "slope_pct_per_h" in trouble.evidence and trouble.cause == Cause.UPTIME_DECAY:
        told.insert(0, f"{trouble.evidence['slope_pct_per_h']:+.2f} % an hour since the start")
    return ", ".join(told)


def _reading(name: str, pair: Mapping[str, float | None]) -> str:
    words, unit, scale, digits = READINGS[name]
    now, before = pair.get("now"), pair.get("before")
    text = f"{words} {(now or 0.0) * scale:.{digits}f}{unit}"
    if name == "thermal_residual_c" or before is None:
        return text
    if round(before * scale, digits) == round((now or 0.0) * scale, digits):
        return f"{text} as before"
    return f"{words} {before * scale:.{digits}f} → {(now or 0.0) * scale:.{digits}f}{unit}"
