"""Readings in virtual time: the metrics page of a simulated server, and its GPUs.

A page is read from the engine's counters: printing and parsing the 37,000 pages of a history of
three days would take minutes. A test compares it with the real parser on the printed page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from monitor.measure.server.metrics_page import SCRAPE_TIMEOUT_S
from monitor.model import GpuReading, ServerPage
from monitor.simulate.gpu.gpu import Gpu
from monitor.simulate.world import World

#: A family of the page -> its fields, for pages that hide or rename some.
_FIELDS_OF: Mapping[str, tuple[str, ...]] = {
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
    "vllm:request_decode_time_seconds": ("decode_s_sum", "decode_count"),
    "vllm:engine_sleep_state": ("asleep",),
    "process_start_time_seconds": ("process_start_s",),
}


def utc(unix_s: float) -> datetime:
    """A unix time as a datetime."""
    return datetime.fromtimestamp(unix_s, UTC)


def read_page(world: World) -> ServerPage:
    """Reads the metrics page."""
    at, identity = utc(world.unix_s), world.identity
    if world.is_down:
        return ServerPage(at, "refused")
    if identity.metrics_status != 200:
        return ServerPage(at, "http_error")
    if identity.metrics_delay_s > SCRAPE_TIMEOUT_S:
        return ServerPage(at, "timeout")
    counters, gauges, config = world.engine.counters, world.gauges(), world.config
    drafts = config.num_speculative_tokens > 0
    page = ServerPage(
        at=at,
        state="ok",
        process_start_s=world.process_start_s if identity.api_servers == 1 else None,
        running=gauges.running,
        waiting=gauges.waiting,
        kv_usage=gauges.kv_usage,
        asleep=config.asleep,
        engine_steps=counters.iteration_tokens.count,
        preemptions=counters.num_preemptions,
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        requests_finished=sum(counters.request_success.values()),
        requests_aborted=counters.request_success["abort"],
        queue_s_sum=counters.queue_time.sum,
        queue_count=counters.queue_time.count,
        prefill_s_sum=counters.prefill_time.sum,
        prefill_count=counters.prefill_time.count,
        decode_s_sum=counters.decode_time.sum,
        decode_count=counters.decode_time.count,
        draft_tokens=counters.spec_decode_num_draft_tokens if drafts else None,
        accepted_tokens=counters.spec_decode_num_accepted_tokens if drafts else None,
    )
    return _without(page, (*identity.hidden_metrics, *identity.renamed_metrics))


def _without(page: ServerPage, families: tuple[str, ...]) -> ServerPage:
    """The page without the fields of some families."""
    missing: dict[str, Any] = {
        name: None for family in families for name in _FIELDS_OF.get(family, ())
    }
    return replace(page, **missing) if missing else page


def read_gpus(world: World) -> dict[str, GpuReading]:
    """Reads the GPUs of a server, by UUID."""
    world.settle()
    at, monotonic_ns = utc(world.unix_s), round(world.now_s * 1e9)
    readings = (_reading(gpu, at, monotonic_ns) for gpu in world.gpus if isinstance(gpu, Gpu))
    return {reading.uuid: reading for reading in readings}


def _reading(gpu: Gpu, at: datetime, monotonic_ns: int) -> GpuReading:
    now = gpu.reading()
    return GpuReading(
        at=at,
        monotonic_ns=monotonic_ns,
        uuid=now.uuid,
        name=now.name,
        temp_c=now.temp_c,
        mem_temp_c=now.mem_temp_c,
        margin_c=now.margin_c,
        sm_clock_mhz=now.sm_clock_mhz,
        mem_clock_mhz=now.mem_clock_mhz,
        util=now.util,
        power_w=now.power_w,
        power_limit_w=now.power_limit_w,
        energy_j=now.energy_j,
        vram_used_mib=now.vram_used_mib,
        event_reasons=now.event_reasons,
        throttle_thermal_ns=now.sw_thermal_ns + now.hw_thermal_ns,
        throttle_power_ns=now.sw_power_ns,
        throttle_brake_ns=now.brake_ns,
    )
