"""The families of vLLM 0.32's metrics page with one API server, in its order: name, type and help
text.

`vllm:spec_decode_*` exist only with speculative decoding (v1/spec_decode/metrics.py).
"""

from __future__ import annotations

from typing import NamedTuple


class MetricFamily(NamedTuple):
    """One metric family."""

    name: str
    kind: str
    help: str


FAMILIES: tuple[MetricFamily, ...] = (
    MetricFamily("python_gc_objects_collected_total", "counter", "Objects collected during gc"),
    MetricFamily(
        "python_gc_objects_uncollectable_total", "counter", "Uncollectable objects found during GC"
    ),
    MetricFamily(
        "python_gc_collections_total", "counter", "Number of times this generation was collected"
    ),
    MetricFamily("python_info", "gauge", "Python platform information"),
    MetricFamily("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    MetricFamily("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    MetricFamily(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    ),
    MetricFamily(
        "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."
    ),
    MetricFamily("process_open_fds", "gauge", "Number of open file descriptors."),
    MetricFamily("process_max_fds", "gauge", "Maximum number of open file descriptors."),
    MetricFamily(
        "vllm:estimated_flops_per_gpu_total",
        "counter",
        (
            "Estimated number of floating point operations per GPU (for Model Flops Utilization "
            "calculations)."
        ),
    ),
    MetricFamily(
        "vllm:estimated_read_bytes_per_gpu_total",
        "counter",
        (
            "Estimated number of bytes read from memory per GPU (for Model Flops Utilization "
            "calculations)."
        ),
    ),
    MetricFamily(
        "vllm:estimated_write_bytes_per_gpu_total",
        "counter",
        (
            "Estimated number of bytes written to memory per GPU (for Model Flops Utilization "
            "calculations)."
        ),
    ),
    MetricFamily(
        "vllm:num_requests_running", "gauge", "Number of requests in model execution batches."
    ),
    MetricFamily(
        "vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."
    ),
    MetricFamily(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for "
        "scheduling capacity; 'deferred' = "
        "deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of "
        "all reasons equals "
        "vllm:num_requests_waiting.",
    ),
    MetricFamily(
        "vllm:engine_sleep_state",
        "gauge",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is "
        "awake; weights_offloaded = 1 means "
        "sleep level 1; discard_all = 1 means sleep level 2.",
    ),
    MetricFamily("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    MetricFamily(
        "vllm:prefix_cache_queries_total",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
    ),
    MetricFamily(
        "vllm:prefix_cache_hits_total",
        "counter",
        "Prefix cache hits, in terms of number of cached tokens.",
    ),
    MetricFamily(
        "vllm:external_prefix_cache_queries_total",
        "counter",
        (
            "External prefix cache queries from KV connector cross-instance cache sharing, in "
            "terms of number of queried tokens."
        ),
    ),
    MetricFamily(
        "vllm:external_prefix_cache_hits_total",
        "counter",
        (
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms "
            "of number of cached tokens."
        ),
    ),
    MetricFamily(
        "vllm:mm_cache_queries_total",
        "counter",
        "Multi-modal cache queries, in terms of number of queried items.",
    ),
    MetricFamily(
        "vllm:mm_cache_hits_total",
        "counter",
        "Multi-modal cache hits, in terms of number of cached items.",
    ),
    MetricFamily(
        "vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine."
    ),
    MetricFamily("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed."),
    MetricFamily(
        "vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source."
    ),
    MetricFamily(
        "vllm:prompt_tokens_cached_total",
        "counter",
        "Number of cached prompt tokens (local + external).",
    ),
    MetricFamily(
        "vllm:prompt_tokens_cached_by_source_total",
        "counter",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), "
        "host (offloaded to DRAM), disk, p2p "
        "(transferred from another vLLM instance) or external_unspecified. Counted at "
        "admission; sums to vllm:prefix_cache_hits "
        "+ vllm:external_prefix_cache_hits.",
    ),
    MetricFamily(
        "vllm:generation_tokens_total", "counter", "Number of generation tokens processed."
    ),
    MetricFamily(
        "vllm:request_success_total", "counter", "Count of successfully processed requests."
    ),
    MetricFamily(
        "vllm:admission_rejections_total",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
    ),
    MetricFamily("vllm:request_prompt_tokens", "histogram", "Number of prefill tokens processed."),
    MetricFamily(
        "vllm:request_generation_tokens", "histogram", "Number of generation tokens processed."
    ),
    MetricFamily(
        "vllm:iteration_tokens_total", "histogram", "Histogram of number of tokens per engine_step."
    ),
    MetricFamily(
        "vllm:request_max_num_generation_tokens",
        "histogram",
        "Histogram of maximum number of requested generation tokens.",
    ),
    MetricFamily("vllm:request_params_n", "histogram", "Histogram of the n request parameter."),
    MetricFamily(
        "vllm:request_params_max_tokens",
        "histogram",
        "Histogram of the max_tokens request parameter.",
    ),
    MetricFamily(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "Histogram of time to first token in seconds.",
    ),
    MetricFamily(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "Histogram of inter-token latency in seconds.",
    ),
    MetricFamily(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "Histogram of time_per_output_token_seconds per request.",
    ),
    MetricFamily(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "Histogram of e2e request latency in seconds.",
    ),
    MetricFamily(
        "vllm:request_queue_time_seconds",
        "histogram",
        "Histogram of time spent in WAITING phase for request.",
    ),
    MetricFamily(
        "vllm:request_inference_time_seconds",
        "histogram",
        "Histogram of time spent in RUNNING phase for request.",
    ),
    MetricFamily(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "Histogram of time spent in PREFILL phase for request.",
    ),
    MetricFamily(
        "vllm:request_decode_time_seconds",
        "histogram",
        "Histogram of time spent in DECODE phase for request.",
    ),
    MetricFamily(
        "vllm:request_num_preemptions",
        "histogram",
        "Histogram of the number of times a request was preempted.",
    ),
    MetricFamily(
        "vllm:request_prefill_kv_computed_tokens",
        "histogram",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
    MetricFamily("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig"),
    MetricFamily(
        "http_requests_total", "counter", "Total number of requests by method, status and handler."
    ),
    MetricFamily(
        "http_request_size_bytes",
        "summary",
        "Content length of incoming requests by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile "
        "calculated. ",
    ),
    MetricFamily(
        "http_response_size_bytes",
        "summary",
        "Content length of outgoing responses by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile "
        "calculated. ",
    ),
    MetricFamily(
        "http_request_duration_highr_seconds",
        "histogram",
        (
            "Latency with many buckets but no API specific labels. Made for more accurate "
            "percentile calculations. "
        ),
    ),
    MetricFamily(
        "http_request_duration_seconds",
        "histogram",
        (
            "Latency with only few buckets by handler. Made to be only used if aggregation by "
            "handler is important. "
        ),
    ),
)

SPECULATION: tuple[MetricFamily, ...] = (
    MetricFamily("vllm:spec_decode_num_drafts_total", "counter", "Number of spec decoding drafts."),
    MetricFamily("vllm:spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens."),
    MetricFamily(
        "vllm:spec_decode_num_accepted_tokens_total", "counter", "Number of accepted tokens."
    ),
    MetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
        "Accepted tokens per draft position.",
    ),
)
