"""One measured run of a probe, and the timestamps of its stream."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

from monitor.model.words import Outcome, Phase, Verdict


@dataclass(frozen=True, slots=True)
class Marks:
    """A stream's monotonic timestamps, in nanoseconds; None where the event never came.

    TTFT starts at `sent`, when the first byte of the request goes out on an open connection.
    """

    connect_started: int | None = None
    connected: int | None = None
    sent: int | None = None
    headers: int | None = None
    first_event: int | None = None
    first_token: int | None = None  # content, reasoning or tool call: never the empty role chunk
    first_visible: int | None = None  # content or tool call: what a user sees
    # the last chunk that brought a token, including the empty one of an end-of-text stop
    last_token: int | None = None
    done: int | None = None

    @property
    def connect_ms(self) -> float | None:
        """Time to open the connection (TCP and TLS)."""
        return _between_ms(self.connect_started, self.connected)

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token. vLLM sends an empty role chunk before it; see docs/units.md."""
        return _between_ms(self.sent, self.first_token)

    @property
    def ttft_visible_ms(self) -> float | None:
        """Time to the first token that a user sees; later than `ttft_ms` if the model reasons
        first.
        """
        return _between_ms(self.sent, self.first_visible)

    @property
    def e2e_ms(self) -> float | None:
        """Time from the request to the end of the stream."""
        return _between_ms(self.sent, self.done)


def _between_ms(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / 1e6


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run of a probe: speed, quality, GPU and load in one row. Field names are public
    (docs/units.md).
    """

    target: str
    probe: str
    traffic_class: str  # shown as `class`
    started_at: datetime
    phase: Phase
    outcome: Outcome
    id: int | None = None
    verdict: Verdict = Verdict.UNKNOWN
    stale: bool | None = None
    fingerprint: str | None = None
    pin: int | None = None
    priority: int | None = None
    process_start: datetime | None = None
    idle_before_s: float | None = None
    connect_ms: float | None = None
    ttft_ms: float | None = None
    ttft_visible_ms: float | None = None
    e2e_ms: float | None = None
    decode_tok_s: float | None = None
    itl_p50_ms: float | None = None
    itl_p95_ms: float | None = None
    itl_max_ms: float | None = None
    observer_lag_ms: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    output: str | None = None
    spec_acceptance: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    server_timing: str | None = None  # "response", "metrics" or None
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
    energy_j: float | None = None
    vram_used_mib: float | None = None
    throttle_thermal_ms: float | None = None
    throttle_power_ms: float | None = None
    throttle_brake_ms: float | None = None
    gpu_age_ms: float | None = None
    first_divergence: int | None = None
    logprob_shift: float | None = None


#: The public names of a sample's fields, in the order of every view, JSON object and CSV file.
SAMPLE_FIELDS: tuple[str, ...] = (
    "id",
    "target",
    "probe",
    "class",
    "started_at",
    "phase",
    "outcome",
    *(
        f.name
        for f in fields(Sample)
        if f.name
        not in {"id", "target", "probe", "traffic_class", "started_at", "phase", "outcome"}
    ),
)
