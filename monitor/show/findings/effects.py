"""Measured effects as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from monitor.show.findings.readings import change, signed

METRICS: Mapping[str, str] = {
    "decode_tok_s": "decode rate",
    "ttft_ms": "time to first token",
    "engine_steps_s": "engine steps per second",
    "prompt_tokens": "prompt length",
    "cached_share": "cached share of a repeated prompt",
    "over_level": "late canaries",
}


@dataclass(frozen=True, slots=True)
class ShownEffect:
    """One effect of the evidence."""

    metric: str
    change_pct: float
    low_pct: float
    high_pct: float
    since: datetime | None = None

    def short(self) -> str:
        """Returns "decode rate −12.3 %"."""
        return f"{self.metric} {change(self.change_pct)}"

    def interval(self) -> str:
        """Returns "−13.1 to −11.4"."""
        return f"{signed(self.low_pct)} to {signed(self.high_pct)}"

    def whole(self) -> str:
        """Returns "decode rate −12.3 % (95 % interval −13.1 to −11.4)"."""
        return f"{self.short()} (95 % interval {self.interval()})"


def effects_of(evidence: Mapping[str, Any]) -> list[ShownEffect]:
    """Returns the effects of the evidence, each metric once.

    A slow start shows in the decode rate too, and is listed first. A service level is a share of
    canaries and no change; it is not among them.
    """
    found: dict[str, ShownEffect] = {}
    for effect in evidence.get("effects", ()):
        if "change_pct" in effect:
            shown = _effect(effect)
            found.setdefault(shown.metric, shown)
    return list(found.values())


def _effect(effect: Mapping[str, Any]) -> ShownEffect:
    name = METRICS.get(effect["metric"], effect["metric"])
    if effect.get("channel") == "cache" and effect["metric"] == "ttft_ms":
        name = "time to first token of a cached prompt"
    since = effect.get("since")
    return ShownEffect(
        metric=name,
        change_pct=effect["change_pct"],
        low_pct=effect["low_pct"],
        high_pct=effect["high_pct"],
        since=None if since is None else datetime.fromisoformat(since),
    )


def felt_since(effects: Sequence[ShownEffect], since: datetime) -> datetime:
    """Returns when the effects began: a GPU may have been throttled for long before."""
    onsets = [effect.since for effect in effects if effect.since is not None]
    return max(min(onsets), since) if onsets else since
