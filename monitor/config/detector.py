"""The block `detector:`. The defaults need no tuning; a test compares them with those of
monitor/judge/drift/settings.py.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from monitor.config.block import ConfigBlock
from monitor.config.values import Duration

# of a block and of a step: shorter ones would be empty, and each would be processed in every gap
SHORTEST_S = 1.0
LONGEST_S = 3650 * 86_400.0  # of every duration: times beyond it are outside the calendar


def _a_second_at_least(seconds: float) -> float:
    if seconds < SHORTEST_S:
        raise ValueError(f"is {seconds * 1000:g}ms; it must be 1s or longer")
    return seconds


Step = Annotated[Duration, AfterValidator(_a_second_at_least)]


class DetectorSettings(ConfigBlock):
    """The settings of drift detection (docs/detection.md). Only the first one is meant to be
    changed; try others with `backtest --set` first.
    """

    false_alarms_per_month: float = Field(
        default=0.05,
        gt=0,
        le=30,
        description=(
            "The accepted number of false alarms (pages) per target in 30 days. A larger number "
            "detects drift sooner."
        ),
        examples=[0.05],
    )
    block: Step = Field(
        default=300.0,
        description="Canaries are judged in blocks of this length, by a robust mean.",
        examples=["5m"],
    )
    grace: Duration = Field(
        default=30.0,
        description="How long a block waits after its end for canaries that are still running.",
        examples=["30s"],
    )
    block_samples: int = Field(
        default=3, ge=1, description="A block with fewer canaries is not judged.", examples=[3]
    )
    learn: Duration = Field(
        default=43_200.0,
        description="The minimum time from which a baseline is learned.",
        examples=["12h"],
    )
    learn_blocks: int = Field(
        default=96,
        ge=2,
        description="The minimum number of blocks from which a baseline is learned.",
        examples=[96],
    )
    remember: Duration = Field(
        default=604_800.0,
        description="The maximum time from which a baseline is learned.",
        examples=["7d"],
    )
    support_samples: int = Field(
        default=60,
        ge=1,
        description=(
            "The number of canaries required at a load before decode rates at it are compared."
        ),
        examples=[60],
    )
    small_drop: float = Field(
        default=0.03,
        gt=0,
        lt=1,
        description="The smaller of the two relative drops in speed that are tested for.",
        examples=[0.03],
    )
    large_drop: float = Field(
        default=0.08,
        gt=0,
        lt=1,
        description="The larger of the two drops, which is detected sooner.",
        examples=[0.08],
    )
    practical_pct: float = Field(
        default=1.5,
        ge=0,
        lt=100,
        description="A change of fewer per cent is not reported, however certain it is.",
        examples=[1.5],
    )
    thermal_duty_points: float = Field(
        default=2.0,
        gt=0,
        le=100,
        description=(
            "Warn about a GPU that is thermally throttled this many percentage points of the time "
            "more than at its baseline."
        ),
        examples=[2.0],
    )
    margin_c: float = Field(
        default=5.0,
        ge=0,
        description=(
            "Warn about a GPU whose margin to slowdown is below this many degrees under load."
        ),
        examples=[5.0],
    )
    memory_max_c: float | None = Field(
        default=None,
        gt=0,
        description="The slowdown temperature of the memory, for GPUs that do not report it.",
        examples=[85.0],
    )
    residual_c: float = Field(
        default=4.0,
        gt=0,
        description="Warn about a GPU that is this many degrees hotter than its power explains.",
        examples=[4.0],
    )
    # The key has the former word for a GPU: renaming it would break existing configurations.
    card_step: Step = Field(
        default=60.0,
        description=(
            "GPUs are judged in steps of this length: one minute in the rules of docs/detection.md."
        ),
        examples=["60s"],
    )
    clock_sds: float = Field(
        default=4.0,
        gt=0,
        description=(
            "Warn about a GPU whose clock is this many standard deviations below its baseline at "
            "this temperature and power."
        ),
        examples=[4.0],
    )

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> DetectorSettings:
        # A key that is set alone is checked later, together with the others.
        if not (info.context or {}).get("alone"):
            self.check()
        return self

    def check(self) -> None:
        """Raises ValueError for settings that contradict each other."""
        if self.large_drop <= self.small_drop:
            raise ValueError(
                f"give large_drop a value above small_drop ({self.small_drop:g}); it is "
                f"{self.large_drop:g}"
            )
        if self.remember < self.learn:
            raise ValueError("give remember at least the length of learn")
        for name in ("block", "grace", "learn", "remember", "card_step"):
            if getattr(self, name) > LONGEST_S:
                raise ValueError(f"give {name} at most ten years")
