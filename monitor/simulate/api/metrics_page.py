"""The metrics page in Prometheus' text format, with the names, labels and edges of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from math import inf

from monitor.simulate.api.families import FAMILIES, SPECULATION, MetricFamily
from monitor.simulate.api.http_counts import HttpCounts
from monitor.simulate.engine.counters import FINISHED_REASONS, Counters, Histogram
from monitor.simulate.world import World

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
Labels = Mapping[str, str]
Rows = Iterable[tuple[str, Labels, float]]  # suffix of the name, labels, value

#: Labels of vllm:cache_config_info that no setting changes, with a default server's values.
CACHE_CONFIG: Labels = {
    "_block_size_resolved": "True",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "engine": "0",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
_HISTOGRAMS: Mapping[str, Callable[[Counters], Histogram]] = {
    "vllm:request_prompt_tokens": lambda c: c.request_prompt_tokens,
    "vllm:request_generation_tokens": lambda c: c.request_generation_tokens,
    "vllm:iteration_tokens_total": lambda c: c.iteration_tokens,
    "vllm:request_max_num_generation_tokens": lambda c: c.max_num_generation_tokens,
    "vllm:request_params_n": lambda c: c.params_n,
    "vllm:request_params_max_tokens": lambda c: c.params_max_tokens,
    "vllm:time_to_first_token_seconds": lambda c: c.time_to_first_token,
    "vllm:inter_token_latency_seconds": lambda c: c.inter_token_latency,
    "vllm:request_time_per_output_token_seconds": lambda c: c.time_per_output_token,
    "vllm:e2e_request_latency_seconds": lambda c: c.e2e_latency,
    "vllm:request_queue_time_seconds": lambda c: c.queue_time,
    "vllm:request_inference_time_seconds": lambda c: c.inference_time,
    "vllm:request_prefill_time_seconds": lambda c: c.prefill_time,
    "vllm:request_decode_time_seconds": lambda c: c.decode_time,
    "vllm:request_num_preemptions": lambda c: c.preemptions,
    "vllm:request_prefill_kv_computed_tokens": lambda c: c.prefill_kv_computed_tokens,
}
#: Features that this server lacks stay 0.
_COUNTERS: Mapping[str, Callable[[Counters], int]] = {
    "vllm:prefix_cache_queries_total": lambda c: c.prefix_cache_queries,
    "vllm:prefix_cache_hits_total": lambda c: c.prefix_cache_hits,
    "vllm:num_preemptions_total": lambda c: c.num_preemptions,
    "vllm:prompt_tokens_total": lambda c: c.prompt_tokens,
    "vllm:prompt_tokens_cached_total": lambda c: c.prompt_tokens_cached,
    "vllm:generation_tokens_total": lambda c: c.generation_tokens,
    "vllm:spec_decode_num_drafts_total": lambda c: c.spec_decode_num_drafts,
    "vllm:spec_decode_num_draft_tokens_total": lambda c: c.spec_decode_num_draft_tokens,
    "vllm:spec_decode_num_accepted_tokens_total": lambda c: c.spec_decode_num_accepted_tokens,
}
#: Figures of the API server's process; nothing compares them, so they are constant.
_PROCESS: Mapping[str, Rows] = {
    "python_gc_objects_collected_total": [
        ("", {"generation": str(g)}, n) for g, n in enumerate((14968, 2391, 767))
    ],
    "python_gc_objects_uncollectable_total": [("", {"generation": str(g)}, 0) for g in range(3)],
    "python_gc_collections_total": [
        ("", {"generation": str(g)}, n) for g, n in enumerate((1571, 142, 10))
    ],
    "python_info": [
        (
            "",
            {
                "implementation": "CPython",
                "major": "3",
                "minor": "12",
                "patchlevel": "12",
                "version": "3.12.12",
            },
            1,
        )
    ],
    "process_virtual_memory_bytes": [("", {}, 2.284978176e9)],
    "process_resident_memory_bytes": [("", {}, 7.0660096e8)],
    "process_open_fds": [("", {}, 35)],
    "process_max_fds": [("", {}, 20000)],
}


def metrics_page(world: World, http: HttpCounts) -> str:
    """The whole page as of the end of the last step."""
    identity, lines = world.identity, list[str]()
    families = (*FAMILIES, *(SPECULATION if world.config.num_speculative_tokens else ()))
    for family in families:
        if family.name in identity.hidden_metrics:
            continue
        of_process = family.name.startswith(("python_", "process_"))
        if of_process and identity.api_servers > 1:
            # prometheus_client's multiprocess mode has neither these nor _created (seen on vLLM
            # 0.32 CPU)
            continue
        rows = list(_rows(family, world, http))
        shown = family._replace(name=identity.renamed_metrics.get(family.name, family.name))
        lines += _family(shown, rows)
        if family.kind != "gauge" and not of_process and identity.api_servers == 1:
            lines += _created(shown, rows, world.process_start_s)
    return "\n".join(lines) + "\n"


def _rows(family: MetricFamily, world: World, http: HttpCounts) -> Rows:
    if family.name in _PROCESS:
        return _PROCESS[family.name]
    if family.name == "process_start_time_seconds":
        return [("", {}, world.process_start_s)]
    if family.name == "process_cpu_seconds_total":
        return [("", {}, 12.0 + 0.01 * (world.unix_s - world.process_start_s))]
    if family.name.startswith("http_"):
        return _http(family.name, http)
    if family.name == "vllm:cache_config_info":
        return [("", _cache_config(world), 1)]
    common = {"engine": "0", "model_name": world.identity.served_name}
    if family.name == "vllm:admission_rejections_total":
        del common["engine"]
    return ((suffix, {**common, **labels}, value) for suffix, labels, value in _core(family, world))


def _core(family: MetricFamily, world: World) -> Rows:
    """The rows of an engine family, without the labels that all have."""
    name, counters, gauges = family.name, world.engine.counters, world.engine.gauges
    if name in _HISTOGRAMS:
        return _histogram(_HISTOGRAMS[name](counters), {})
    if name in _COUNTERS:
        return [("", {}, _COUNTERS[name](counters))]
    if name in _LABELLED:
        label, values = _LABELLED[name]
        return [("", {label: key}, value) for key, value in values(world).items()]
    plain = {
        "vllm:num_requests_running": gauges.running,
        "vllm:num_requests_waiting": gauges.waiting,
        "vllm:kv_cache_usage_perc": gauges.kv_usage,
    }
    return [("", {}, plain.get(name, 0))]


def _waiting(world: World) -> Mapping[str, float]:
    return {"capacity": world.engine.gauges.waiting, "deferred": 0}


def _sleep_state(world: World) -> Mapping[str, float]:
    asleep = world.config.asleep
    return {"awake": not asleep, "weights_offloaded": asleep, "discard_all": 0}


def _prompt_sources(world: World) -> Mapping[str, float]:
    cached = world.engine.counters.prompt_tokens_cached
    computed = world.engine.counters.prompt_tokens - cached
    return {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": 0}


def _cache_sources(world: World) -> Mapping[str, float]:
    cached = world.engine.counters.prompt_tokens_cached
    return {"device": cached, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0}


def _finished(world: World) -> Mapping[str, float]:
    finished = world.engine.counters.request_success
    return {reason: finished[reason] for reason in FINISHED_REASONS}


def _rejections(world: World) -> Mapping[str, float]:
    rejected = world.engine.counters.admission_rejections
    return {"max_num_queued_reqs": rejected, "max_num_queued_tokens": 0}


def _accepted(world: World) -> Mapping[str, float]:
    accepted = world.engine.counters.spec_decode_per_pos
    return {str(position): count for position, count in enumerate(accepted)}


#: Families with one label of their own: its name, and the value of each.
_LABELLED: Mapping[str, tuple[str, Callable[[World], Mapping[str, float]]]] = {
    "vllm:num_requests_waiting_by_reason": ("reason", _waiting),
    "vllm:engine_sleep_state": ("sleep_state", _sleep_state),
    "vllm:prompt_tokens_by_source_total": ("source", _prompt_sources),
    "vllm:prompt_tokens_cached_by_source_total": ("source", _cache_sources),
    "vllm:request_success_total": ("finished_reason", _finished),
    "vllm:admission_rejections_total": ("reason", _rejections),
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": ("position", _accepted),
}


def _cache_config(world: World) -> Labels:
    config, identity = world.config, world.identity
    blocks = world.engine.scheduler.pool.total
    size = blocks * config.block_size
    moving = {
        "block_size": str(config.block_size),
        "cache_dtype": identity.kv_cache_dtype,
        "effective_attention_block_size": str(config.block_size),
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "gpu_memory_utilization": str(identity.gpu_memory_utilization),
        "kv_cache_max_concurrency": str(size / identity.max_model_len),
        "kv_cache_size_tokens": str(size),
        "num_gpu_blocks": str(blocks),
    }
    return {**CACHE_CONFIG, **moving}


def _http(name: str, http: HttpCounts) -> Rows:
    if name == "http_requests_total":
        return [
            ("", {"handler": h, "method": m, "status": s}, n)
            for (h, m, s), n in http.requests.items()
        ]
    if name == "http_request_duration_highr_seconds":
        return _histogram(http.fine, {})
    if name == "http_request_duration_seconds":
        return [
            row
            for (h, m), one in http.coarse.items()
            for row in _histogram(one, {"handler": h, "method": m})
        ]
    sizes = http.request_bytes if name == "http_request_size_bytes" else http.response_bytes
    return [
        (suffix, {"handler": handler}, value)
        for handler, pair in sizes.items()
        for suffix, value in zip(("_count", "_sum"), pair, strict=True)
    ]


def _histogram(histogram: Histogram, labels: Labels) -> Iterator[tuple[str, Labels, float]]:
    for edge, total in zip(
        _edge_texts(tuple(histogram.edges)), accumulate(histogram.counts), strict=True
    ):
        yield "_bucket", {**labels, "le": edge}, total
    yield "_count", labels, histogram.count
    yield "_sum", labels, histogram.sum


@lru_cache(maxsize=64)
def _edge_texts(edges: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(number(edge) for edge in (*edges, inf))


def _family(family: MetricFamily, rows: Rows) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for suffix, labels, value in rows:
        yield f"{family.name}{suffix}{_labelled(labels)} {number(value)}"


def _created(family: MetricFamily, rows: Rows, born_s: float) -> Iterator[str]:
    """The creation time of each counter and histogram: one more indication of a restart."""
    name = (
        f"{family.name.removesuffix('_total') if family.kind == 'counter' else family.name}_created"
    )
    sets = dict.fromkeys(
        _labelled(labels) for suffix, labels, _ in rows if suffix in {"", "_count"}
    )
    yield f"# HELP {name} {family.help}"
    yield f"# TYPE {name} gauge"
    for labels in sets:
        yield f"{name}{labels} {number(born_s)}"


def _labelled(labels: Labels) -> str:
    """Labels sorted by name, as prometheus_client prints them."""
    return _joined(tuple(labels.items())) if labels else ""


@lru_cache(maxsize=4096)  # the same few hundred sets on every page of every server
def _joined(labels: tuple[tuple[str, str], ...]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in sorted(labels))
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """A number as prometheus_client prints it: 0.25, 1.7960069353e+09, +Inf."""
    if isinstance(value, int) and 0 <= value < 1_000_000:
        return f"{int(value)}.0"  # most numbers of a page
    if value == inf:
        return "+Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        return f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.") + f"e+{dot - 1:02d}"
    return text
