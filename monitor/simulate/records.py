"""What a daemon would store, as rows of CSV: the names are those of the samples and of the tables
of readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from monitor.simulate.card import Card
from monitor.simulate.world import World

Row = dict[str, Any]

#: monitor.model.SAMPLE_FIELDS; a test compares the two. Written down, because the simulator imports
#: nothing of the daemon.
SAMPLE_FIELDS = (
    "id", "target", "probe", "class", "started_at", "phase", "outcome", "verdict", "stale", "fingerprint", "pin", "priority",
    "process_start", "idle_before_s", "connect_ms", "ttft_ms", "ttft_visible_ms", "e2e_ms", "decode_tok_s", "itl_p50_ms", "itl_p95_ms",
    "itl_max_ms", "observer_lag_ms", "prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason", "output", "spec_acceptance",
    "queue_ms", "prefill_ms", "decode_ms", "server_timing", "running", "waiting", "kv_usage", "preemptions", "other_prompt_tokens",
    "other_generation_tokens", "gpu_uuid", "gpu_temp_c", "gpu_mem_temp_c", "gpu_margin_c", "sm_clock_mhz", "mem_clock_mhz", "gpu_util",
    "power_w", "power_limit_w", "energy_j", "vram_used_mib", "throttle_thermal_ms", "throttle_power_ms", "throttle_brake_ms", "gpu_age_ms",
    "first_divergence", "logprob_shift",
)  # fmt: skip
SERVER_FIELDS = (
    "state", "running", "waiting", "kv_usage", "engine_steps", "preemptions", "prompt_tokens", "generation_tokens", "requests_finished",
    "requests_aborted", "queue_s_sum", "queue_count", "prefill_s_sum", "prefill_count", "draft_tokens", "accepted_tokens",
)  # fmt: skip
GPU_FIELDS = (
    "gpu_uuid", "count", "temp_c_min", "temp_c_median", "temp_c_max", "sm_clock_mhz_min", "sm_clock_mhz_median", "sm_clock_mhz_max",
    "power_w_min", "power_w_median", "power_w_max", "util_min", "util_median", "util_max", "mem_temp_c", "margin_c", "mem_clock_mhz",
    "vram_used_mib", "power_limit_w", "event_reasons", "energy_j", "throttle_thermal_ns", "throttle_power_ns", "throttle_brake_ns",
)  # fmt: skip
READING_FIELDS = (
    "kind",
    "target",
    "at",
    *SERVER_FIELDS,
    *GPU_FIELDS,
)  # kind: server or gpu; what the other kind has stays empty


def iso(unix_s: float) -> str:
    """As the daemon writes times."""
    second, micro = divmod(round(unix_s * 1e6), 1_000_000)
    hour, second = divmod(second, 3600)
    return f"{_hour(hour)}{second // 60:02d}:{second % 60:02d}.{micro:06d}Z"


@lru_cache(maxsize=16)
def _hour(number: int) -> str:
    return datetime.fromtimestamp(number * 3600, UTC).strftime("%Y-%m-%dT%H:")


class Page(NamedTuple):
    """One look at the metrics page. None: it does not show this. `state` as in the daemon's
    readings.
    """

    state: str
    process_start_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    asleep: bool = False
    engine_steps: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    requests_finished: float | None = None
    requests_aborted: float | None = None
    queue_s_sum: float | None = None
    queue_count: float | None = None
    prefill_s_sum: float | None = None
    prefill_count: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None


#: Name of a family on the page -> the fields that follow from it, for pages that hide or rename
#: some.
FAMILIES = {
    "vllm:num_requests_running": ("running",),
    "vllm:num_requests_waiting": ("waiting",),
    "vllm:kv_cache_usage_perc": ("kv_usage",),
    "vllm:iteration_tokens_total": ("engine_steps",),
    "vllm:num_preemptions_total": ("preemptions",),
    "vllm:prompt_tokens_total": ("prompt_tokens",),
    "vllm:generation_tokens_total": ("generation_tokens",),
    "vllm:request_success_total": ("requests_finished", "requests_aborted"),
    "vllm:request_queue_time_seconds": ("queue_s_sum", "queue_count"),
    "vllm:request_prefill_time_seconds": ("prefill_s_sum", "prefill_count"),
    "process_start_time_seconds": ("process_start_s",),
}


def page_of(world: World) -> Page:
    """What the daemon would read off the page now."""
    if world.is_down:
        return Page("refused")
    identity, engine = world.identity, world.engine
    if identity.metrics_status != 200:
        return Page("http_error")
    if identity.metrics_delay_s > 1.0:  # a daemon gives a scrape up after one second
        return Page("timeout")
    counters, gauges, drafts = (
        engine.counters,
        world.gauges(),
        world.config.num_speculative_tokens > 0,
    )
    page = Page(  # by position: half as long, and there are five for each canary
        "ok",
        world.process_start_s if identity.api_servers == 1 else None,
        gauges.running,
        gauges.waiting,
        gauges.kv_usage,
        world.config.asleep,
        counters.iteration_tokens.count,
        counters.num_preemptions,
        counters.prompt_tokens,
        counters.generation_tokens,
        sum(counters.request_success.values()),
        counters.request_success["abort"],
        counters.queue_time.sum,
        counters.queue_time.count,
        counters.prefill_time.sum,
        counters.prefill_time.count,
        counters.spec_decode_num_draft_tokens if drafts else None,
        counters.spec_decode_num_accepted_tokens if drafts else None,
    )
    for family in (*identity.hidden_metrics, *identity.renamed_metrics):
        hidden: dict[str, Any] = dict.fromkeys(FAMILIES.get(family, ()))
        page = page._replace(**hidden)
    return page


Counts = tuple[float, int, int, int]  # Card.counts


def sample_gpu(before: Sequence[Counts], cards: Sequence[Card], took_s: float) -> Row:
    """The card's part of a sample, now that it is over: of the worst card, by throttling, then
    margin, then temperature.
    """
    if not cards:
        return {}
    worst = (
        max(range(len(cards)), key=lambda index: _badness(before[index], cards[index]))
        if len(cards) > 1
        else 0
    )
    (energy_j, thermal_ns, power_ns, brake_ns), card = before[worst], cards[worst]
    energy_then_j, thermal_then_ns, power_then_ns, brake_then_ns = card.counts()
    return {
        **card.sample_fields(),
        "energy_j": round(energy_then_j - energy_j, 3),
        "throttle_thermal_ms": min((thermal_then_ns - thermal_ns) / 1e6, round(took_s * 1e3, 3)),
        "throttle_power_ms": (power_then_ns - power_ns) / 1e6,
        "throttle_brake_ms": (brake_then_ns - brake_ns) / 1e6,
        "gpu_age_ms": 0.0,
    }


def _badness(before: Counts, card: Card) -> tuple[float, float, float]:
    now = card.reading()
    return card.counts()[1] - before[1], -1e9 if now.margin_c is None else -now.margin_c, now.temp_c
