"""The plain values that travel through the house: frozen, typed, units in their names, no I/O.

Absence is None everywhere: an unknown figure is never 0, "" or False. Wall-clock times are timezone-aware UTC datetimes;
durations that are measured come from a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal


class Outcome(StrEnum):
    """What became of one canary (docs/units.md tells each one)."""

    OK = "ok"
    QUEUE_CAP = "queue_cap"  # no first token within max_wait while the engine moved: cancelled by us
    HUNG = "hung"  # the engine's step counter stood still while our request was out
    ASLEEP = "asleep"
    REJECTED = "rejected"  # admission: 503 or 429
    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    EMPTY = "empty"
    CANCELLED = "cancelled"  # by us, for example at shutdown


#: Outcomes that say "the server got worse" (exit code 1) and not "it could not be measured" (exit code 3); DESIGN: exit codes.
REGRESSIONS = frozenset(
    {Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.TRUNCATED, Outcome.STREAM_ERROR, Outcome.MALFORMED, Outcome.EMPTY}
)
#: Outcomes after a known wait: a percentile that falls among them is "at least the smallest of these waits".
WAITED = frozenset({Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.TIMEOUT})


class Phase(StrEnum):
    """How warm the server was: each phase is a cohort of its own, none averaged into another."""

    COLD = "cold"
    IDLE = "idle"
    WARM = "warm"


class Verdict(StrEnum):
    """Of the quality gate."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    NEAR_TIE = "near_tie"
    FAIL = "fail"
    UNPINNED = "unpinned"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """What was seen; part of an incident's key."""

    SERVER_DOWN = "server_down"
    HUNG = "hung"
    NO_SAMPLES = "no_samples"
    UNKNOWN_LASTING = "unknown_lasting"
    TELEMETRY_BLIND = "telemetry_blind"
    GPU_FAULT = "gpu_fault"
    DRIVER_MISMATCH = "driver_mismatch"
    SPEED = "speed"
    THERMAL = "thermal"
    POWER = "power"
    SERVICE_LEVEL = "service_level"
    QUALITY = "quality"
    NEAR_TIES = "near_ties"
    CONFIG_CHANGE = "config_change"
    WORKLOAD_SHIFT = "workload_shift"
    PIN_EXPIRED = "pin_expired"
    NUMBER_EXPIRED = "number_expired"
    RESERVE = "reserve"
    SLOW_START = "slow_start"
    MONITOR = "monitor"


class Cause(StrEnum):
    """Why; may be refined while an incident is open."""

    HEAT = "heat"
    MEMORY_HEAT = "memory_heat"
    POWER_CAP = "power_cap"
    POWER_BRAKE = "power_brake"
    HIDDEN_LIMIT = "hidden_limit"
    QUEUEING = "queueing"
    CONFIG_CHANGE = "config_change"
    KERNEL_FALLBACK = "kernel_fallback"
    CACHE_LOST = "cache_lost"
    UPTIME_DECAY = "uptime_decay"
    SPECULATION = "speculation"
    NEIGHBOUR = "neighbour"
    HOST_BOUND = "host_bound"
    SLOW_STATE = "slow_state"
    ANSWERS_CHANGED = "answers_changed"
    SERVER_FAULT = "server_fault"
    UNEXPLAINED = "unexplained"


class Severity(StrEnum):
    """How loud. An early warning is a severity, not a kind."""

    INFO = "info"
    WARNING = "warning"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One condition on the answer; exactly one of the first group is set, `negate` turns it round."""

    equals: str | None = None
    any_of: tuple[str, ...] | None = None
    contains: str | None = None
    not_contains: str | None = None
    regex: str | None = None
    json_schema: Mapping[str, Any] | None = None
    json_fields: Mapping[str, Any] | None = None  # dotted path inside the JSON -> the value it must have
    number: float | None = None  # the last number in the answer, within `tolerance`
    similarity: str | None = None  # a text that the answer must resemble, at least to `floor` (0..1)
    finish_reason: str | None = None
    refusal: tuple[str, ...] | None = None  # phrases of a refusal; () = the usual ones
    negate: bool = False
    tolerance: float = 0.0
    floor: float = 0.9


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer with its log-probability (nat) and the likeliest alternatives there."""

    token: str
    logprob: float | None
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObservedAnswer:
    """An answer as the quality gate sees it. Without log-probabilities `tokens` is empty."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PinnedOutput:
    """One accepted answer: its tokens with their log-probabilities, and how often it was seen at pinning."""

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish_reason: str | None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned reference for a probe under a fingerprint, with a reason, a date and an expiry."""

    id: int
    target: str
    probe: str
    revision: str
    fingerprint: str | None  # digest of what was served
    reason: str
    author: str
    created_at: datetime
    expires_at: datetime
    outputs: tuple[PinnedOutput, ...]
    prompt_tokens: int | None
    noise_nat: float | None  # standard deviation of logprob_shift between repeats at pinning
    ttft_ms: tuple[float, ...] = ()
    decode_tok_s: tuple[float, ...] = ()
    retired_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """One canary prompt with its sampling settings, class, gate and schedule. Durations in seconds."""

    name: str
    traffic_class: str
    endpoint: Literal["chat", "completions"]
    messages: tuple[Mapping[str, str], ...] | None
    prompt: str | None
    max_tokens: int
    sampling: Mapping[str, Any]
    every_s: float | None
    cron: str | None
    max_wait_s: float | None  # None: never cut short, it measures the true wait
    timeout_s: float  # from the first token to the end of the answer
    expect: tuple[Expectation, ...] = ()
    priority: int | None = None
    reason: str | None = None
    context_share: float | None = None  # lengthen the prompt until it fills this share of the server's context
    context_at_most: int = 4000  # tokens, so that a long context does not eat the budget
    pinned: bool = False  # judged against the recorded pin; without one it is `unpinned`
    repeats: int = 3  # over how many of its last runs the gate counts,
    require: int = 2  # and how many of them must pass
    same_salt_twice: bool = False  # a second run with the same cache salt: does the prefix cache work?
    revision: str = ""  # digest of the definition: a changed text is a new revision

    @property
    def parameter_set(self) -> str:
        """What a server may have to compile for: the first answer per process start and parameter set is `cold`."""
        logprobs = "logprobs" if self.sampling.get("logprobs") else "plain"
        structured = "structured" if {"structured_outputs", "response_format"} & set(self.sampling) else "free"
        return f"{self.endpoint}/{logprobs}/{structured}/n{self.sampling.get('n', 1)}"

    @property
    def capped(self) -> bool:
        """Whether a wait for the first token is cut at `max_wait`; uncapped probes run in a lane of their own."""
        return self.max_wait_s is not None


@dataclass(frozen=True, slots=True)
class Marks:
    """Monotonic times of one stream in nanoseconds; None where the event never came.

    TTFT starts at `sent`: the moment the request's first byte goes out on a connection that is already open.
    """

    connect_started: int | None = None
    connected: int | None = None
    sent: int | None = None
    headers: int | None = None
    first_event: int | None = None
    first_token: int | None = None  # content, reasoning or tool call: never the empty role chunk
    first_visible: int | None = None  # content or tool call: what a user sees
    last_token: int | None = None  # the last chunk that brought a token, also the empty one of an end-of-text stop
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
        """Time to the first token that a user sees; later than `ttft_ms` for a model that reasons first."""
        return _between_ms(self.sent, self.first_visible)

    @property
    def e2e_ms(self) -> float | None:
        """From the request to the end of the stream."""
        return _between_ms(self.sent, self.done)


def _between_ms(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / 1e6


@dataclass(frozen=True, slots=True)
class ServerPage:
    """One reading of the server's /metrics page, summed over engines. Counters since the server's start; None = not there."""

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
    """One look at one card. Counters (energy, throttle times) run since the driver was loaded; None = not offered or failed."""

    at: datetime
    monotonic_ns: int
    uuid: str
    name: str | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    margin_c: float | None = None  # degrees to the nearest slowdown threshold, as the card says; never derived
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
    """A fault that the driver reported for a card. `at` is when we took it up: the driver gives no time."""

    uuid: str
    at: datetime
    xid: int  # NVIDIA's number of the fault


class CardFault(StrEnum):
    """What keeps a card, or the source of its readings, from being read."""

    LOST = "lost"  # the driver has lost the card, or shows it no more
    RESET = "reset"  # the card must be reset first
    MISSING = "missing"  # not listed, and never seen either
    MISMATCH = "mismatch"  # driver and library are of different versions
    SOURCE = "source"  # the driver or the exporter as a whole
    UNREADABLE = "unreadable"  # anything else


#: The subject of what concerns not one card but where the readings come from: the driver here, or an exporter.
DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something cannot be read, and since when. `reason` is a sentence for a person and may change while it lasts."""

    fault: CardFault
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class CardsView:
    """The cards of one target now: those known, those that answer, and troubles by UUID, `DRIVER`, or "card 0" where no UUID is known."""

    known: frozenset[str]
    answering: frozenset[str]
    troubles: Mapping[str, Trouble] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured execution of a probe: speed, quality, card and load in one row. Field names are the public ones."""

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
    *(f.name for f in fields(Sample) if f.name not in {"id", "target", "probe", "traffic_class", "started_at", "phase", "outcome"}),
)


#: A change of one of these is a trigger, and attribution speaks of them.
ROOT_FIELDS = (
    "vllm_version",
    "model_root",
    "model_hash",
    "tokenizer_hash",
    "template_hash",
    "max_model_len",
    "launch_options",
    "served_models",
    "environment",
    "image_digest",
    "driver_version",
    "gpu",
    "gpu_neighbours",
)
#: These follow from the roots: shown, and a trigger only when no root explains them.
DERIVED_FIELDS = (
    "system_fingerprint",
    "model_id",
    "model_family",
    "quantization",
    "kv_cache",
    "cuda_version",
    "attention_backend",
    "launch_command",
)
#: These move a little by themselves, for example with what else lies in the card's memory at start.
SOFT_FIELDS = ("num_gpu_blocks", "kv_cache_size_tokens")
#: What two samples must share to be comparable: the roots, and the derived fields that are often the only sign on a remote server.
DIGEST_FIELDS = (*ROOT_FIELDS, "system_fingerprint", "quantization", "kv_cache")


@dataclass(frozen=True, slots=True)
class FingerprintField:
    """One thing that must stay the same. `value` None = unknown, and `reason` says why."""

    name: str
    role: Literal["root", "derived", "soft"]
    value: Any = None
    source: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is being served, as far as it could be read at `at`; `digest` is set once it is stored."""

    target: str
    at: datetime
    fields: Mapping[str, FingerprintField]
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One field before and after. Values are JSON values."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Finding:
    """What a judge concludes now. `evidence` carries the numbers it rests on, in JSON values."""

    kind: Kind
    target: str
    subject: str
    severity: Severity
    summary: str
    since: datetime
    cause: Cause | None = None
    changes: tuple[Change, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same incident: kind, target and subject."""
        return (self.kind.value, self.target, self.subject)


@dataclass(frozen=True, slots=True)
class Incident:
    """The life of a finding with one key. It survives restarts; `closed_at` None = open."""

    id: int
    kind: Kind
    target: str
    subject: str
    severity: Severity
    summary: str
    opened_at: datetime
    cause: Cause | None = None
    acknowledged_at: datetime | None = None
    closed_at: datetime | None = None
    close_reason: str | None = None
    changes: tuple[Change, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, target and subject."""
        return (self.kind.value, self.target, self.subject)


@dataclass(frozen=True, slots=True)
class Contact:
    """One attempt to reach a server, by canary or by metrics page: the material of `server_down`."""

    at: datetime
    answered: bool
    detail: str


def duration_text(value: timedelta | float) -> str:
    """A duration as people write it: 800ms, 2s, 5m, 3h, 7d (seconds as a number, or a timedelta)."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
