"""The warnings of GPUs as problems: which of them are one, since when, and after which GPU it is
named. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from monitor.judge.drift.cause.attribution import attribute
from monitor.judge.drift.evidence import Observations
from monitor.judge.drift.problem.problem import FAMILY, Observed, Problem, family, name_of
from monitor.judge.drift.settings import MINUTE_US
from monitor.model import Cause, GpuWarning, Kind

#: Scores of the causes that GPUs warn of, on the scale of the catalogue's: a GPU's own warning
#: counts a little more.
GPU_SCORES: Mapping[Cause, float] = {
    Cause.POWER_BRAKE: 7.0,
    Cause.MEMORY_HEAT: 6.5,
    Cause.HEAT: 6.0,
    Cause.POWER_CAP: 5.5,
    Cause.HIDDEN_LIMIT: 4.5,
}
TOGETHER_US = 15 * MINUTE_US  # GPUs that begin this close to each other share a reason


def gpu_problems(seen: Observed, held: Mapping[str, Problem], now_us: int) -> dict[str, Problem]:
    """Returns the problems that the GPUs warn of, by name: thermal, power, or (main) a clock that
    is low for another reason.

    GPUs that begin together, as in a hot room, are one problem; a GPU that begins at another time
    has its own, named with its UUID.
    """
    families: dict[str, list[GpuWarning]] = {}
    for warning in [_explained(warning, seen) for warning in seen.warned]:
        families.setdefault(name_of(warning.cause), []).append(warning)
    grouped = {
        name: group
        for kind, warnings in families.items()
        for name, group in _together(kind, warnings, held).items()
    }
    return {
        name: _problem(name, group, seen.observations.calm, held.get(name), now_us)
        for name, group in grouped.items()
    }


def _together(
    kind: str, warnings: Sequence[GpuWarning], held: Mapping[str, Problem]
) -> dict[str, list[GpuWarning]]:
    """The warnings of one family, by the name of their problem. A GPU stays in the problem that it
    is in.
    """
    if kind == "main":
        return {kind: list(warnings)}
    own = {name: problem for name, problem in held.items() if family(name) == kind}
    warned = {name: problem.gpus for name, problem in own.items() if problem.warnings}
    # measured before any GPU warned: the warnings belong to it
    felt = next((name for name in own if name not in warned), None)
    since_us = _first_warnings(warnings)
    names = dict.fromkeys(since_us, felt) if felt is not None else {}
    names |= {gpu: name for gpu in since_us for name in warned if gpu in warned[name]}
    for gpu in sorted(since_us.keys() - names.keys(), key=lambda gpu: (since_us[gpu], gpu)):
        near = [
            names[other] for other in names if abs(since_us[other] - since_us[gpu]) <= TOGETHER_US
        ]
        taken = kind in {*own, *names.values()}
        names[gpu] = near[0] if near else f"{kind} {gpu}" if taken else kind
    return {
        name: [w for w in warnings if names[w.uuid] == name]
        for name in dict.fromkeys(names.values())
    }


def _first_warnings(warnings: Sequence[GpuWarning]) -> dict[str, int]:
    """When each GPU began, by UUID."""
    since_us: dict[str, int] = {}
    for warning in warnings:
        since_us[warning.uuid] = min(warning.since_us, since_us.get(warning.uuid, warning.since_us))
    return since_us


def _explained(warning: GpuWarning, seen: Observed) -> GpuWarning:
    """The warning; a low clock that the GPU itself does not explain gets the cause that the
    comparison of before and now gives.
    """
    if warning.cause is not Cause.UNEXPLAINED:
        return warning
    gpu = next((gpu for gpu in seen.observations.gpus if gpu.uuid == warning.uuid), None)
    why = attribute(Observations({}, (), () if gpu is None else (gpu,), seen.observations.server))
    return replace(warning, cause=why.cause) if why.cause in GPU_SCORES else warning


def _problem(
    name: str,
    warnings: Sequence[GpuWarning],
    calm: tuple[str, ...],
    held: Problem | None,
    now_us: int,
) -> Problem:
    held = held if held is not None and _goes_on(held, warnings) else None
    loudest, *others = _by_weight(warnings, None if held is None else held.subject)
    kind = FAMILY.get(loudest.cause, Kind.SPEED)
    begun_us = [w.since_us for w in warnings] + ([] if held is None else [held.since_us])
    own_subject = "decode" if kind is Kind.SPEED else loudest.uuid
    return Problem(
        name=name,
        kind=kind,
        subject=own_subject if held is None else held.subject,
        severity=loudest.severity,
        since_us=min(begun_us),
        opened_us=now_us if held is None else held.opened_us,
        cause=loudest.cause,
        score=GPU_SCORES.get(loudest.cause, 0.0),
        calm=calm,
        warnings=(loudest, *others),
    )


def _by_weight(warnings: Sequence[GpuWarning], subject: str | None) -> list[GpuWarning]:
    """The warnings, the one that names the problem first: the most severe, then the best proven,
    then that of the GPU it is named after already, then the earliest.
    """
    return sorted(
        warnings,
        key=lambda w: (
            -w.severity.rank,
            -GPU_SCORES.get(w.cause, 0.0),
            w.uuid != subject,
            w.since_us,
        ),
    )


def _goes_on(held: Problem, warnings: Sequence[GpuWarning]) -> bool:
    """Whether the warnings continue the open problem: it is felt, or the GPU it is named after
    still warns. If that GPU has recovered, what others show is another problem with its own subject
    and beginning.
    """
    if held.effects:
        return True
    gpus = {warning.uuid for warning in warnings}
    return bool(gpus & held.gpus) if held.kind is Kind.SPEED else held.subject in gpus
