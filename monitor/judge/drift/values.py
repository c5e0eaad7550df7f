"""What the parts of drift detection hand to each other. Changes are natural logarithms of now over
before inside, per cent outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from monitor.model import Severity

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """Thresholds. The defaults need no tuning; `false_alarms_per_month` is the one knob for people,
    the rest is for `backtest --set`.
    """

    false_alarms_per_month: float = 0.05  # pages a target may cost in 30 days by chance
    block_s: float = 300.0  # canaries are judged in blocks of this length, by their median
    grace_s: float = (
        30.0  # a block is closed this long after its end: canaries under way may still come in
    )
    block_samples: int = 3  # fewer say nothing
    learn_h: float = 12.0  # what is normal is learnt from at least so many hours of blocks,
    learn_blocks: int = 96  # and so many of them
    remember_days: float = 7.0  # and at most from so many days
    support_samples: int = 60  # a load is known when so many canaries met it
    small_drop: float = 0.03  # the two sizes the sequential tests look for
    large_drop: float = 0.08
    practical_pct: float = 1.5  # less than this is nobody's business, however sure
    levels: Mapping[str, float] = field(
        default_factory=dict
    )  # milliseconds to the first token that a traffic class may take
    thermal_duty_points: float = (
        2.0  # of a GPU's time throttled for heat, above what is usual for it, in per cent of time
    )
    margin_c: float = 5.0  # degrees to a GPU's own limit, below which it is warned of
    memory_max_c: float | None = (
        None  # where the memory of these GPUs throttles, for GPUs that do not tell (a V100: 85)
    )
    residual_c: float = 4.0  # degrees that a GPU is hotter than its power explains
    gpu_step_s: float = (
        60.0  # GPUs are judged in steps of this length: the "minutes" of their rules
    )
    # standard deviations that a GPU's busy clock is below what it does at this temperature and
    # power
    clock_sds: float = 4.0


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
class Warned:
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
class GpuSigns:
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
class FlowSigns:
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
class Signs:
    """All that attribution may look at."""

    effects: Mapping[
        str, Effect
    ]  # by channel: decode, ttft, … ; one that is not there did not move
    calm: tuple[str, ...]  # channels that are armed and did not move
    gpus: tuple[GpuSigns, ...] = ()
    flow: FlowSigns = FlowSigns()
    since_us: int = 0
    restarted_us: int | None = None  # the process start that the effect follows within minutes
    digest_changed_us: int | None = None  # likewise a change of the fingerprint
    slope_per_h: float | None = (
        None  # loss per hour of uptime (log), where it grows steadily since a start
    )
    neighbours: bool | None = None  # another process on the GPU, where that can be seen
