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
