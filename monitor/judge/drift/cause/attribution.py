"""From observations to a cause with its evidence.

A cause is named only if its predicate holds for a GPU of the target; other observations add to its
weight or reduce it, and the heaviest is named (catalogue.py). If a predicate is unknown because a
reading is missing, and no other cause is found, the cause is `unexplained` with the missing
readings, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.judge.drift.cause.catalogue import CATALOGUE, CauseRule
from monitor.judge.drift.cause.scope import Scope
from monitor.judge.drift.evidence import GpuComparison, Observations, Pair
from monitor.model import Cause, Kind

NO_GPU = "gpu"  # as a missing reading: no GPU is watched


@dataclass(frozen=True, slots=True)
class Attribution:
    """Why, as far as the evidence goes.

    `gpu`: the GPU that shows it. `seen`: the observations that added to its weight. `also`: other
    causes whose predicate holds. `refuted`: causes whose predicate does not. `missing`: the
    readings without which other predicates are unknown, by name.
    """

    cause: Cause
    kind: Kind
    score: float
    gpu: GpuComparison | None = None
    seen: Mapping[str, bool | None] = field(default_factory=dict)
    also: tuple[Cause, ...] = ()
    refuted: tuple[Cause, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tried:
    """What trying every cause on every GPU gives."""

    candidates: list[tuple[float, CauseRule, Scope]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refuted: list[Cause] = field(default_factory=list)


def attribute(observed: Observations) -> Attribution:
    """Returns the heaviest cause whose predicate holds; else `unexplained` with what is missing."""
    scopes = [Scope(observed, gpu) for gpu in observed.gpus] or [Scope(observed, None)]
    tried = _Tried()
    for rule in CATALOGUE:
        _try(rule, scopes, tried)
    if not tried.candidates:
        return Attribution(
            cause=Cause.UNEXPLAINED,
            kind=_kind_of(observed),
            score=0.0,
            gpu=scopes[0].gpu,
            refuted=tuple(tried.refuted),
            missing=_missing(observed, tried.missing),
        )
    (score, rule, scope), *others = sorted(tried.candidates, key=lambda entry: -entry[0])
    return Attribution(
        cause=rule.cause,
        kind=rule.kind,
        score=score,
        gpu=scope.gpu,
        seen={support.name: support.holds(scope) for support in rule.support},
        also=tuple(other.cause for _, other, _ in others),
        refuted=tuple(tried.refuted),
    )


def _try(rule: CauseRule, scopes: list[Scope], tried: _Tried) -> None:
    results = [(rule.predicate(scope), rule.felt(scope), scope) for scope in scopes]
    holding = [scope for holds, felt, scope in results if holds and felt]
    if holding:
        best = max(holding, key=lambda scope: _score(rule, scope))
        tried.candidates.append((_score(rule, best), rule, best))
    elif any(holds is None and felt for holds, felt, _ in results):
        tried.missing += [
            name for name in rule.needs if all(_is_missing(scope, name) for scope in scopes)
        ]
    elif all(holds is False for holds, _, _ in results):
        tried.refuted.append(rule.cause)


def _missing(observed: Observations, names: list[str]) -> tuple[str, ...]:
    """Each missing reading once; without a GPU, the GPU in place of its readings."""
    missing = tuple(dict.fromkeys(names))
    if observed.gpus or not missing:
        return missing
    return (NO_GPU, *(name for name in missing if name == "waiting"))


def _is_missing(scope: Scope, name: str) -> bool:
    """Whether a reading of this GPU or of the server is not known now."""
    if name in SERVER_READINGS:
        return reading(scope.observed, scope.gpu, name).now is None
    return scope.gpu is None or reading(scope.observed, scope.gpu, name).now is None


def _score(rule: CauseRule, scope: Scope) -> float:
    return rule.weight + sum(s.weight for s in rule.support if s.holds(scope))


def _kind_of(observed: Observations) -> Kind:
    """Returns the kind of an unexplained problem: by what was felt."""
    channels = set(observed.effects)
    if channels <= {"level"}:
        return Kind.SERVICE_LEVEL
    return Kind.SLOW_START if channels == {"start"} else Kind.SPEED


GPU_READINGS = (
    "temp_c",
    "mem_temp_c",
    "margin_c",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "util",
    "power_w",
    "power_limit_w",
    "vram_used_mib",
    "thermal_duty",
    "power_duty",
    "brake_duty",
    "top_util",
    "top_power_w",
    "idle_util",
)
SERVER_READINGS = (
    "running",
    "waiting",
    "kv_usage",
    "queue_ms",
    "prefill_ms",
    "preemptions",
    "steps_s",
    "spec_acceptance",
    "prompt_len",
    "cached_share",
)


def reading(observed: Observations, gpu: GpuComparison | None, name: str) -> Pair:
    """Returns one reading of the GPU or of the server by its name."""
    pair: Pair = getattr(observed.server if name in SERVER_READINGS else gpu, name)
    return pair


def readings(observed: Observations, gpu: GpuComparison | None) -> dict[str, Pair]:
    """Returns the readings that are known now, before and now, by name."""
    names = SERVER_READINGS if gpu is None else (*GPU_READINGS, *SERVER_READINGS)
    pairs = {name: reading(observed, gpu, name) for name in names}
    found = {name: pair for name, pair in pairs.items() if pair.now is not None}
    if gpu is not None and gpu.residual_c is not None:
        found["thermal_residual_c"] = Pair(0.0, gpu.residual_c)
    return found
