"""From marks, answers and readings to the figures of a sample. Pure; docs/units.md tells each
formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from monitor.measure.stream.answer import Answer, figure
from monitor.model import Outcome, ServerPage

MIN_TOKENS_FOR_RATE = 8  # below this one late chunk is most of the figure (DESIGN.md: decode rate)
UNKNOWN_TIMING = {"queue_ms": None, "prefill_ms": None, "decode_ms": None, "server_timing": None}


def decode_tok_s(answer: Answer) -> float | None:
    """Tokens a second after the first chunk: (tokens - tokens in the first chunk) / (last token -
    first token).
    """
    tokens, first, start, end = (
        answer.tokens_received,
        answer.tokens_at_first,
        answer.first_token_ns,
        answer.last_token_ns,
    )
    if (
        tokens is None
        or first is None
        or start is None
        or end is None
        or tokens < MIN_TOKENS_FOR_RATE
    ):
        return None
    if tokens <= first or end <= start:  # all of it came at once
        return None
    return (tokens - first) / ((end - start) / 1e9)


def itl_figures(arrivals_ns: Sequence[int]) -> dict[str, float | None]:
    """Inter-token latency as a reader feels it: the gaps between chunks that brought tokens
    (nearest-rank percentiles).
    """
    gaps = sorted([b - a for a, b in pairwise(arrivals_ns)])
    if not gaps:
        return {"itl_p50_ms": None, "itl_p95_ms": None, "itl_max_ms": None}
    return {
        "itl_p50_ms": nearest_rank(gaps, 0.5) / 1e6,
        "itl_p95_ms": nearest_rank(gaps, 0.95) / 1e6,
        "itl_max_ms": gaps[-1] / 1e6,
    }


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value with at least `share` of the values at or below it."""
    rank = max(1, -(-len(ordered) * round(share * 1000) // 1000))
    return ordered[rank - 1]


def server_timing(
    outcome: Outcome, answer: Answer, before: ServerPage | None, after: ServerPage | None
) -> dict[str, Any]:
    """queue_ms, prefill_ms, decode_ms and where they come from.

    The response's own metrics come first (`--enable-per-request-metrics`; its
    `time_to_first_token_ms` runs from scheduling to the first token, so it is the prefill). The
    metrics page serves only when exactly one request, ours, finished between two readings.
    """
    own = answer.server_metrics
    if own is not None:
        found = {
            "queue_ms": _duration(own.get("queue_time_ms")),
            "prefill_ms": _duration(own.get("time_to_first_token_ms")),
            "decode_ms": _duration(own.get("generation_time_ms")),
        }
        if any(value is not None for value in found.values()):
            return {**found, "server_timing": "response"}
    if outcome is not Outcome.OK or before is None or after is None or _restarted(before, after):
        return dict(UNKNOWN_TIMING)
    if delta(before.queue_count, after.queue_count) == 1:
        return {
            "queue_ms": _ms(delta(before.queue_s_sum, after.queue_s_sum)),
            "prefill_ms": _ms(delta(before.prefill_s_sum, after.prefill_s_sum)),
            "decode_ms": _ms(delta(before.decode_s_sum, after.decode_s_sum)),
            "server_timing": "metrics",
        }
    return dict(UNKNOWN_TIMING)


def load_figures(
    outcome: Outcome, answer: Answer, before: ServerPage | None, after: ServerPage | None
) -> dict[str, Any]:
    """What the server did for others around and during the sample; None where it cannot be told
    apart from ours.
    """
    if before is None:
        return {}
    figures: dict[str, Any] = {
        "running": before.running,
        "waiting": before.waiting,
        "kv_usage": before.kv_usage,
    }
    if after is None or _restarted(before, after):
        return figures
    figures["preemptions"] = delta(before.preemptions, after.preemptions)
    ours_prompt = answer.prompt_tokens if outcome is Outcome.OK else None
    ours_generated = (
        answer.tokens_received if outcome is Outcome.OK else (None if answer.arrivals_ns else 0)
    )
    figures["other_prompt_tokens"] = _less(
        delta(before.prompt_tokens, after.prompt_tokens), ours_prompt
    )
    figures["other_generation_tokens"] = _less(
        delta(before.generation_tokens, after.generation_tokens), ours_generated
    )
    drafted = delta(before.draft_tokens, after.draft_tokens)
    accepted = delta(before.accepted_tokens, after.accepted_tokens)
    if drafted and accepted is not None:
        figures["spec_acceptance"] = accepted / drafted
    return figures


def _restarted(before: ServerPage, after: ServerPage) -> bool:
    """Whether the server's process is another one, so that no counter goes on; False where it does
    not tell.
    """
    a, b = before.process_start_s, after.process_start_s
    return a is not None and b is not None and a != b


def delta(before: float | None, after: float | None) -> float | None:
    """Growth of a counter; None where a reading is missing or the counter was reset between the
    two.
    """
    return None if before is None or after is None or after < before else after - before


def _less(total: float | None, ours: float | None) -> float | None:
    """What is left for others; None when the page did not yet count all of ours."""
    if total is None or ours is None or total < ours:
        return None
    return total - ours


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _duration(value: Any) -> float | None:
    """A time that the server tells of itself; None where it is no number, or less than nothing."""
    told = figure(value)
    return told if told is not None and told >= 0 else None
