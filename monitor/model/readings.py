"""Readings of a server and its GPUs between canaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True, slots=True)
class ServerPage:
    """One reading of the server's /metrics page, summed over engines. Counters run since the
    server's start; None = not exported.
    """

    at: datetime
    state: Literal["ok", "refused", "timeout", "http_error", "unreadable"]
    process_start_s: float | None = None  # unix time; absent with several API servers
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1
    asleep: bool | None = None
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
    decode_s_sum: float | None = None
    decode_count: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    cache_config: Mapping[str, str] | None = None  # labels of vllm:cache_config_info
    model_name: str | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of one GPU. Counters (energy, throttle times) run since the driver was loaded;
    None = not supported or failed.
    """

    at: datetime
    monotonic_ns: int
    uuid: str
    name: str | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    # degrees to the nearest slowdown threshold as reported by the GPU, never derived
    margin_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    util: float | None = None  # 0..1, share of time in which a kernel ran
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    vram_used_mib: float | None = None
    event_reasons: int | None = None  # bit mask of clocks event reasons
    throttle_thermal_ns: int | None = None
    throttle_power_ns: int | None = None
    throttle_brake_ns: int | None = None


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """A fault that the driver reported for a GPU. `at` is when it was read: the driver reports no
    time.
    """

    uuid: str
    at: datetime
    xid: int  # NVIDIA's number for the fault (docs.nvidia.com/deploy/xid-errors)


class GpuFault(StrEnum):
    """Why a GPU, or the source of its readings, cannot be read."""

    LOST = "lost"  # the driver has lost the GPU, or no longer lists it
    RESET = "reset"  # the GPU requires a reset
    MISSING = "missing"  # not listed, and never seen before
    MISMATCH = "mismatch"  # kernel driver and library have different versions
    SOURCE = "source"  # the whole driver or exporter
    UNREADABLE = "unreadable"  # anything else


#: The subject of findings about the source of all readings: the local driver, or an exporter.
DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class ReadProblem:
    """Why something cannot be read, and since when. `reason` is a clause for a person and may
    change while the problem lasts.
    """

    fault: GpuFault
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class GpusView:
    """The GPUs of one target now: known ones, those that answer, and problems by UUID, `DRIVER`, or
    "GPU 0" where the UUID is unknown.
    """

    known: frozenset[str]
    answering: frozenset[str]
    problems: Mapping[str, ReadProblem] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contact:
    """One attempt to reach a server, by canary or by metrics page, as `server_down` counts it."""

    at: datetime
    answered: bool
    detail: str
