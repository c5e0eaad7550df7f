"""One block of the server's own figures, from readings of its metrics page and from canaries. See
flow.py.

Counters run since the server's start: a growth is taken between two good readings of one process,
never across a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from monitor.judge.drift.settings import MINUTE_US, SECOND_US
from monitor.model import CanaryPoint, ServerPoint

GAP_US = 10 * MINUTE_US  # two readings further apart say nothing about the time between them
QUIET_PROMPT_TOK_S = (
    1500.0  # facts/drift.md 3.4: below it the engine's steps a second vary by 1.8 % only
)


class FlowBlock(NamedTuple):
    """A block of the server's figures, means over its time; None is unknown. `prompts` and
    `requests` are others' work, as sums.
    """

    at_us: int
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    preemptions_h: float | None = None
    steps_s: float | None = None  # while requests run and few prompts are read
    spec_acceptance: float | None = None
    prompts: float | None = None
    requests: float | None = None


class FlowCanary(NamedTuple):
    """Of a canary only what is needed here."""

    known_us: int
    prompt_tokens: float | None
    queue_ms: float | None
    prefill_ms: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    spec_acceptance: float | None

    @classmethod
    def of(cls, p: CanaryPoint) -> FlowCanary:
        """What a good answer tells."""
        return cls(
            p.known_us,
            p.prompt_tokens,
            p.queue_ms,
            p.prefill_ms,
            p.running,
            p.waiting,
            p.kv_usage,
            p.spec_acceptance,
        )


def prompt_length(blocks: Sequence[FlowBlock], least: float = 1.0) -> float | None:
    """Prompt tokens a request of others, over all blocks; None where there were fewer than `least`
    requests.
    """
    known = [
        (b.prompts, b.requests) for b in blocks if b.prompts is not None and b.requests is not None
    ]
    requests = sum(r for _, r in known)
    return sum(p for p, _ in known) / requests if requests >= least else None


def together(blocks: Sequence[FlowBlock]) -> FlowBlock:
    """An hour as one block: means of means, sums of sums."""
    means = {
        name: _mean([getattr(b, name) for b in blocks])
        for name in FlowBlock._fields
        if name not in {"at_us", "prompts", "requests"}
    }
    known = [b for b in blocks if b.prompts is not None and b.requests is not None]
    return FlowBlock(
        blocks[0].at_us,
        prompts=sum(b.prompts or 0.0 for b in known) if known else None,
        requests=sum(b.requests or 0.0 for b in known) if known else None,
        **means,
    )


def block_of(
    start_us: int,
    points: Sequence[ServerPoint],
    canaries: Sequence[FlowCanary],
    last: ServerPoint | None,
) -> FlowBlock:
    """From the readings of a block in order, its canaries, and the reading before it. Where the
    page tells nothing, the canaries do.
    """
    told = FlowBlock(start_us) if not points else _of_page(start_us, points, canaries, last)
    if not canaries or None not in (
        told.running,
        told.waiting,
        told.kv_usage,
        told.queue_ms,
        told.prefill_ms,
        told.spec_acceptance,
    ):
        return told
    _, _, queue_ms, prefill_ms, running, waiting, kv_usage, acceptance = zip(*canaries, strict=True)
    return told._replace(
        running=_mean(running) if told.running is None else told.running,
        waiting=_mean(waiting) if told.waiting is None else told.waiting,
        kv_usage=_mean(kv_usage) if told.kv_usage is None else told.kv_usage,
        queue_ms=_mean(queue_ms) if told.queue_ms is None else told.queue_ms,
        prefill_ms=_mean(prefill_ms) if told.prefill_ms is None else told.prefill_ms,
        spec_acceptance=_mean(acceptance) if told.spec_acceptance is None else told.spec_acceptance,
    )


def _of_page(
    start_us: int,
    points: Sequence[ServerPoint],
    canaries: Sequence[FlowCanary],
    last: ServerPoint | None,
) -> FlowBlock:
    good = [p for p in points if p.state == "ok"]
    runs = _runs(good if last is None or last.state != "ok" else [last, *good])
    prompts, requests = _others(runs, canaries)
    return FlowBlock(
        start_us,
        running=_mean([p.running for p in good]),
        waiting=_mean([p.waiting for p in good]),
        kv_usage=_mean([p.kv_usage for p in good]),
        queue_ms=_per(runs, "queue_s_sum", "queue_count", 1000.0),
        prefill_ms=_per(runs, "prefill_s_sum", "prefill_count", 1000.0),
        preemptions_h=_rate(runs, "preemptions", 3600.0),
        steps_s=_rate(
            [(a, b) for run in runs for a, b in pairwise(run) if _decodes(a, b)],
            "engine_steps",
            1.0,
        ),
        spec_acceptance=_per(runs, "accepted_tokens", "draft_tokens", 1.0),
        prompts=prompts,
        requests=requests,
    )


Run = Sequence[
    ServerPoint
    # good readings of one process, close enough to each other: its counters grew from the first to
    # the last
]


def _runs(good: Sequence[ServerPoint]) -> list[Run]:
    runs: list[list[ServerPoint]] = [[]]
    for point in good:
        if runs[-1] and not (
            0 < point.at_us - runs[-1][-1].at_us <= GAP_US and _grew(runs[-1][-1], point)
        ):
            runs.append([])
        runs[-1].append(point)
    return [run for run in runs if len(run) > 1]


def _grew(a: ServerPoint, b: ServerPoint) -> bool:
    """No counter fell: it is the same process."""
    counters = (
        (a.engine_steps, b.engine_steps),
        (a.generation_tokens, b.generation_tokens),
        (a.prompt_tokens, b.prompt_tokens),
    )
    return not any(
        before is not None and after is not None and after < before for before, after in counters
    )


def _growth(runs: Sequence[Run], name: str) -> float | None:
    ends = [(getattr(run[0], name), getattr(run[-1], name)) for run in runs]
    known = [
        after - before
        for before, after in ends
        if before is not None and after is not None and after >= before
    ]
    return sum(known) if known else None


def _per(runs: Sequence[Run], what: str, each: str, scale: float) -> float | None:
    total, count = _growth(runs, what), _growth(runs, each)
    return None if total is None or not count else _short(scale * total / count)


def _rate(runs: Sequence[Run], name: str, per_s: float) -> float | None:
    growth, seconds = (
        _growth(runs, name),
        sum(run[-1].at_us - run[0].at_us for run in runs) / SECOND_US,
    )
    return None if growth is None or seconds <= 0 else _short(per_s * growth / seconds)


def _decodes(a: ServerPoint, b: ServerPoint) -> bool:
    """Requests run at both ends, and few prompts were read between: then a step is a step of
    decoding.
    """
    if not a.running or not b.running or a.prompt_tokens is None or b.prompt_tokens is None:
        return False
    return (b.prompt_tokens - a.prompt_tokens) * SECOND_US / (
        b.at_us - a.at_us
    ) < QUIET_PROMPT_TOK_S


def _others(
    runs: Sequence[Run], canaries: Sequence[FlowCanary]
) -> tuple[float | None, float | None]:
    """Prompt tokens and requests of others: all of them, less our own canaries."""
    prompts, requests = _growth(runs, "prompt_tokens"), _growth(runs, "requests_finished")
    if prompts is None or requests is None:
        return None, None
    ours = [c.prompt_tokens for c in canaries if c.prompt_tokens is not None]
    return max(0.0, prompts - sum(ours)), max(0.0, requests - len(ours))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(sum(known) / len(known)) if known else None


def _short(value: float) -> float:
    """Three digits after the point are more than any of this is exact to, and keep the stored state
    small.
    """
    return round(value, 3)
