"""The block `detector:`. The defaults need no tuning; a test holds them to those of
monitor/judge/drift/settings.py.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from monitor.config.block import Block
from monitor.config.values import Duration

# of a block and of a step: shorter ones hold nothing, and would be counted one by one through every
# gap
SHORTEST_S = 1.0
LONGEST_S = 3650 * 86_400.0  # of all of them: times beyond it are no dates any more


def _a_second_at_least(seconds: float) -> float:
    if seconds < SHORTEST_S:
        raise ValueError(f"is {seconds * 1000:g}ms; it must be 1s or longer")
    return seconds


Step = Annotated[Duration, AfterValidator(_a_second_at_least)]


class DetectorSettings(Block):
    """How drift is detected (docs/detection.md). Only the first is meant to be changed; try the
    others with `backtest --set` first.
    """

    false_alarms_per_month: float = Field(
        default=0.05,
        gt=0,
        le=30,
        description=(
            "How many pages a target may cost in 30 days by chance. More finds a drift sooner."
        ),
        examples=[0.05],
    )
    block: Step = Field(
        default=300.0,
        description="Canaries are judged in blocks of this length, by their median.",
        examples=["5m"],
    )
    grace: Duration = Field(
        default=30.0,
        description="How long after its end a block waits for canaries that are still under way.",
        examples=["30s"],
    )
    block_samples: int = Field(
        default=3, ge=1, description="A block with fewer canaries says nothing.", examples=[3]
    )
    learn: Duration = Field(
        default=43_200.0,
        description="From how much time at least it is learnt what is normal,",
        examples=["12h"],
    )
    learn_blocks: int = Field(
        default=96, ge=2, description="and from how many blocks at least.", examples=[96]
    )
    remember: Duration = Field(
        default=604_800.0, description="From how much time at most.", examples=["7d"]
    )
    support_samples: int = Field(
        default=60,
        ge=1,
        description=(
            "A load is known when so many canaries met it; what is not known is not compared."
        ),
        examples=[60],
    )
    small_drop: float = Field(
        default=0.03,
        gt=0,
        lt=1,
        description="The smaller of the two losses of speed that are looked for, as a share.",
        examples=[0.03],
    )
    large_drop: float = Field(
        default=0.08,
        gt=0,
        lt=1,
        description="The larger of them, which is found sooner.",
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
            "A GPU is warned of that is throttled for heat so many per cent of the "
            "time more than usual."
        ),
        examples=[2.0],
    )
    margin_c: float = Field(
        default=5.0,
        ge=0,
        description=(
            "Or whose margin to its own limit is smaller than so many degrees while it works."
        ),
        examples=[5.0],
    )
    memory_max_c: float | None = Field(
        default=None,
        gt=0,
        description=(
            "At how many degrees the memory of these GPUs is throttled, for GPUs that do not tell."
        ),
        examples=[85.0],
    )
    residual_c: float = Field(
        default=4.0,
        gt=0,
        description="Or that is so many degrees hotter than its power explains.",
        examples=[4.0],
    )
    card_step: Step = Field(
        default=60.0,
        description=(
            "GPUs are judged in steps of this length: the minutes of the rules in "
            "docs/detection.md."
        ),
        examples=["60s"],
    )
    clock_sds: float = Field(
        default=4.0,
        gt=0,
        description=(
            "Or whose clock is so many standard deviations below what it does at this "
            "temperature and power."
        ),
        examples=[4.0],
    )

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> DetectorSettings:
        if not (info.context or {}).get(
            "alone"
        ):  # one key alone is checked with the others beside it
            self.check()
        return self

    def check(self) -> None:
        """Raises ValueError, with the mend, for thresholds that do not go together."""
        if self.large_drop <= self.small_drop:
            raise ValueError(
                f"give large_drop more than small_drop ({self.small_drop:g}); it is "
                f"{self.large_drop:g}"
            )
        if self.remember < self.learn:
            raise ValueError("give remember at least as long as learn")
        for name in ("block", "grace", "learn", "remember", "card_step"):
            if getattr(self, name) > LONGEST_S:
                raise ValueError(f"give {name} at most ten years")
