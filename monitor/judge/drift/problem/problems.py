"""One problem, one finding: what the parts observe is combined, attributed to a cause, and kept
steady while it is open. Pure.

A queue behind a batch job is a service level and not slow decoding as well; an early warning of a
GPU and the slower decoding that follows are one incident, which becomes a page; three GPUs in one
hot room are one. What was named first stays, unless there is better evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from monitor.judge.drift.cause.attribution import attribute
from monitor.judge.drift.problem.felt import (
    evidence_of,
    felt_problem,
    listed,
    steady,
    worst_level,
)
from monitor.judge.drift.problem.gpu_problems import gpu_problems
from monitor.judge.drift.problem.problem import Observed, Problem, Prompts, family, name_of
from monitor.judge.drift.settings import MINUTE_US
from monitor.model import Cause, Kind, Severity

# a changed digest waits this long for what may explain it: a lowered power limit is part of it
WAIT_US = 5 * MINUTE_US


def judge(seen: Observed, held: Mapping[str, Problem], now_us: int) -> list[Problem]:
    """Returns what is open now, each problem once."""
    gpus = gpu_problems(seen, held, now_us)
    felt = felt_problem(seen, gpus, held, now_us)
    if felt is not None:
        gpus = {name: problem for name, problem in gpus.items() if not _is_part_of(felt, problem)}
    low_clock = gpus.pop("main", None)
    found = gpus if felt is None else {**gpus, felt.name: felt}
    level = _level(seen, found, held, now_us)
    if level is not None and level.cause is Cause.QUEUEING and _is_the_queue(found.get("main")):
        del found["main"]
    if low_clock is not None:
        found.setdefault("main", low_clock)
    others = (level, _workload(seen, held, now_us), _config(seen, found, held, now_us))
    return [*found.values(), *(problem for problem in others if problem is not None)]


def _is_part_of(felt: Problem, gpu: Problem) -> bool:
    """Whether a GPU's warnings explain the problem that is felt: by its GPUs, or if none warned of
    it, by its cause.
    """
    cause_name = name_of(felt.cause or Cause.UNEXPLAINED)
    if felt.warnings:
        return family(gpu.name) == cause_name and bool(gpu.gpus & felt.gpus)
    return gpu.name == cause_name


def _is_the_queue(main: Problem | None) -> bool:
    """Whether slow first tokens are those of a queue that is reported as a service level."""
    return main is not None and main.cause in {Cause.QUEUEING, Cause.UNEXPLAINED}


# -- levels


def _level(
    seen: Observed, found: dict[str, Problem], held: Mapping[str, Problem], now_us: int
) -> Problem | None:
    """Classes that wait too long, as one problem; None if another problem that began first explains
    it, which becomes a page in `found`.
    """
    if not seen.levels:
        return None
    explaining = next(
        (p for p in found.values() if p.effects and p.cause is not Cause.UNEXPLAINED), None
    )
    before = held.get("level")
    if explaining is None or explaining.cause is Cause.QUEUEING or before is not None:
        return _level_problem(seen, explaining, before, now_us)
    levels = dict(seen.levels)
    found[explaining.name] = replace(explaining, severity=Severity.PAGE, levels=levels)
    return None


def _level_problem(
    seen: Observed, explaining: Problem | None, before: Problem | None, now_us: int
) -> Problem:
    worst = worst_level(seen.levels)
    observed = replace(
        seen.observations, effects={**seen.observations.effects, "level": seen.levels[worst]}
    )
    why = attribute(observed)
    cause, _, score = steady(why, before, now_us)
    if explaining is not None and why.cause is Cause.UNEXPLAINED:
        cause, score = explaining.cause or Cause.UNEXPLAINED, explaining.score
    # a class that is served in time again is resolved, whichever class waits now
    goes_on = before if before is not None and before.subject in seen.levels else None
    subject = worst if goes_on is None else goes_on.subject
    since_us = seen.levels[subject].since_us
    return Problem(
        name="level",
        kind=Kind.SERVICE_LEVEL,
        subject=subject,
        severity=Severity.PAGE,
        since_us=since_us if goes_on is None else min(since_us, goes_on.since_us),
        opened_us=now_us if goes_on is None else goes_on.opened_us,
        cause=cause,
        score=score,
        effects=listed({"level": seen.levels[worst]}),
        calm=observed.calm,
        evidence=evidence_of(observed, why),
        levels=dict(seen.levels),
        also_slower=tuple(seen.effects.values()),
    )


# -- workload, configuration


def _workload(seen: Observed, held: Mapping[str, Problem], now_us: int) -> Problem | None:
    if seen.workload is None:
        return None
    since_us, baseline, now = seen.workload
    return Problem(
        name="workload",
        kind=Kind.WORKLOAD_SHIFT,
        subject="prompt_tokens",
        severity=Severity.INFO,
        since_us=since_us,
        opened_us=held["workload"].opened_us if "workload" in held else now_us,
        prompts=Prompts(baseline=baseline, now=now),
    )


def _config(
    seen: Observed, found: Mapping[str, Problem], held: Mapping[str, Problem], now_us: int
) -> Problem | None:
    """A changed digest while it is compared with before, unless an open problem reports it."""
    if seen.changed_us is None or now_us < seen.changed_us + WAIT_US:
        return None
    if any(_reports_the_change(problem) for problem in found.values()):
        return None
    return Problem(
        name="config",
        kind=Kind.CONFIG_CHANGE,
        subject="fingerprint",
        severity=Severity.INFO,
        since_us=seen.changed_us,
        opened_us=held["config"].opened_us if "config" in held else now_us,
        cause=Cause.CONFIG_CHANGE,
        compared=dict(seen.comparisons),
    )


def _reports_the_change(problem: Problem) -> bool:
    """Whether it is the change itself, or a lowered power limit, which is in the digest."""
    lowered = any(warning.condition == "power_limit" for warning in problem.warnings)
    return problem.kind is Kind.CONFIG_CHANGE or problem.cause is Cause.POWER_CAP or lowered
