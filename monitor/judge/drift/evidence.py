"""The values that the parts of drift detection exchange.

Changes are natural logarithms of now over before inside the channels, and per cent in these values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.model import Severity


@dataclass(frozen=True, slots=True)
class Shift:
    """The change of a metric in per cent of its baseline, with a 95 % interval."""

    metric: str
    change_pct: float
    low_pct: float
    high_pct: float

    @classmethod
    def of_log(cls, metric: str, log_ratio: float, half_width: float) -> Shift:
        """Returns the shift of a logarithm of now over before and its interval's half width."""
        return cls(
            metric, _pct(log_ratio), _pct(log_ratio - half_width), _pct(log_ratio + half_width)
        )


def _pct(log_ratio: float) -> float:
    return 100.0 * math.expm1(log_ratio)


@dataclass(frozen=True, slots=True)
class Effect:
    """A metric that got worse and stays worse.

    `channel`: decode | ttft | steps | start | cache | level. `since_us` is the dated onset, not
    the time of the alarm. `statistic` holds the numbers of the test that raised it.
    """

    channel: str
    shift: Shift
    since_us: int
    severity: Severity
    statistic: Mapping[str, int | float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Armed:
    """Whether a part of detection works yet, and from how much it has learned its baseline."""

    what: str
    armed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A reading in the reference period and now; None is unknown."""

    before: float | None = None
    now: float | None = None

    @property
    def log_ratio(self) -> float | None:
        """ln(now / before) if both are known and above zero."""
        if self.before is None or self.now is None or self.before <= 0 or self.now <= 0:
            return None
        return math.log(self.now / self.before)

    @property
    def rise(self) -> float | None:
        """now - before."""
        return None if self.before is None or self.now is None else self.now - self.before


@dataclass(frozen=True, slots=True)
class GpuComparison:
    """One GPU since an effect began, and in its reference period at like utilisation.

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
    # of the busiest and of the idlest readings, which load does not move
    top_util: Pair = Pair()
    top_power_w: Pair = Pair()
    idle_util: Pair = Pair()
    missing: tuple[str, ...] = ()  # readings that this GPU or its exporter does not offer


@dataclass(frozen=True, slots=True)
class ServerComparison:
    """The server's own figures since an effect began, and in their reference period."""

    running: Pair = Pair()
    waiting: Pair = Pair()
    kv_usage: Pair = Pair()
    queue_ms: Pair = Pair()
    prefill_ms: Pair = Pair()
    preemptions: Pair = Pair()  # per hour
    steps_s: Pair = Pair()
    spec_acceptance: Pair = Pair()
    prompt_len: Pair = Pair()  # tokens per request
    cached_share: Pair = Pair()  # of the second prompt of a pair with the same salt
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observations:
    """All that attribution may use.

    `effects` by channel: a channel that is not in it did not move. `calm`: channels that are armed
    and did not move.
    """

    effects: Mapping[str, Effect]
    calm: tuple[str, ...]
    gpus: tuple[GpuComparison, ...] = ()
    server: ServerComparison = ServerComparison()
    since_us: int = 0
    restarted_us: int | None = None  # the process start that the effect follows within minutes
    digest_changed_us: int | None = None  # the change of the fingerprint that it follows
    slope_per_h: float | None = None  # loss per hour of uptime (log), if it grows steadily
