"""The figures of a sample, from marks, answers and metrics pages. Pure; docs/units.md has the
formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

from monitor.measure.json_values import number
from monitor.measure.stream.answer import Answer
from monitor.model import Outcome, ServerPage

MIN_TOKENS_FOR_RATE = 8  # below this, one late chunk is most of the figure (docs/units.md)


class ItlFigures(TypedDict):
    """Inter-token latencies of a sample."""

    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_max_ms: float | None


class ServerTiming(TypedDict):
    """The server's own timings of a sample, and their source."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    server_timing: str | None


class LoadFigures(TypedDict, total=False):
    """The server's load before and during a sample."""

    running: float | None
    waiting: float | None
    kv_usage: float | None
    preemptions: float | None
    other_prompt_tokens: float | None
    other_generation_tokens: float | None
    spec_acceptance: float | None


UNKNOWN_TIMING = ServerTiming(queue_ms=None, prefill_ms=None, decode_ms=None, server_timing=None)


def decode_tok_s(answer: Answer) -> float | None:
    """Tokens per second after the first chunk: (tokens - tokens in the first chunk) / (last token -
    first token).
    """
    tokens, at_first = answer.tokens_received, answer.tokens_at_first
    start_ns, end_ns = answer.first_token_ns, answer.last_token_ns
    if tokens is None or at_first is None or start_ns is None or end_ns is None:
        return None
    if tokens < MIN_TOKENS_FOR_RATE:
        return None
    if tokens <= at_first or end_ns <= start_ns:  # everything came at once
        return None
    return (tokens - at_first) / ((end_ns - start_ns) / 1e9)


def itl_figures(arrivals_ns: Sequence[int]) -> ItlFigures:
    """Inter-token latency as a reader sees it: the gaps between chunks with tokens (nearest-rank
    percentiles).
    """
    gaps = sorted([b - a for a, b in pairwise(arrivals_ns)])
    if not gaps:
        return ItlFigures(itl_p50_ms=None, itl_p95_ms=None, itl_max_ms=None)
    return ItlFigures(
        itl_p50_ms=nearest_rank(gaps, 0.5) / 1e6,
        itl_p95_ms=nearest_rank(gaps, 0.95) / 1e6,
        itl_max_ms=gaps[-1] / 1e6,
    )


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value with at least `share` of the values at or below it."""
    rank = max(1, -(-len(ordered) * round(share * 1000) // 1000))
    return ordered[rank - 1]


def server_timing(
    outcome: Outcome, answer: Answer, before: ServerPage | None, after: ServerPage | None
) -> ServerTiming:
    """Queue, prefill and decode time, and their source.

    The response's own metrics are preferred (`--enable-per-request-metrics`; its
    `time_to_first_token_ms` runs from scheduling to the first token, so it is the prefill). The
    metrics page is used only when exactly one request, ours, finished between two readings.
    """
    own = answer.server_metrics or {}
    queue, prefill, decode = (
        _duration(own.get(name))
        for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
    )
    if queue is not None or prefill is not None or decode is not None:
        return ServerTiming(
            queue_ms=queue, prefill_ms=prefill, decode_ms=decode, server_timing="response"
        )
    if outcome is not Outcome.OK or before is None or after is None or _restarted(before, after):
        return UNKNOWN_TIMING
    if delta(before.queue_count, after.queue_count) != 1:
        return UNKNOWN_TIMING
    return ServerTiming(
        queue_ms=_ms(delta(before.queue_s_sum, after.queue_s_sum)),
        prefill_ms=_ms(delta(before.prefill_s_sum, after.prefill_s_sum)),
        decode_ms=_ms(delta(before.decode_s_sum, after.decode_s_sum)),
        server_timing="metrics",
    )


def load_figures(
    outcome: Outcome, answer: Answer, before: ServerPage | None, after: ServerPage | None
) -> LoadFigures:
    """The server's work for others around and during the sample; None where it cannot be separated
    from ours.
    """
    if before is None:
        return {}
    figures = LoadFigures(running=before.running, waiting=before.waiting, kv_usage=before.kv_usage)
    if after is None or _restarted(before, after):
        return figures
    figures["preemptions"] = delta(before.preemptions, after.preemptions)
    finished = outcome is Outcome.OK
    own_prompt = answer.prompt_tokens if finished else None
    own_generated = answer.tokens_received if finished else (None if answer.arrivals_ns else 0)
    prompt = delta(before.prompt_tokens, after.prompt_tokens)
    generated = delta(before.generation_tokens, after.generation_tokens)
    figures["other_prompt_tokens"] = _without_ours(prompt, own_prompt)
    figures["other_generation_tokens"] = _without_ours(generated, own_generated)
    drafted = delta(before.draft_tokens, after.draft_tokens)
    accepted = delta(before.accepted_tokens, after.accepted_tokens)
    if drafted and accepted is not None:
        figures["spec_acceptance"] = accepted / drafted
    return figures


def _restarted(before: ServerPage, after: ServerPage) -> bool:
    """Whether the server's process was replaced, so that no counter continues; False where its
    start is unknown.
    """
    a, b = before.process_start_s, after.process_start_s
    return a is not None and b is not None and a != b


def delta(before: float | None, after: float | None) -> float | None:
    """The increase of a counter; None where a reading is missing or the counter was reset between
    the two.
    """
    return None if before is None or after is None or after < before else after - before


def _without_ours(total: float | None, ours: float | None) -> float | None:
    """The tokens of other requests; None when the page did not yet count all of ours."""
    if total is None or ours is None or total < ours:
        return None
    return total - ours


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _duration(value: object) -> float | None:
    """A duration that the server reports; None where it is not a number or is negative."""
    duration = number(value)
    return duration if duration is not None and duration >= 0 else None
