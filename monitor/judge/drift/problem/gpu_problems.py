"""What the GPUs warn of, put together: which warnings are one trouble, which GPU it is named
after, since when. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from monitor.judge.drift.cause.attribution import attribute
from monitor.judge.drift.evidence import GpuWarning, Observations
from monitor.judge.drift.problem.problem import FAMILY, LOUDNESS, Observed, Problem, family, name_of
from monitor.judge.drift.settings import MINUTE_US
from monitor.model import Cause, Kind

#: What the warnings of GPUs may say, with scores beside those of causes.py: a GPU that says it
#: itself is worth a little more.
GPU_SCORES: Mapping[Cause, float] = {
    Cause.POWER_BRAKE: 7.0,
    Cause.MEMORY_HEAT: 6.5,
    Cause.HEAT: 6.0,
    Cause.POWER_CAP: 5.5,
    Cause.HIDDEN_LIMIT: 4.5,
}
SIGN_ORDER = (
    "brake",
    "hw_thermal",
    "thermal_duty",
    "power_limit",
    "power_duty",
    "hidden_limit",
    "margin",
    "memory_residual",
    "clock_deficit",
)
TOGETHER_US = 15 * MINUTE_US  # GPUs that fall ill within so much of each other do so for one reason


def gpu_troubles(seen: Observed, held: Mapping[str, Problem], now_us: int) -> dict[str, Problem]:
    """The warnings of all GPUs, by what they are about: thermal, power, or (main) a clock that is
    low for another reason. GPUs that fall ill together, as in a hot room, are one trouble; one
    that falls ill at another time is its own, named with its UUID.
    """
    families: dict[str, list[GpuWarning]] = {}
    for warning in [_explained(warning, seen) for warning in seen.warned]:
        families.setdefault(name_of(_cause_of(warning)), []).append(warning)
    grouped = {
        name: group
        for kind, warnings in families.items()
        for name, group in _together(kind, warnings, held).items()
    }
    return {
        name: _of_warnings(name, group, seen.signs.calm, held.get(name), now_us)
        for name, group in grouped.items()
    }


def _together(
    kind: str, warnings: Sequence[GpuWarning], held: Mapping[str, Problem]
) -> dict[str, list[GpuWarning]]:
    """The warnings of one family, by the name of the trouble they belong to. A GPU stays in the
    trouble that it is in.
    """
    if kind == "main":
        return {kind: list(warnings)}
    own = {name: trouble for name, trouble in held.items() if family(name) == kind}
    ill = {
        name: set(trouble.evidence["gpus"])
        for name, trouble in own.items()
        if "gpus" in trouble.evidence
    }
    felt = next(
        (name for name in own if name not in ill), None
    )  # before any GPU said so: that is what they say now
    since_us: dict[str, int] = {}
    for warning in warnings:
        since_us[warning.subject] = min(
            warning.since_us, since_us.get(warning.subject, warning.since_us)
        )
    names = dict.fromkeys(since_us, felt) if felt is not None else {}
    names |= {gpu: name for gpu in since_us for name in ill if gpu in ill[name]}
    for gpu in sorted(since_us.keys() - names.keys(), key=lambda gpu: (since_us[gpu], gpu)):
        near = [
            names[other] for other in names if abs(since_us[other] - since_us[gpu]) <= TOGETHER_US
        ]
        names[gpu] = (
            near[0] if near else f"{kind} {gpu}" if kind in {*own, *names.values()} else kind
        )
    return {
        name: [w for w in warnings if names[w.subject] == name]
        for name in dict.fromkeys(names.values())
    }


def _place(sign: str) -> int:
    """What is told first: what the driver counts, then what follows from it."""
    return SIGN_ORDER.index(sign) if sign in SIGN_ORDER else len(SIGN_ORDER)


def _explained(warning: GpuWarning, seen: Observed) -> GpuWarning:
    """A low clock that the GPU itself does not explain may be explained by how it was before and
    is now.
    """
    if _cause_of(warning) is not Cause.UNEXPLAINED:
        return warning
    gpu = next((gpu for gpu in seen.signs.gpus if gpu.uuid == warning.subject), None)
    why = attribute(Observations({}, (), () if gpu is None else (gpu,), seen.signs.flow))
    return (
        replace(warning, evidence={**warning.evidence, "cause": why.cause.value})
        if why.cause in GPU_SCORES
        else warning
    )


def _cause_of(warning: GpuWarning) -> Cause:
    return Cause(warning.evidence.get("cause", Cause.UNEXPLAINED))


def _of_warnings(
    name: str,
    warnings: Sequence[GpuWarning],
    calm: Sequence[str],
    held: Problem | None,
    now_us: int,
) -> Problem:
    gpus = sorted({w.subject for w in warnings})
    held = held if held is not None and _goes_on(held, gpus) else None
    first = None if held is None else held.subject
    loudest = max(
        warnings,
        key=lambda w: (
            LOUDNESS.index(w.severity),
            GPU_SCORES.get(_cause_of(w), 0.0),
            w.subject == first,
            -w.since_us,
        ),
    )
    cause, kind = _cause_of(loudest), FAMILY.get(_cause_of(loudest), Kind.SPEED)
    subject = (
        held.subject if held is not None else "decode" if kind is Kind.SPEED else loudest.subject
    )
    since_us = min([w.since_us for w in warnings] + ([held.since_us] if held is not None else []))
    evidence = {
        "signs": sorted({w.sign for w in warnings}),
        "gpus": gpus,
        "calm": list(calm),
        **{key: value for key, value in loudest.evidence.items() if key != "cause"},
    }
    in_order = sorted(
        warnings,
        key=lambda w: (
            -LOUDNESS.index(w.severity),
            w.subject != subject,
            _place(w.sign),
            w.subject,
        ),
    )
    opened_us = held.opened_us if held is not None else now_us
    told = [w.summary for w in in_order]
    return Problem(
        name,
        kind,
        subject,
        loudest.severity,
        since_us,
        opened_us,
        cause,
        GPU_SCORES.get(cause, 0.0),
        evidence,
        told,
    )


def _goes_on(held: Problem, gpus: Sequence[str]) -> bool:
    """Whether these GPUs' trouble is still the one that was open: it is felt, or the GPU it is
    named after is still ill. A trouble of which that GPU is well again is over, and what others
    still show is another one, with a subject and a beginning of its own.
    """
    if "effects" in held.evidence:
        return True
    return (
        bool(set(gpus) & set(held.evidence.get("gpus", ())))
        if held.kind == Kind.SPEED
        else held.subject in gpus
    )
