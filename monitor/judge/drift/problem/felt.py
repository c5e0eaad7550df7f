"""Slower decoding, first tokens, engine steps or starts as one problem, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from monitor.judge.drift.cause.attribution import Attribution, attribute, readings
from monitor.judge.drift.cause.gpu_predicates import clock_down
from monitor.judge.drift.cause.scope import Scope
from monitor.judge.drift.evidence import Effect, Observations
from monitor.judge.drift.problem.problem import (
    GPU_FAMILIES,
    CauseEvidence,
    Observed,
    Problem,
    family,
    name_of,
)
from monitor.judge.drift.settings import HOUR_US
from monitor.model import Cause, Kind, Severity

# in this time the newest attribution counts, after it only one with better evidence
SETTLE_US = HOUR_US
DECIDE_US = 24 * HOUR_US  # after this time before and now have nothing new to say
CHANNEL_ORDER = ("start", "decode", "ttft", "steps", "cache", "level")


def felt_problem(
    seen: Observed, gpus: Mapping[str, Problem], held: Mapping[str, Problem], now_us: int
) -> Problem | None:
    """Returns what is slower as one problem.

    If a GPU explains it, it is that GPU's problem, by its name. But what was open before its cause
    was known continues under its own name: the cause is refined, and no message says that it was
    resolved.
    """
    if not seen.effects:
        return None
    why, first = attribute(seen.observations), _felt_first(held, gpus)
    by_gpu = _explaining(seen, gpus)
    if by_gpu is not None and why.cause is not Cause.CACHE_LOST:
        louder = _louder(by_gpu, seen, why)
        return louder if first is None or by_gpu.name in held else _under(first, louder)
    before = first or held.get(name_of(why.cause))
    cause, kind, score = steady(why, before, now_us)
    shown = kind if first is None or kind is Kind.CONFIG_CHANGE else first.kind
    begun_us = [effect.since_us for effect in seen.effects.values()]
    return Problem(
        name=name_of(cause) if first is None else first.name,
        kind=shown,
        subject=_subject(shown, seen, why, before),
        severity=max((e.severity for e in seen.effects.values()), key=lambda s: s.rank),
        since_us=min(begun_us + ([] if before is None else [before.since_us])),
        opened_us=now_us if before is None else before.opened_us,
        cause=cause,
        score=score,
        effects=listed(seen.effects),
        calm=seen.observations.calm,
        evidence=evidence_of(seen.observations, why),
    )


def _felt_first(held: Mapping[str, Problem], gpus: Mapping[str, Problem]) -> Problem | None:
    """The open problem that was felt, unless it is a GPU's own warning now."""
    families = ("main", *GPU_FAMILIES)
    open_now = [
        problem
        for name, problem in held.items()
        if family(name) in families and (name == "main" or name not in gpus)
    ]
    found = sorted(open_now, key=lambda problem: families.index(family(problem.name)))
    return next((problem for problem in found if problem.effects), None)


def _under(first: Problem, problem: Problem) -> Problem:
    """The problem as what is known by now of one that was open before it."""
    return replace(
        problem,
        name=first.name,
        kind=first.kind,
        subject=first.subject,
        since_us=min(first.since_us, problem.since_us),
        opened_us=first.opened_us,
    )


def _explaining(seen: Observed, gpus: Mapping[str, Problem]) -> Problem | None:
    """The GPU problem that explains the effects: a warning or a page, of a GPU whose clock is not
    known to be unchanged.
    """
    loud = [
        problem
        for problem in gpus.values()
        if problem.severity is not Severity.INFO and problem.cause is not Cause.UNEXPLAINED
    ]
    for problem in sorted(loud, key=lambda problem: -problem.score):
        scopes = [
            Scope(seen.observations, gpu)
            for gpu in seen.observations.gpus
            if gpu.uuid in problem.gpus
        ]
        if any(clock_down(scope) is not False for scope in scopes):
            return problem
    return None


def _louder(problem: Problem, seen: Observed, why: Attribution) -> Problem:
    """An early warning that is felt now: a page."""
    return replace(
        problem,
        severity=Severity.PAGE,
        since_us=min(problem.since_us, *(effect.since_us for effect in seen.effects.values())),
        effects=listed(seen.effects),
        evidence=evidence_of(seen.observations, why),
    )


def steady(why: Attribution, before: Problem | None, now_us: int) -> tuple[Cause, Kind, float]:
    """Returns cause, kind and score as they are reported.

    In the first hour these are the newest. Later the earlier ones stay, unless they are refuted or
    others have better evidence.
    """
    if before is None or before.cause in {None, Cause.UNEXPLAINED}:
        return why.cause, why.kind, why.score
    age_us = now_us - before.opened_us
    better = age_us < SETTLE_US or why.score > before.score + 0.5 or before.cause in why.refuted
    if why.score > 0 and age_us < DECIDE_US and better:
        return why.cause, why.kind, why.score
    return before.cause or Cause.UNEXPLAINED, before.kind, before.score


def _subject(kind: Kind, seen: Observed, why: Attribution, before: Problem | None) -> str:
    if before is not None and before.kind is kind:
        return before.subject
    if kind in {Kind.THERMAL, Kind.POWER} and why.gpu is not None:
        return why.gpu.uuid
    if kind is Kind.CONFIG_CHANGE:
        return "fingerprint"
    if kind is Kind.SERVICE_LEVEL and seen.levels:
        return worst_level(seen.levels)
    first = next((channel for channel in CHANNEL_ORDER if channel in seen.effects), "decode")
    return {"start": "decode", "cache": "ttft", "steps": "decode"}.get(first, first)


def worst_level(levels: Mapping[str, Effect]) -> str:
    """Returns the traffic class that has waited too long since the earliest time."""
    return min(levels, key=lambda name: (levels[name].since_us, name))


def listed(effects: Mapping[str, Effect]) -> tuple[Effect, ...]:
    """Returns the effects in the order in which they are reported."""
    return tuple(effects[channel] for channel in CHANNEL_ORDER if channel in effects)


def evidence_of(observed: Observations, why: Attribution) -> CauseEvidence:
    """Returns what the cause rests on."""
    return CauseEvidence(
        gpu=None if why.gpu is None else why.gpu.uuid,
        seen=why.seen,
        readings=readings(observed, why.gpu),
        slope_per_h=observed.slope_per_h,
        also_possible=why.also,
        missing=why.missing,
    )
