"""The input of drift detection: canaries, GPU readings and server readings as compact points.

A year of one target is half a million points, so they are named tuples with integer times; every
field but the time may be unknown. Names and units are those of Sample, GpuReading and ServerPage.
"""

from __future__ import annotations

from typing import NamedTuple


class CanaryPoint(NamedTuple):
    """One sample as the detectors see it. Times are integer UTC microseconds."""

    at_us: int  # when it was sent
    known_us: int  # when its result was known: no judge may use it earlier
    probe: str = ""
    traffic_class: str = ""
    phase: str = "warm"
    outcome: str = "ok"
    verdict: str | None = None
    fingerprint: str | None = None  # digest
    process_start_us: int | None = None
    priority: int | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    decode_tok_s: float | None = None
    itl_p50_ms: float | None = None
    itl_p95_ms: float | None = None
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    cached_tokens: float | None = None
    spec_acceptance: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    preemptions: float | None = None
    other_prompt_tokens: float | None = None
    other_generation_tokens: float | None = None
    gpu_uuid: str | None = None
    gpu_temp_c: float | None = None
    gpu_mem_temp_c: float | None = None
    gpu_margin_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    gpu_util: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    vram_used_mib: float | None = None
    throttle_thermal_ms: float | None = None
    throttle_power_ms: float | None = None
    throttle_brake_ms: float | None = None
    first_divergence: float | None = None
    logprob_shift: float | None = None
    stale: bool | None = None
    pin: int | None = None


class GpuPoint(NamedTuple):
    """A few seconds of one GPU: medians, and its counters at the end. Counters run since the driver
    was loaded.
    """

    at_us: int
    uuid: str
    temp_c: float | None = None
    mem_temp_c: float | None = None
    margin_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    util: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    vram_used_mib: float | None = None
    event_reasons: int | None = None
    energy_j: float | None = None
    throttle_thermal_ns: int | None = None
    throttle_power_ns: int | None = None
    throttle_brake_ns: int | None = None


class ServerPoint(NamedTuple):
    """One reading of the metrics page; counters run since the server's start."""

    at_us: int
    state: str = "ok"
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
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


Point = CanaryPoint | GpuPoint | ServerPoint
