"""One root trouble, one finding: what the parts see is put together, given a cause, and kept steady
while it is open. Pure.

A queue behind a batch job is a service level and not slow decoding too; an early warning of a GPU
and the slower decoding that follows are one incident, which gets louder; three GPUs in one hot
room are one. What was named first stays, unless more is proven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monitor.judge.drift.cause.attribution import Attribution, attribute, figures
from monitor.judge.drift.cause.predicates import Scope, clock_down
from monitor.judge.drift.evidence import Effect, Observations
from monitor.judge.drift.problem.gpu_problems import gpu_troubles
from monitor.judge.drift.problem.problem import (
    KINDS_OF_GPUS,
    LOUDNESS,
    Observed,
    Problem,
    family,
    name_of,
)
from monitor.judge.drift.settings import HOUR_US, MINUTE_US
from monitor.model import Cause, Kind, Severity

# so long the newest attribution counts; after that only a better proven one replaces what was named
SETTLE_US = HOUR_US
DECIDE_US = 24 * HOUR_US  # after so long nothing new can be learnt from before and after
WAIT_US = (
    5 * MINUTE_US
)  # a changed digest waits so long for what it may come from: a lowered power limit is in it
CHANNEL_ORDER = ("start", "decode", "ttft", "steps", "cache")


def judge(seen: Observed, held: Mapping[str, Problem], now_us: int) -> list[Problem]:
    """What is open now, each trouble once."""
    gpus = gpu_troubles(seen, held, now_us)
    main = _main(seen, gpus, held, now_us)
    if main is not None:
        gpus = {name: trouble for name, trouble in gpus.items() if not _is_told_with(main, trouble)}
    if main is not None and main.name != "main":
        gpus[main.name], main = main, None
    speed = gpus.pop("main", None)
    level = _level(seen, main, gpus, held, now_us)
    if (
        level is not None
        and main is not None
        and level.cause == Cause.QUEUEING
        and main.cause in {Cause.QUEUEING, Cause.UNEXPLAINED}
    ):
        main = None
    found = [
        *gpus.values(),
        main or speed,
        level,
        _workload(seen, held, now_us),
        _config(seen, main, gpus, held, now_us),
    ]
    return [trouble for trouble in found if trouble is not None]


def _is_told_with(main: Problem, gpu: Problem) -> bool:
    """Whether what a GPU warns of is what explains the trouble that is felt: by its GPUs, or
    where nobody warned, by its cause.
    """
    if "gpus" in main.evidence:
        return family(gpu.name) == name_of(Cause(str(main.cause))) and bool(
            {*gpu.evidence["gpus"]} & {*main.evidence["gpus"]}
        )
    return gpu.name == name_of(Cause(str(main.cause)))


# -- speed
# ------------------------------------------------------------------------------------------------------------


def _main(
    seen: Observed, gpus: Mapping[str, Problem], held: Mapping[str, Problem], now_us: int
) -> Problem | None:
    """Slower decoding, first tokens, engine steps or starts, and why. Where a GPU explains it, it
    is that GPU's trouble, by its name; but what was open before its cause was known goes on under
    its own name: the cause is refined, and nobody is told that it was over.
    """
    if not seen.effects:
        return None
    why, first = attribute(seen.signs), _felt_first(held, gpus)
    by_gpu = _explaining(seen, gpus)
    if by_gpu is not None and why.cause is not Cause.CACHE_LOST:
        louder = _louder(by_gpu, seen, why)
        return louder if first is None or by_gpu.name in held else _under(first, louder)
    before = first or held.get(name_of(why.cause))
    cause, kind, score = _steady(why, before, now_us)
    name = name_of(cause) if first is None else first.name
    kind = kind if first is None or kind is Kind.CONFIG_CHANGE else Kind(first.kind)
    subject = _subject(kind, seen, why, before)
    severity = max((effect.severity for effect in seen.effects.values()), key=LOUDNESS.index)
    since_us = min(
        [effect.since_us for effect in seen.effects.values()]
        + ([before.since_us] if before is not None else [])
    )
    opened_us = before.opened_us if before is not None else now_us
    evidence = evidence_of(seen.effects, seen.signs, why)
    return Problem(
        name, kind, subject, severity, since_us, opened_us, cause, score, evidence, [], why.look_at
    )


def _felt_first(held: Mapping[str, Problem], gpus: Mapping[str, Problem]) -> Problem | None:
    """What was felt and is open, and is no GPU's own warning now."""
    families = ("main", *KINDS_OF_GPUS)
    open_now = [
        trouble
        for name, trouble in held.items()
        if family(name) in families and (name == "main" or name not in gpus)
    ]
    found = sorted(open_now, key=lambda trouble: families.index(family(trouble.name)))
    return next((trouble for trouble in found if "effects" in trouble.evidence), None)


def _under(first: Problem, trouble: Problem) -> Problem:
    """A trouble as what is known by now of one that was open before it."""
    since_us = min(first.since_us, trouble.since_us)
    return replace(
        trouble,
        name=first.name,
        kind=first.kind,
        subject=first.subject,
        since_us=since_us,
        opened_us=first.opened_us,
    )


def _explaining(seen: Observed, gpus: Mapping[str, Problem]) -> Problem | None:
    """The GPU's trouble that slows things down: a warning or a page, and its clock is not known to
    be as it was.
    """
    loud = [
        t for t in gpus.values() if t.severity != Severity.INFO and t.cause != Cause.UNEXPLAINED
    ]
    for trouble in sorted(loud, key=lambda t: -t.score):
        looks = [
            Scope(seen.signs, gpu)
            for gpu in seen.signs.gpus
            if gpu.uuid in trouble.evidence["gpus"]
        ]
        if any(clock_down(look) is not False for look in looks):
            return trouble
    return None


def _louder(trouble: Problem, seen: Observed, why: Attribution) -> Problem:
    """An early warning that is felt now is a page."""
    evidence = {**trouble.evidence, **evidence_of(seen.effects, seen.signs, why)}
    since_us = min(trouble.since_us, *(effect.since_us for effect in seen.effects.values()))
    return Problem(
        trouble.name, trouble.kind, trouble.subject, Severity.PAGE, since_us, trouble.opened_us, trouble.cause, trouble.score, evidence,
        trouble.told, trouble.look_at,
    )  # fmt: skip


def _steady(why: Attribution, before: Problem | None, now_us: int) -> tuple[Cause, Kind, float]:
    """The cause as it is named: the newest in the first hour; later only one that is better proven,
    or where the other is disproven.
    """
    if before is None or before.cause in {None, Cause.UNEXPLAINED}:
        return why.cause, why.kind, why.score
    age_us = now_us - before.opened_us
    better = age_us < SETTLE_US or why.score > before.score + 0.5 or before.cause in why.refuted
    if why.score > 0 and age_us < DECIDE_US and better:
        return why.cause, why.kind, why.score
    return Cause(before.cause), Kind(before.kind), before.score


def _subject(kind: Kind, seen: Observed, why: Attribution, before: Problem | None) -> str:
    if before is not None and before.kind == kind:
        return before.subject
    if kind in {Kind.THERMAL, Kind.POWER} and why.gpu is not None:
        return why.gpu.uuid
    if kind is Kind.CONFIG_CHANGE:
        return "fingerprint"
    if kind is Kind.SERVICE_LEVEL and seen.levels:
        return min(seen.levels, key=lambda name: (seen.levels[name].since_us, name))
    first = next((channel for channel in CHANNEL_ORDER if channel in seen.effects), "decode")
    return {"start": "decode", "cache": "ttft", "steps": "decode"}.get(first, first)


def evidence_of(
    effects: Mapping[str, Effect], signs: Observations, why: Attribution
) -> dict[str, Any]:
    """The numbers a finding rests on. The figure at the top is that of the channel that is listed
    first.
    """
    listed = [effects[channel] for channel in (*CHANNEL_ORDER, "level") if channel in effects]
    evidence: dict[str, Any] = {}
    if listed:
        evidence |= figure(listed[0])
    evidence["effects"] = [
        {"channel": e.channel, **figure(e), "since_us": e.since_us, "test": dict(e.statistic)}
        for e in listed
    ]
    evidence["calm"] = list(signs.calm)
    evidence["seen"] = dict(why.seen)
    evidence["readings"] = figures(signs, why.gpu)
    if signs.slope_per_h is not None:
        evidence["slope_pct_per_h"] = round(100.0 * signs.slope_per_h, 3)
    if why.also:
        evidence["also_possible"] = [cause.value for cause in why.also]
    if why.missing:
        evidence["missing"] = list(why.missing)
    return evidence


def figure(effect: Effect) -> dict[str, Any]:
    """Metric and change in per cent with its interval; of a level, which does not change, the share
    of canaries that waited too long.
    """
    shift = effect.shift
    rounded = [round(value, 2) for value in (shift.change_pct, shift.low_pct, shift.high_pct)]
    names = (
        ("share_pct", "share_low_pct", "share_high_pct")
        if effect.channel == "level"
        else ("change_pct", "low_pct", "high_pct")
    )
    return {"metric": shift.metric, **dict(zip(names, rounded, strict=True))}


# -- levels, workload, configuration
# ----------------------------------------------------------------------------------


def _level(
    seen: Observed,
    main: Problem | None,
    gpus: Mapping[str, Problem],
    held: Mapping[str, Problem],
    now_us: int,
) -> Problem | None:
    """Classes that wait too long, as one trouble; none where something else that is open explains
    it and came first.
    """
    if not seen.levels:
        return None
    before = held.get("level")
    felt = [t for t in (*gpus.values(), main) if t is not None and "effects" in t.evidence]
    explains = next((t for t in felt if t.cause != Cause.UNEXPLAINED), None)
    if explains is not None and explains.cause != Cause.QUEUEING and before is None:
        explains.severity = Severity.PAGE
        explains.evidence["levels"] = {
            name: figure(effect) for name, effect in sorted(seen.levels.items())
        }
        return None
    worst = min(seen.levels, key=lambda name: (seen.levels[name].since_us, name))
    signs = _with_level(seen, seen.levels[worst])
    why = attribute(signs)
    if explains is not None and why.cause is Cause.UNEXPLAINED:
        cause, score = Cause(str(explains.cause)), explains.score
    else:
        cause, _, score = _steady(why, before, now_us)
    evidence = evidence_of({"level": seen.levels[worst]}, signs, why)
    evidence["levels"] = {
        name: {**figure(effect), **effect.statistic} for name, effect in sorted(seen.levels.items())
    }
    if seen.effects:
        evidence["felt_too"] = [{"channel": e.channel, **figure(e)} for e in seen.effects.values()]
    goes_on = (
        before is not None and before.subject in seen.levels
    )  # a class that is well again is over, whoever else waits now
    subject = before.subject if before is not None and goes_on else worst
    since_us = min(
        [seen.levels[subject].since_us]
        + ([before.since_us] if before is not None and goes_on else [])
    )
    opened_us = before.opened_us if before is not None and goes_on else now_us
    return Problem(
        "level",
        Kind.SERVICE_LEVEL,
        subject,
        Severity.PAGE,
        since_us,
        opened_us,
        cause,
        score,
        evidence,
        [],
        why.look_at,
    )


def _with_level(seen: Observed, effect: Effect) -> Observations:
    signs = seen.signs
    return Observations(
        {**signs.effects, "level": effect}, signs.calm, signs.gpus, signs.flow, signs.since_us, signs.restarted_us,
        signs.digest_changed_us, signs.slope_per_h, signs.neighbours,
    )  # fmt: skip


def _workload(seen: Observed, held: Mapping[str, Problem], now_us: int) -> Problem | None:
    if seen.workload is None:
        return None
    since_us, usual, now = seen.workload
    change_pct = round(100.0 * (now / usual - 1.0), 1)
    evidence = {
        "metric": "prompt_tokens",
        "change_pct": change_pct,
        "usual_tokens": round(usual),
        "tokens": round(now),
    }
    opened_us = held["workload"].opened_us if "workload" in held else now_us
    look_at = (
        "whether the probes still ask what users ask: longer prompts need a probe of "
        "their length, and a new pin"
    )
    return Problem(
        "workload",
        Kind.WORKLOAD_SHIFT,
        "prompt_tokens",
        Severity.INFO,
        since_us,
        opened_us,
        None,
        0.0,
        evidence,
        [],
        look_at,
    )


def _config(
    seen: Observed,
    main: Problem | None,
    gpus: Mapping[str, Problem],
    held: Mapping[str, Problem],
    now_us: int,
) -> Problem | None:
    """Only the digest tells that something changed: said while it is being compared with before,
    unless a trouble that is open has it.
    """
    if (
        seen.changed_us is None
        or now_us < seen.changed_us + WAIT_US
        or (main is not None and main.kind == Kind.CONFIG_CHANGE)
    ):
        return None
    held_back = [trouble for trouble in (*gpus.values(), main) if trouble is not None]
    if any(
        t.cause == Cause.POWER_CAP or "power_limit" in t.evidence.get("signs", ())
        for t in held_back
    ):  # the limit is in the digest
        return None
    opened_us = held["config"].opened_us if "config" in held else now_us
    evidence = {"compared": dict(seen.comparisons)}
    look_at = "vllm-canary fingerprint: what changed, and whether it was meant"
    words = ("config", Kind.CONFIG_CHANGE, "fingerprint", Severity.INFO)
    return Problem(
        *words, seen.changed_us, opened_us, Cause.CONFIG_CHANGE, 0.0, evidence, [], look_at
    )
