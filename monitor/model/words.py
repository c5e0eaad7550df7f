"""The closed lists: outcomes, phases, verdicts, kinds, causes and severities."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The end of one canary (docs/units.md describes each)."""

    OK = "ok"
    QUEUE_CAP = "queue_cap"  # no first token within max_wait while the engine moved; cancelled
    HUNG = "hung"  # the engine's step counter did not advance while the request was waiting
    ASLEEP = "asleep"
    REJECTED = "rejected"  # admission control: HTTP 503 or 429
    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP_ERROR = "http_error"
    STREAM_ERROR = "stream_error"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    EMPTY = "empty"
    CANCELLED = "cancelled"  # by vllm-canary, for example at shutdown


#: Outcomes that mean "the server got worse" (exit code 1), not "it could not be measured" (exit
#: code 3).
REGRESSIONS = frozenset(
    {
        Outcome.QUEUE_CAP,
        Outcome.HUNG,
        Outcome.TRUNCATED,
        Outcome.STREAM_ERROR,
        Outcome.MALFORMED,
        Outcome.EMPTY,
    }
)
#: Outcomes after a known wait: a percentile that falls among them is at least the shortest of
#: these waits.
WAITED = frozenset({Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.TIMEOUT})


class Phase(StrEnum):
    """The warmth of the server at a canary. Phases are cohorts, never averaged together."""

    COLD = "cold"
    IDLE = "idle"
    WARM = "warm"


class Verdict(StrEnum):
    """The verdict of the quality gate on one answer."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    NEAR_TIE = "near_tie"
    FAIL = "fail"
    UNPINNED = "unpinned"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """The observed problem; part of an incident's key.

    No judge produces NUMBER_EXPIRED and RESERVE yet: the names are reserved, so that receivers of
    alerts can already accept them.
    """

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
    """The reason for a problem; it may be refined while an incident is open."""

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
    """The urgency, in increasing order. An early warning is a severity, not a kind."""

    INFO = "info"
    WARNING = "warning"
    PAGE = "page"

    @property
    def rank(self) -> int:
        """The position in increasing order of urgency, for `max` and `sorted`."""
        return _SEVERITIES.index(self)


_SEVERITIES = tuple(Severity)
