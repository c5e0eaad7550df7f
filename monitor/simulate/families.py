"""The families of vLLM 0.32's metrics page with one API server, in its order: name, type and help
as it prints them.

`vllm:spec_decode_*` come only with speculative decoding (v1/spec_decode/metrics.py).
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """One family of samples."""

    name: str
    kind: str
    help: str


FAMILIES: tuple[Family, ...] = (
    Family("python_gc_objects_collected_total", "counter", "Objects collected during gc"),
    Family(
        "python_gc_objects_uncollectable_total", "counter", "Uncollectable objects found during GC"
    ),
    Family(
        "python_gc_collections_total", "counter", "Number of times this generation was collected"
    ),
    Family("python_info", "gauge", "Python platform information"),
    Family("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    Family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    Family(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    ),
    Family(
        "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."
    ),
    Family("process_open_fds", "gauge", "Number of open file descriptors."),
    Family("process_max_fds", "gauge", "Maximum number of open file descriptors."),
    Family(
        "vllm:estimated_flops_per_gpu_total",
        "counter",
        (
            "Estimated number of floating point operations per GPU (for Model Flops Utilization "
            "calculations)."
        ),
    ),
    Family(
        "vllm:estimated_read_bytes_per_gpu_total",
        "counter",
        (
            "Estimated number of bytes read from memory per GPU (for Model Flops Utilization "
            "calculations)."
        ),
    ),
    Family(
        "vllm:estimated_write_bytes_per_gpu_total",
        "counter",
        (
            "Estimated number of bytes written to memory per GPU (for Model Flops Utilization "
            "calculations)."
        ),
    ),
    Family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches."),
    Family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    Family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for "
        "scheduling capacity; 'deferred' = "
        "deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of "
        "all reasons equals "
        "vllm:num_requests_waiting.",
    ),
    Family(
        "vllm:engine_sleep_state",
        "gauge",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is "
        "awake; weights_offloaded = 1 means "
        "sleep level 1; discard_all = 1 means sleep level 2.",
    ),
    Family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    Family(
        "vllm:prefix_cache_queries_total",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
    ),
    Family(
        "vllm:prefix_cache_hits_total",
        "counter",
        "Prefix cache hits, in terms of number of cached tokens.",
    ),
    Family(
        "vllm:external_prefix_cache_queries_total",
        "counter",
        (
            "External prefix cache queries from KV connector cross-instance cache sharing, in "
            "terms of number of queried tokens."
        ),
    ),
    Family(
        "vllm:external_prefix_cache_hits_total",
        "counter",
        (
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms "
            "of number of cached tokens."
        ),
    ),
    Family(
        "vllm:mm_cache_queries_total",
        "counter",
        "Multi-modal cache queries, in terms of number of queried items.",
    ),
    Family(
        "vllm:mm_cache_hits_total",
        "counter",
        "Multi-modal cache hits, in terms of number of cached items.",
    ),
    Family(
        "vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine."
    ),
    Family("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed."),
    Family("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source."),
    Family(
        "vllm:prompt_tokens_cached_total",
        "counter",
        "Number of cached prompt tokens (local + external).",
    ),
    Family(
        "vllm:prompt_tokens_cached_by_source_total",
        "counter",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), "
        "host (offloaded to DRAM), disk, p2p "
        "(transferred from another vLLM instance) or external_unspecified. Counted at "
        "admission; sums to vllm:prefix_cache_hits "
        "+ vllm:external_prefix_cache_hits.",
    ),
    Family("vllm:generation_tokens_total", "counter", "Number of generation tokens processed."),
    Family("vllm:request_success_total", "counter", "Count of successfully processed requests."),
    Family(
        "vllm:admission_rejections_total",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
    ),
    Family("vllm:request_prompt_tokens", "histogram", "Number of prefill tokens processed."),
    Family("vllm:request_generation_tokens", "histogram", "Number of generation tokens processed."),
    Family(
        "vllm:iteration_tokens_total", "histogram", "Histogram of number of tokens per engine_step."
    ),
    Family(
        "vllm:request_max_num_generation_tokens",
        "histogram",
        "Histogram of maximum number of requested generation tokens.",
    ),
    Family("vllm:request_params_n", "histogram", "Histogram of the n request parameter."),
    Family(
        "vllm:request_params_max_tokens",
        "histogram",
        "Histogram of the max_tokens request parameter.",
    ),
    Family(
        "vllm:time_to_first_token_seconds",
        "histogram",
        "Histogram of time to first token in seconds.",
    ),
    Family(
        "vllm:inter_token_latency_seconds",
        "histogram",
        "Histogram of inter-token latency in seconds.",
    ),
    Family(
        "vllm:request_time_per_output_token_seconds",
        "histogram",
        "Histogram of time_per_output_token_seconds per request.",
    ),
    Family(
        "vllm:e2e_request_latency_seconds",
        "histogram",
        "Histogram of e2e request latency in seconds.",
    ),
    Family(
        "vllm:request_queue_time_seconds",
        "histogram",
        "Histogram of time spent in WAITING phase for request.",
    ),
    Family(
        "vllm:request_inference_time_seconds",
        "histogram",
        "Histogram of time spent in RUNNING phase for request.",
    ),
    Family(
        "vllm:request_prefill_time_seconds",
        "histogram",
        "Histogram of time spent in PREFILL phase for request.",
    ),
    Family(
        "vllm:request_decode_time_seconds",
        "histogram",
        "Histogram of time spent in DECODE phase for request.",
    ),
    Family(
        "vllm:request_num_preemptions",
        "histogram",
        "Histogram of the number of times a request was preempted.",
    ),
    Family(
        "vllm:request_prefill_kv_computed_tokens",
        "histogram",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
    Family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig"),
    Family(
        "http_requests_total", "counter", "Total number of requests by method, status and handler."
    ),
    Family(
        "http_request_size_bytes",
        "summary",
        "Content length of incoming requests by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile "
        "calculated. ",
    ),
    Family(
        "http_response_size_bytes",
        "summary",
        "Content length of outgoing responses by handler. Only value of header is respected. "
        "Otherwise ignored. No percentile "
        "calculated. ",
    ),
    Family(
        "http_request_duration_highr_seconds",
        "histogram",
        (
            "Latency with many buckets but no API specific labels. Made for more accurate "
            "percentile calculations. "
        ),
    ),
    Family(
        "http_request_duration_seconds",
        "histogram",
        (
            "Latency with only few buckets by handler. Made to be only used if aggregation by "
            "handler is important. "
        ),
    ),
)

SPECULATION: tuple[Family, ...] = (
    Family("vllm:spec_decode_num_drafts_total", "counter", "Number of spec decoding drafts."),
    Family("vllm:spec_decode_num_draft_tokens_total", "counter", "Number of draft tokens."),
    Family("vllm:spec_decode_num_accepted_tokens_total", "counter", "Number of accepted tokens."),
    Family(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "counter",
        "Accepted tokens per draft position.",
    ),
)
