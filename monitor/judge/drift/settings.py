"""Thresholds of drift detection, and the units of time it counts in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """Thresholds. The defaults need no tuning: `false_alarms_per_month` is the one setting for
    users, the others are for `backtest --set`.
    """

    # pages that a target may cost in 30 days by chance
    false_alarms_per_month: float = 0.05
    # canaries are judged in blocks of this length, by their robust mean
    block_s: float = 300.0
    # a block is closed this long after its end, since canaries in flight may still arrive
    grace_s: float = 30.0
    # a block with fewer canaries joins the next one
    block_samples: int = 3
    # the baseline is learned from at least this many hours and this many blocks,
    learn_h: float = 12.0
    learn_blocks: int = 96
    # and from at most this many days
    remember_days: float = 7.0
    # canaries at a load before that load counts as known
    support_samples: int = 60
    # the two step sizes that the sequential tests look for, as shares
    small_drop: float = 0.03
    large_drop: float = 0.08
    # a smaller change has no practical effect, however certain it is
    practical_pct: float = 1.5
    # time to first token allowed for each traffic class, in milliseconds
    levels: Mapping[str, float] = field(default_factory=dict)
    # thermal throttling above the baseline, in percentage points of time
    thermal_duty_points: float = 2.0
    # a margin to slowdown below this is a warning
    margin_c: float = 5.0
    # temperature at which the memory throttles, for GPUs that do not report it (V100: 85)
    memory_max_c: float | None = None
    # temperature above what power explains
    residual_c: float = 4.0
    # GPUs are judged in steps of this length: the "minutes" of their rules
    gpu_step_s: float = 60.0
    # how far the busy clock is below its expected value at this temperature and power, in standard
    # deviations
    clock_sds: float = 4.0

    @property
    def block_us(self) -> int:
        """Length of a block."""
        return round(self.block_s * SECOND_US)

    @property
    def grace_us(self) -> int:
        """How long after its end a block is closed."""
        return round(self.grace_s * SECOND_US)
