"""From what moved and the signs around it to a cause with its evidence.

A cause is named only if its proof holds for a GPU of the target; signs beside it make it more or
less likely; the likeliest is named (profiles.py is the table). Where a proof cannot be seen because
a reading is missing, and no other cause is proven, the answer is `unexplained` with the reading
that is missing, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monitor.judge.drift.cause.catalogue import CATALOGUE, CauseRule
from monitor.judge.drift.cause.predicates import Scope
from monitor.judge.drift.evidence import GpuComparison, Observations, Pair
from monitor.judge.drift.gpu.armed import MISSING
from monitor.model import Cause, Kind

#: Readings as a person knows them, with how to get them.
MISSING_TEXTS: Mapping[str, str] = {
    **MISSING,
    "brake_duty": f"{MISSING['reasons']}, for the power brake",
    "top_util": "utilisation of the GPU while it works hard (DCGM_FI_DEV_GPU_UTIL; not on MIG)",
    "temp_c": "temperature of the GPU (DCGM_FI_DEV_GPU_TEMP)",
    "vram_used_mib": "memory in use on the GPU (DCGM_FI_DEV_FB_USED; GB10 does not tell it)",
    "waiting": "requests that wait (the metrics page, vllm:num_requests_waiting)",
}
NO_GPU = (
    "readings of the GPU: none is watched (`gpus` of the target: `auto` for GPUs of "
    "this machine, or {dcgm: URL} of an exporter)"
)
UNEXPLAINED_LOOK_AT = (
    "the server's log since then, other work on the machine, and what was deployed"
)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Why, as far as it can be proven: `cause`, the GPU that shows it, the signs seen, and what is
    missing for other causes' proofs.
    """

    cause: Cause
    kind: Kind
    score: float
    look_at: str
    gpu: GpuComparison | None = None
    seen: Mapping[str, bool | None] = field(default_factory=dict)
    also: tuple[Cause, ...] = ()  # proven as well, less likely the cause
    refuted: tuple[Cause, ...] = ()  # seen not to be
    missing: tuple[str, ...] = ()


def attribute(signs: Observations) -> Attribution:
    """The likeliest cause whose proof holds; `unexplained`, with what is missing, where none
    does.
    """
    looks = [Scope(signs, gpu) for gpu in signs.gpus] or [Scope(signs, None)]
    scored: list[tuple[float, CauseRule, Scope]] = []
    lacking: list[str] = []
    refuted: list[Cause] = []
    for profile in CATALOGUE:
        found = [(profile.proof(look), profile.felt(look), look) for look in looks]
        proven = [look for proof, felt, look in found if proof and felt]
        if proven:
            best = max(proven, key=lambda look: _score(profile, look))
            scored.append((_score(profile, best), profile, best))
        elif any(proof is None and felt for proof, felt, _ in found):
            lacking += [
                name for name in profile.needs if all(_is_missing(look, name) for look in looks)
            ]
        elif all(proof is False for proof, _, _ in found):
            refuted.append(profile.cause)
    missing = tuple(MISSING_TEXTS.get(name, name) for name in dict.fromkeys(lacking))
    if not signs.gpus and missing:
        missing = (NO_GPU, *(text for text in missing if text == MISSING_TEXTS["waiting"]))
    if not scored:
        return Attribution(
            Cause.UNEXPLAINED,
            _kind_of(signs),
            0.0,
            UNEXPLAINED_LOOK_AT,
            looks[0].gpu,
            {},
            (),
            tuple(refuted),
            missing,
        )
    scored.sort(key=lambda entry: -entry[0])
    score, profile, look = scored[0]
    seen = {name: sign(look) for name, sign, _ in profile.signs}
    also = tuple(other.cause for _, other, _ in scored[1:])
    return Attribution(
        profile.cause, profile.kind, score, profile.look_at, look.gpu, seen, also, tuple(refuted)
    )


def _is_missing(look: Scope, name: str) -> bool:
    """Whether a reading is not known now, of this GPU or of the server."""
    if hasattr(look.signs.flow, name):
        return getattr(look.signs.flow, name).now is None
    return look.gpu is None or getattr(look.gpu, name).now is None


def _score(profile: CauseRule, look: Scope) -> float:
    return profile.weight + sum(weight for _, sign, weight in profile.signs if sign(look))


def _kind_of(signs: Observations) -> Kind:
    """Of something that nothing explains: what was felt."""
    channels = set(signs.effects)
    if channels <= {"level"}:
        return Kind.SERVICE_LEVEL
    return Kind.SLOW_START if channels == {"start"} else Kind.SPEED


GPU_READINGS = (
    "temp_c", "mem_temp_c", "margin_c", "sm_clock_mhz", "mem_clock_mhz", "util", "power_w", "power_limit_w", "vram_used_mib",
    "thermal_duty", "power_duty", "brake_duty", "top_util", "top_power_w", "idle_util",
)  # fmt: skip
FLOW_READINGS = (
    "running", "waiting", "kv_usage", "queue_ms", "prefill_ms", "preemptions", "steps_s", "spec_acceptance", "prompt_len", "cached_share",
)  # fmt: skip


def figures(look_at: Observations, gpu: GpuComparison | None) -> dict[str, Any]:
    """The readings beside an effect, before and now, as evidence: only those that are known."""
    pairs: dict[str, Pair] = {}
    if gpu is not None:
        pairs |= {name: getattr(gpu, name) for name in GPU_READINGS}
    pairs |= {name: getattr(look_at.flow, name) for name in FLOW_READINGS}
    found = {
        name: {"before": _short(pair.before), "now": _short(pair.now)}
        for name, pair in pairs.items()
        if pair.now is not None
    }
    if gpu is not None and gpu.residual_c is not None:
        found["thermal_residual_c"] = {"before": 0.0, "now": _short(gpu.residual_c)}
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
