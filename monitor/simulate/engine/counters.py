"""The counters behind the metrics page, since the start of the process. Edges as in vLLM 0.32's
v1/metrics/buckets.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.simulate.engine.requests import Handle

TTFT_EDGES = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
ITL_EDGES = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
REQUEST_EDGES = (
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    50,
    60,
    120,
    240,
    480,
    960,
    1920,
    7680,
)
STEP_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_EDGES = (1, 2, 5, 10, 20)
PREEMPTION_EDGES = (1, 2, 3, 4, 5, 10, 20)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def token_edges(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to the context length."""
    edges = (mantissa * 10**exponent for exponent in range(12) for mantissa in (1, 2, 5))
    return tuple(edge for edge in edges if edge <= max_model_len)


class Histogram:
    """A Prometheus histogram: `counts` has one entry per edge and one above all, not cumulative."""

    __slots__ = ("count", "counts", "edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value `times` times; an edge belongs to the bucket below it."""
        self.counts[bisect_left(self.edges, value)] += times
        self.count += times
        self.sum += value * times


@dataclass(slots=True)
class Counters:
    """All counters. Times in seconds. Names are those of the metrics, without `vllm:` and
    `_total`.
    """

    max_model_len: int
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    admission_rejections: int = 0
    spec_decode_num_drafts: int = 0
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    spec_decode_per_pos: list[int] = field(default_factory=list)
    request_success: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0)
    )
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_EDGES))
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(TTFT_EDGES))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(ITL_EDGES))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(ITL_EDGES))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram(REQUEST_EDGES))
    queue_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_EDGES))
    inference_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_EDGES))
    prefill_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_EDGES))
    decode_time: Histogram = field(default_factory=lambda: Histogram(REQUEST_EDGES))
    params_n: Histogram = field(default_factory=lambda: Histogram(N_EDGES))
    preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTION_EDGES))
    request_prompt_tokens: Histogram = field(init=False)
    request_generation_tokens: Histogram = field(init=False)
    max_num_generation_tokens: Histogram = field(init=False)
    params_max_tokens: Histogram = field(init=False)
    prefill_kv_computed_tokens: Histogram = field(init=False)

    def __post_init__(self) -> None:
        """Sets the edges of token counts by the context length."""
        edges = token_edges(self.max_model_len)
        self.request_prompt_tokens = Histogram(edges)
        self.request_generation_tokens = Histogram(edges)
        self.max_num_generation_tokens = Histogram(edges)
        self.params_max_tokens = Histogram(edges)
        self.prefill_kv_computed_tokens = Histogram(edges)

    def looked_up(self, handle: Handle) -> None:
        """Counts a prefix cache lookup."""
        self.prefix_cache_queries += handle.request.prompt_tokens
        self.prefix_cache_hits += handle.cached

    def first_token(self, handle: Handle, now_s: float) -> None:
        """Counts a first token: vLLM counts the whole prompt at that moment, cached tokens
        included (#56923).
        """
        self.prompt_tokens += handle.request.prompt_tokens
        self.prompt_tokens_cached += handle.cached
        self.time_to_first_token.observe(now_s - handle.arrived_s)

    def finished(self, handle: Handle, reason: str, now_s: float) -> None:
        """Counts a finished request; an aborted one is not counted at all (#31503)."""
        request = handle.request
        scheduled_s = now_s if handle.scheduled_s is None else handle.scheduled_s
        first_s = now_s if handle.first_s is None else handle.first_s
        self.request_success[reason] += 1
        self.e2e_latency.observe(now_s - handle.arrived_s)
        self.queue_time.observe(scheduled_s - handle.arrived_s)
        self.prefill_time.observe(first_s - scheduled_s)
        self.decode_time.observe(now_s - first_s)
        self.inference_time.observe(now_s - scheduled_s)
        self.time_per_output_token.observe((now_s - first_s) / max(1, handle.generated - 1))
        self.request_prompt_tokens.observe(request.prompt_tokens)
        self.request_generation_tokens.observe(handle.generated)
        self.max_num_generation_tokens.observe(handle.generated)
        self.params_max_tokens.observe(request.max_tokens)
        self.params_n.observe(1)
        self.preemptions.observe(handle.preemptions)
        self.prefill_kv_computed_tokens.observe(request.prompt_tokens - handle.cached)

    def speculated(self, drafted: int, taken: Sequence[int], drafts: int = 1) -> None:
        """Counts `drafts` drafts of `drafted` tokens each; `taken`: accepted tokens at each
        position.
        """
        self.spec_decode_num_drafts += drafts
        self.spec_decode_num_draft_tokens += drafted * drafts
        self.spec_decode_num_accepted_tokens += sum(taken)
        self.spec_decode_per_pos.extend([0] * (drafted - len(self.spec_decode_per_pos)))
        for position, count in enumerate(taken):
            self.spec_decode_per_pos[position] += count


class CountAndSum(Histogram):
    """A histogram reduced to count and sum."""

    __slots__ = ()

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value `times` times."""
        self.count += times
        self.sum += value * times


class FewCounters(Counters):
    """Only what a server reading contains, and request times: for worlds whose page nobody
    reads, where the rest would cost as much as the request.
    """

    def __post_init__(self) -> None:
        """Drops the buckets."""
        super().__post_init__()
        self.iteration_tokens, self.inter_token_latency, self.time_to_first_token = (
            CountAndSum(()),
            CountAndSum(()),
            CountAndSum(()),
        )
        self.e2e_latency, self.queue_time, self.prefill_time = (
            CountAndSum(()),
            CountAndSum(()),
            CountAndSum(()),
        )
        self.decode_time = CountAndSum(())

    def finished(self, handle: Handle, reason: str, now_s: float) -> None:
        """As Counters.finished, without the sizes."""
        scheduled_s = now_s if handle.scheduled_s is None else handle.scheduled_s
        first_s = now_s if handle.first_s is None else handle.first_s
        self.request_success[reason] += 1
        self.e2e_latency.observe(now_s - handle.arrived_s)
        self.queue_time.observe(scheduled_s - handle.arrived_s)
        self.prefill_time.observe(first_s - scheduled_s)
        self.decode_time.observe(now_s - first_s)
