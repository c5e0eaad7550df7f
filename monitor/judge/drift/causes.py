"""From what moved and the signs around it to a cause with its evidence.

A cause is named only if its proof holds for a card of the target; signs beside it make it more or
less likely; the likeliest is named (profiles.py is the table). Where a proof cannot be seen because
a reading is missing, and no other cause is proven, the answer is `unexplained` with the reading
that is missing, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monitor.judge.drift.cardproof import MISSING
from monitor.judge.drift.profiles import PROFILES, Profile
from monitor.judge.drift.proofs import Look
from monitor.judge.drift.values import CardSigns, Pair, Signs
from monitor.model import Cause, Kind

#: Readings as a person knows them, with how to get them.
MISSING_TEXTS: Mapping[str, str] = {
    **MISSING,
    "brake_duty": f"{MISSING['reasons']}, for the power brake",
    "top_util": "utilisation of the card while it works hard (DCGM_FI_DEV_GPU_UTIL; not on MIG)",
    "temp_c": "temperature of the card (DCGM_FI_DEV_GPU_TEMP)",
    "vram_used_mib": "memory in use on the card (DCGM_FI_DEV_FB_USED; GB10 does not tell it)",
    "waiting": "requests that wait (the metrics page, vllm:num_requests_waiting)",
}
NO_CARD = (
    "readings of the card: none is watched (`gpus` of the target: `auto` for cards of "
    "this machine, or {dcgm: URL} of an exporter)"
)
UNEXPLAINED_LOOK_AT = (
    "the server's log since then, other work on the machine, and what was deployed"
)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Why, as far as it can be proven: `cause`, the card that shows it, the signs seen, and what is
    missing for other causes' proofs.
    """

    cause: Cause
    kind: Kind
    score: float
    look_at: str
    card: CardSigns | None = None
    seen: Mapping[str, bool | None] = field(default_factory=dict)
    also: tuple[Cause, ...] = ()  # proven as well, less likely the cause
    refuted: tuple[Cause, ...] = ()  # seen not to be
    missing: tuple[str, ...] = ()


def attribute(signs: Signs) -> Attribution:
    """The likeliest cause whose proof holds; `unexplained`, with what is missing, where none
    does.
    """
    looks = [Look(signs, card) for card in signs.cards] or [Look(signs, None)]
    scored: list[tuple[float, Profile, Look]] = []
    lacking: list[str] = []
    refuted: list[Cause] = []
    for profile in PROFILES:
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
    if not signs.cards and missing:
        missing = (NO_CARD, *(text for text in missing if text == MISSING_TEXTS["waiting"]))
    if not scored:
        return Attribution(
            Cause.UNEXPLAINED,
            _kind_of(signs),
            0.0,
            UNEXPLAINED_LOOK_AT,
            looks[0].card,
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
        profile.cause, profile.kind, score, profile.look_at, look.card, seen, also, tuple(refuted)
    )


def _is_missing(look: Look, name: str) -> bool:
    """Whether a reading is not known now, of this card or of the server."""
    if hasattr(look.signs.flow, name):
        return getattr(look.signs.flow, name).now is None
    return look.card is None or getattr(look.card, name).now is None


def _score(profile: Profile, look: Look) -> float:
    return profile.weight + sum(weight for _, sign, weight in profile.signs if sign(look))


def _kind_of(signs: Signs) -> Kind:
    """Of something that nothing explains: what was felt."""
    channels = set(signs.effects)
    if channels <= {"level"}:
        return Kind.SERVICE_LEVEL
    return Kind.SLOW_START if channels == {"start"} else Kind.SPEED


CARD_READINGS = (
    "temp_c", "mem_temp_c", "margin_c", "sm_clock_mhz", "mem_clock_mhz", "util", "power_w", "power_limit_w", "vram_used_mib",
    "thermal_duty", "power_duty", "brake_duty", "top_util", "top_power_w", "idle_util",
)  # fmt: skip
FLOW_READINGS = (
    "running", "waiting", "kv_usage", "queue_ms", "prefill_ms", "preemptions", "steps_s", "spec_acceptance", "prompt_len", "cached_share",
)  # fmt: skip


def figures(look_at: Signs, card: CardSigns | None) -> dict[str, Any]:
    """The readings beside an effect, before and now, as evidence: only those that are known."""
    pairs: dict[str, Pair] = {}
    if card is not None:
        pairs |= {name: getattr(card, name) for name in CARD_READINGS}
    pairs |= {name: getattr(look_at.flow, name) for name in FLOW_READINGS}
    found = {
        name: {"before": _short(pair.before), "now": _short(pair.now)}
        for name, pair in pairs.items()
        if pair.now is not None
    }
    if card is not None and card.residual_c is not None:
        found["thermal_residual_c"] = {"before": 0.0, "now": _short(card.residual_c)}
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
