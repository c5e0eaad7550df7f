"""What the parts of drift detection hand to each other. Changes are natural logarithms of now over
before inside, per cent outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monitor.model import Severity


@dataclass(frozen=True, slots=True)
class Shift:
    """How much a metric moved, in per cent of what it was, with a 95 % interval."""

    metric: str
    change_pct: float
    low_pct: float
    high_pct: float

    @classmethod
    def of_log(cls, metric: str, log_ratio: float, half_width: float) -> Shift:
        """From the logarithm of now over before and the half width of its interval."""
        return cls(
            metric, _pct(log_ratio), _pct(log_ratio - half_width), _pct(log_ratio + half_width)
        )


def _pct(log_ratio: float) -> float:
    return 100.0 * math.expm1(log_ratio)


@dataclass(frozen=True, slots=True)
class Effect:
    """A metric that got worse and stays so. `channel`: decode | ttft | level | start | steps."""

    channel: str
    shift: Shift
    since_us: int  # the dated onset, not the moment of the alarm
    severity: Severity
    statistic: Mapping[str, Any] = field(
        default_factory=dict
    )  # the numbers of the test that raised it


@dataclass(frozen=True, slots=True)
class GpuWarning:
    """Something about a GPU that will be felt, before it is felt. `sign` names it, for example
    thermal_duty.
    """

    sign: str
    subject: str  # the GPU's UUID
    severity: Severity
    since_us: int
    evidence: Mapping[str, Any]
    summary: str


@dataclass(frozen=True, slots=True)
class Armed:
    """Whether a part of detection works yet. `what` for people, `detail` says from how much was
    learnt, or what is still missing.
    """

    what: str
    armed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A reading in the reference time and now; None is unknown."""

    before: float | None = None
    now: float | None = None

    @property
    def log_ratio(self) -> float | None:
        """ln(now / before), where both are known and above zero."""
        if self.before is None or self.now is None or self.before <= 0 or self.now <= 0:
            return None
        return math.log(self.now / self.before)

    @property
    def rise(self) -> float | None:
        """now - before."""
        return None if self.before is None or self.now is None else self.now - self.before


@dataclass(frozen=True, slots=True)
class GpuComparison:
    """What one GPU shows since an effect began, beside its reference under like utilisation.
    Duties are shares of time, 0..1.
    """

    uuid: str
    temp_c: Pair = Pair()
    mem_temp_c: Pair = Pair()
    margin_c: Pair = Pair()
    residual_c: float | None = None  # temperature minus what its power explains
    sm_clock_mhz: Pair = Pair()  # medians of busy readings
    mem_clock_mhz: Pair = Pair()
    util: Pair = Pair()
    power_w: Pair = Pair()
    power_limit_w: Pair = Pair()
    vram_used_mib: Pair = Pair()
    thermal_duty: Pair = Pair()
    power_duty: Pair = Pair()
    brake_duty: Pair = Pair()
    top_util: Pair = Pair()  # of the busiest looks: the ceiling, which load does not move
    top_power_w: Pair = Pair()  # likewise
    idle_util: Pair = Pair()  # of the idlest looks
    missing: tuple[
        str, ...
    ] = ()  # readings that this GPU or exporter does not offer and a proof would need


@dataclass(frozen=True, slots=True)
class ServerComparison:
    """What the server's own figures show since an effect began, beside their reference."""

    running: Pair = Pair()
    waiting: Pair = Pair()
    kv_usage: Pair = Pair()
    queue_ms: Pair = Pair()
    prefill_ms: Pair = Pair()
    preemptions: Pair = Pair()  # an hour
    steps_s: Pair = Pair()
    spec_acceptance: Pair = Pair()
    prompt_len: Pair = Pair()  # tokens a request
    cached_share: Pair = Pair()  # of the same-salt pair's second prompt
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observations:
    """All that attribution may look at."""

    effects: Mapping[
        str, Effect
    ]  # by channel: decode, ttft, … ; one that is not there did not move
    calm: tuple[str, ...]  # channels that are armed and did not move
    gpus: tuple[GpuComparison, ...] = ()
    flow: ServerComparison = ServerComparison()
    since_us: int = 0
    restarted_us: int | None = None  # the process start that the effect follows within minutes
    digest_changed_us: int | None = None  # likewise a change of the fingerprint
    slope_per_h: float | None = (
        None  # loss per hour of uptime (log), where it grows steadily since a start
    )
    neighbours: bool | None = None  # another process on the GPU, where that can be seen
