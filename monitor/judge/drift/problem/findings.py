"""Open problems as findings. The evidence becomes JSON here, and only here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from monitor.judge.drift.cause.attribution import NO_GPU
from monitor.judge.drift.evidence import Effect, Pair
from monitor.judge.drift.gpu.armed import MISSING
from monitor.judge.drift.problem.problem import CauseEvidence, Problem, Prompts
from monitor.model import DriftDetail, Finding, GpuWarning
from monitor.model.times import from_us

#: Missing readings in words, with how to get them.
MISSING_TEXTS: Mapping[str, str] = {
    **MISSING,
    "brake_duty": f"{MISSING['event_reasons']}, for the power brake",
    "top_util": "utilisation of the GPU under full load (DCGM_FI_DEV_GPU_UTIL; not on MIG)",
    "temp_c": "temperature of the GPU (DCGM_FI_DEV_GPU_TEMP)",
    "vram_used_mib": "memory in use on the GPU (DCGM_FI_DEV_FB_USED; not on GB10)",
    "waiting": "waiting requests (metrics page, vllm:num_requests_waiting)",
    NO_GPU: (
        "readings of the GPU (none is watched: set `gpus` of the target to `auto` for GPUs of this "
        "machine, or to {dcgm: URL} for an exporter)"
    ),
}


def finding_of(problem: Problem, target: str) -> Finding:
    """Returns the finding of one problem."""
    gpu = None if problem.evidence is None else problem.evidence.gpu
    return Finding(
        kind=problem.kind,
        target=target,
        subject=problem.subject,
        severity=problem.severity,
        since=from_us(problem.since_us),
        cause=problem.cause,
        evidence=evidence_json(problem),
        detail=DriftDetail(problem.warnings, gpu),
    )


def evidence_json(problem: Problem) -> dict[str, Any]:
    """Returns the numbers a problem rests on as JSON values."""
    found: dict[str, Any] = {}
    if problem.warnings:
        found |= {
            "signs": sorted({warning.condition for warning in problem.warnings}),
            "gpus": sorted(problem.gpus),
            "calm": list(problem.calm),
            **_warning(problem.warnings[0]),
        }
    if problem.evidence is not None:
        found |= _effects(problem) | _cause(problem.evidence)
    if problem.levels:
        found["levels"] = _levels(problem)
    if problem.also_slower:
        found["felt_too"] = [{"channel": e.channel, **_figure(e)} for e in problem.also_slower]
    if problem.prompts is not None:
        found |= _prompts(problem.prompts)
    if problem.compared is not None:
        found["compared"] = dict(problem.compared)
    return found


def _warning(warning: GpuWarning) -> dict[str, Any]:
    """The figures of a warning that are known."""
    figures = asdict(replace(warning.figures, least_margin_c=None))
    found = {name: value for name, value in figures.items() if value is not None}
    if warning.expected is not None:
        found["expected"] = warning.expected._asdict()
    if warning.not_seen_since_us is not None:
        found["not_seen_since"] = f"{from_us(warning.not_seen_since_us):%Y-%m-%d %H:%M} UTC"
    return found


def _effects(problem: Problem) -> dict[str, Any]:
    """The effects, and the figure of the first at the top."""
    return {
        **(_figure(problem.effects[0]) if problem.effects else {}),
        "effects": [_effect(effect) for effect in problem.effects],
        "calm": list(problem.calm),
    }


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "channel": effect.channel,
        **_figure(effect),
        "since": from_us(effect.since_us).isoformat(),
        "test": dict(effect.statistic),
    }


def _figure(effect: Effect) -> dict[str, Any]:
    """Metric and change in per cent with its interval; of a level the share of late canaries."""
    shift = effect.shift
    names = ("change_pct", "low_pct", "high_pct")
    if effect.channel == "level":
        names = ("share_pct", "share_low_pct", "share_high_pct")
    values = [round(value, 2) for value in (shift.change_pct, shift.low_pct, shift.high_pct)]
    return {"metric": shift.metric, **dict(zip(names, values, strict=True))}


def _cause(evidence: CauseEvidence) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seen": dict(evidence.seen),
        "readings": {name: _pair(pair) for name, pair in evidence.readings.items()},
    }
    if evidence.slope_per_h is not None:
        found["slope_pct_per_h"] = round(100.0 * evidence.slope_per_h, 3)
    if evidence.also_possible:
        found["also_possible"] = [cause.value for cause in evidence.also_possible]
    if evidence.missing:
        found["missing"] = [MISSING_TEXTS.get(name, name) for name in evidence.missing]
    return found


def _pair(pair: Pair) -> dict[str, float | None]:
    return {"before": _short(pair.before), "now": _short(pair.now)}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _levels(problem: Problem) -> dict[str, Any]:
    """The levels by class; with the figures of their test where they are the problem itself."""
    own = problem.name == "level"
    return {
        name: {**_figure(effect), **(effect.statistic if own else {})}
        for name, effect in sorted(problem.levels.items())
    }


def _prompts(prompts: Prompts) -> dict[str, Any]:
    return {
        "metric": "prompt_tokens",
        "change_pct": round(100.0 * (prompts.now / prompts.baseline - 1.0), 1),
        "usual_tokens": round(prompts.baseline),
        "tokens": round(prompts.now),
    }
