"""One block of the server's own figures, from readings of its metrics page and from canaries
(channel.py).

Counters run since the server's start: growth is taken between two good readings of one process,
never across a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from monitor.judge.drift.settings import MINUTE_US, SECOND_US
from monitor.model import CanaryPoint, ServerPoint

GAP_US = 10 * MINUTE_US  # two readings further apart say nothing about the time between them
# below it the engine's steps per second vary by 1.8 % only (docs/detection.md)
QUIET_PROMPT_TOK_S = 1500.0
MEANS = (
    *("running", "waiting", "kv_usage", "queue_ms", "prefill_ms"),
    *("preemptions_h", "steps_s", "spec_acceptance"),
)
#: Fields that canaries know too.
OF_CANARIES = ("running", "waiting", "kv_usage", "queue_ms", "prefill_ms", "spec_acceptance")


class ServerBlock(NamedTuple):
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


class ServerCanary(NamedTuple):
    """The fields of a canary that a block needs."""

    known_us: int
    prompt_tokens: float | None
    queue_ms: float | None
    prefill_ms: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    spec_acceptance: float | None

    @classmethod
    def of(cls, p: CanaryPoint) -> ServerCanary:
        """The fields of a good answer."""
        return cls(
            known_us=p.known_us,
            prompt_tokens=p.prompt_tokens,
            queue_ms=p.queue_ms,
            prefill_ms=p.prefill_ms,
            running=p.running,
            waiting=p.waiting,
            kv_usage=p.kv_usage,
            spec_acceptance=p.spec_acceptance,
        )


def prompt_length(blocks: Sequence[ServerBlock], least: float = 1.0) -> float | None:
    """Prompt tokens per request of others, over all blocks; None with fewer than `least`
    requests.
    """
    known = [
        (b.prompts, b.requests) for b in blocks if b.prompts is not None and b.requests is not None
    ]
    requests = sum(r for _, r in known)
    return sum(p for p, _ in known) / requests if requests >= least else None


def merge(blocks: Sequence[ServerBlock]) -> ServerBlock:
    """An hour as one block: means of means, sums of sums."""
    means = {name: _mean([getattr(b, name) for b in blocks]) for name in MEANS}
    known = [b for b in blocks if b.prompts is not None and b.requests is not None]
    return ServerBlock(
        blocks[0].at_us,
        prompts=sum(b.prompts or 0.0 for b in known) if known else None,
        requests=sum(b.requests or 0.0 for b in known) if known else None,
        **means,
    )


def block_of(
    start_us: int,
    points: Sequence[ServerPoint],
    canaries: Sequence[ServerCanary],
    last: ServerPoint | None,
) -> ServerBlock:
    """A block from its readings in order, its canaries, and the reading before it. Canaries stand
    in for what the page does not report.
    """
    block = ServerBlock(start_us) if not points else _of_page(start_us, points, canaries, last)
    unknown = [name for name in OF_CANARIES if getattr(block, name) is None]
    if not canaries or not unknown:
        return block
    means = {name: _mean([getattr(c, name) for c in canaries]) for name in unknown}
    return ServerBlock(**(block._asdict() | means))


def _of_page(
    start_us: int,
    points: Sequence[ServerPoint],
    canaries: Sequence[ServerCanary],
    last: ServerPoint | None,
) -> ServerBlock:
    good = [p for p in points if p.state == "ok"]
    runs = _runs(good if last is None or last.state != "ok" else [last, *good])
    decoding = [(a, b) for run in runs for a, b in pairwise(run) if _is_decoding(a, b)]
    prompts, requests = _others(runs, canaries)
    return ServerBlock(
        start_us,
        running=_mean([p.running for p in good]),
        waiting=_mean([p.waiting for p in good]),
        kv_usage=_mean([p.kv_usage for p in good]),
        queue_ms=_ratio(runs, "queue_s_sum", "queue_count", 1000.0),
        prefill_ms=_ratio(runs, "prefill_s_sum", "prefill_count", 1000.0),
        preemptions_h=_rate(runs, "preemptions", 3600.0),
        steps_s=_rate(decoding, "engine_steps", 1.0),
        spec_acceptance=_ratio(runs, "accepted_tokens", "draft_tokens", 1.0),
        prompts=prompts,
        requests=requests,
    )


#: Good readings of one process, close enough to each other: its counters grew from the first to the
#: last.
Run = Sequence[ServerPoint]


def _runs(good: Sequence[ServerPoint]) -> list[Run]:
    runs: list[list[ServerPoint]] = [[]]
    for point in good:
        if runs[-1] and not _follows(runs[-1][-1], point):
            runs.append([])
        runs[-1].append(point)
    return [run for run in runs if len(run) > 1]


def _follows(a: ServerPoint, b: ServerPoint) -> bool:
    """Whether two readings are close, and of the same process: no counter fell."""
    counters = (
        (a.engine_steps, b.engine_steps),
        (a.generation_tokens, b.generation_tokens),
        (a.prompt_tokens, b.prompt_tokens),
    )
    fell = any(
        before is not None and after is not None and after < before for before, after in counters
    )
    return 0 < b.at_us - a.at_us <= GAP_US and not fell


def _growth(runs: Sequence[Run], name: str) -> float | None:
    ends = [(getattr(run[0], name), getattr(run[-1], name)) for run in runs]
    known = [
        after - before
        for before, after in ends
        if before is not None and after is not None and after >= before
    ]
    return sum(known) if known else None


def _ratio(runs: Sequence[Run], name: str, count: str, scale: float) -> float | None:
    """Growth of one counter over that of another."""
    total, n = _growth(runs, name), _growth(runs, count)
    return None if total is None or not n else _short(scale * total / n)


def _rate(runs: Sequence[Run], name: str, per_s: float) -> float | None:
    growth = _growth(runs, name)
    seconds = sum(run[-1].at_us - run[0].at_us for run in runs) / SECOND_US
    return None if growth is None or seconds <= 0 else _short(per_s * growth / seconds)


def _is_decoding(a: ServerPoint, b: ServerPoint) -> bool:
    """Whether requests run at both readings, and few prompts were read between them: then a step is
    a step of decoding.
    """
    if not a.running or not b.running or a.prompt_tokens is None or b.prompt_tokens is None:
        return False
    prompts = (b.prompt_tokens - a.prompt_tokens) * SECOND_US
    return prompts / (b.at_us - a.at_us) < QUIET_PROMPT_TOK_S


def _others(
    runs: Sequence[Run], canaries: Sequence[ServerCanary]
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
    """Three decimals: more than the precision of any figure here, and a small stored state."""
    return round(value, 3)
