"""One request of the canary that is out, and what a daemon stores of it when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from monitor.simulate.answers import Prompt, Speech
from monitor.simulate.asking import State
from monitor.simulate.engine import Handle
from monitor.simulate.identity import Identity
from monitor.simulate.noise import Unrest
from monitor.simulate.records import Page, Row

MIN_TOKENS_FOR_RATE = 8


@dataclass(slots=True)
class Sent:
    """One request that is out. Tokens come with the engine's steps; those of one length follow each
    other in `gaps`.
    """

    state: State
    prompt: Prompt
    handle: Handle | None = None
    speech: Speech | None = None
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    in_first: int = 0  # of them in the first of those steps
    gaps: list[tuple[float, int]] = field(
        default_factory=list
    )  # seconds from step to step, and how often
    lost: str | None = None

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.lost is not None or (self.handle is not None and self.handle.finished)

    def note(self, count: int, now_s: float, leapt: Sequence[int] | None) -> None:
        """So many tokens, the last of them now; of a leap, tokens of each of its equal steps, None
        for one each, () where it was none.
        """
        if self.last_s is None:
            self.first_s, self.in_first = now_s, count
        else:
            steps = count if leapt is None else len(leapt) or 1
            self.gaps.append(((now_s - self.last_s) / steps, steps))
        self.last_s = now_s
        self.tokens += count


def answer_row(identity: Identity, sent: Sent, unrest: Unrest) -> Row:
    """Speed and text of a whole answer."""
    handle, speech = sent.handle, sent.speech
    if handle is None or speech is None or sent.first_s is None or sent.last_s is None:
        return {}
    first_s, scheduled_s = (
        handle.first_s or handle.arrived_s,
        handle.scheduled_s or handle.arrived_s,
    )
    queue_ms, prefill_ms = (
        (scheduled_s - handle.arrived_s) * 1e3,
        (first_s - scheduled_s) * 1e3 * unrest.prefill,
    )
    decode_ms = (sent.last_s - sent.first_s) * 1e3 * unrest.decode
    ttft_ms = queue_ms + prefill_ms + unrest.network_ms
    after_first = sent.tokens - sent.in_first
    row: Row = {
        "ttft_ms": round(ttft_ms, 3),
        "ttft_visible_ms": round(ttft_ms, 3),
        "e2e_ms": round(ttft_ms + decode_ms, 3),
        "decode_tok_s": round(after_first / decode_ms * 1e3, 4)
        if sent.tokens >= MIN_TOKENS_FOR_RATE and decode_ms > 0
        else None,
        "prompt_tokens": handle.request.prompt_tokens,
        "completion_tokens": sent.tokens,
        "cached_tokens": handle.cached if identity.prompt_tokens_details else None,
        "finish_reason": speech.reason,
        "output": "".join(speech.texts),
    }
    if sent.gaps:
        gaps, scale = sorted(sent.gaps), unrest.decode * 1e3
        row["itl_p50_ms"] = round(_rank(gaps, 0.5) * scale, 3)
        row["itl_p95_ms"] = round(_rank(gaps, 0.95) * scale * unrest.gap_p95, 3)
        row["itl_max_ms"] = round(gaps[-1][0] * scale * unrest.gap_max, 3)
    if identity.per_request_metrics:
        row |= {
            "queue_ms": round(queue_ms, 3),
            "prefill_ms": round(prefill_ms, 3),
            "decode_ms": round(decode_ms, 3),
        }
        row["server_timing"] = "response"
    return row


def load_row(before: Page, after: Page, sent: Sent, outcome: str) -> Row:
    """What the server did for others around and during the sample."""
    if before.state != "ok":
        return {}
    prompt = (
        sent.handle.request.prompt_tokens if sent.handle is not None and outcome == "ok" else None
    )
    ours = sent.tokens if outcome == "ok" else None if sent.tokens else 0
    row: Row = {
        "running": before.running,
        "waiting": before.waiting,
        "kv_usage": None if before.kv_usage is None else round(before.kv_usage, 5),
        "preemptions": _growth(before.preemptions, after.preemptions),
        "other_prompt_tokens": _growth(before.prompt_tokens, after.prompt_tokens, prompt),
        "other_generation_tokens": _growth(before.generation_tokens, after.generation_tokens, ours),
    }
    drafted, accepted = (
        _growth(before.draft_tokens, after.draft_tokens),
        _growth(before.accepted_tokens, after.accepted_tokens),
    )
    if drafted and accepted is not None:
        row["spec_acceptance"] = round(accepted / drafted, 4)
    return row


def _growth(before: float | None, after: float | None, less: float | None = 0) -> float | None:
    if before is None or after is None or less is None or after - before < less:
        return None
    return after - before - less


def _rank(ordered: Sequence[tuple[float, int]], share: float) -> float:
    """The gap at a rank, of gaps that each came so often."""
    left = ceil(sum([times for _, times in ordered]) * share)
    for gap_s, times in ordered:
        left -= times
        if left <= 0:
            return gap_s
    return ordered[-1][0]
