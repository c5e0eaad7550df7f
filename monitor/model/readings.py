"""What is read of a server and its GPUs between canaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True, slots=True)
class ServerPage:
    """One reading of the server's /metrics page, summed over engines. Counters since the server's
    start; None = not there.
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
    """One look at one GPU. Counters (energy, throttle times) run since the driver was loaded; None
    = not offered or failed.
    """

    at: datetime
    monotonic_ns: int
    uuid: str
    name: str | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    margin_c: float | None = (
        None  # degrees to the nearest slowdown threshold, as the GPU says; never derived
    )
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
    """A fault that the driver reported for a GPU. `at` is when we took it up: the driver gives no
    time.
    """

    uuid: str
    at: datetime
    xid: int  # NVIDIA's number of the fault


class GpuFault(StrEnum):
    """What keeps a GPU, or the source of its readings, from being read."""

    LOST = "lost"  # the driver has lost the GPU, or shows it no more
    RESET = "reset"  # the GPU must be reset first
    MISSING = "missing"  # not listed, and never seen either
    MISMATCH = "mismatch"  # driver and library are of different versions
    SOURCE = "source"  # the driver or the exporter as a whole
    UNREADABLE = "unreadable"  # anything else


#: The subject of what concerns not one GPU but where the readings come from: the driver here, or
#: an exporter.
DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class ReadProblem:
    """Why something cannot be read, and since when. `reason` is a sentence for a person and may
    change while it lasts.
    """

    fault: GpuFault
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class GpusView:
    """The GPUs of one target now: those known, those that answer, and troubles by UUID, `DRIVER`,
    or "GPU 0" where no UUID is known.
    """

    known: frozenset[str]
    answering: frozenset[str]
    troubles: Mapping[str, ReadProblem] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contact:
    """One attempt to reach a server, by canary or by metrics page: the material of
    `server_down`.
    """

    at: datetime
    answered: bool
    detail: str
