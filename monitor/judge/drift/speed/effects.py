"""What a channel looks for, and an effect from when it is raised until it is over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from monitor.judge.drift.settings import DriftSettings
from monitor.judge.drift.stats.cusum import log_threshold, warnings_per_month

TURNS = 3  # the three channels learn in turn, so that no step of the judge takes long
DETECTORS = 6  # two for each of three channels
RECOVERED = math.log(
    50.0
)  # an open effect closes when "back to normal" is so many times likelier than "still slower"
RECOVERY_STEP = RECOVERED / 3  # and no single block proves more than a third of that
WANDERED = 3.0  # standard deviations of the wander: less than that may be the wander alone


class Metric(NamedTuple):
    """What is fixed for a channel. Logarithms, as positive numbers."""

    channel: str
    name: str  # of the sample's field
    drops: tuple[float, float]  # the sizes looked for
    practical: float  # less is nobody's business
    page: float  # so much is a page
    sign: int  # +1: the field rises when things get better
    least_wander: float  # standard deviation of the wander is taken to be at least this
    turn: int  # of TURNS, in which it learns


@dataclass(slots=True)
class OpenEffect:
    """An effect that was raised and has not gone away."""

    onset: int
    raised: int
    level: float  # of the residual before it
    drop: float  # when it was raised, logarithm, positive
    evidence: float
    threshold: float
    recovery: float = 0.0
    slack: float = (
        0.0  # another process runs by now: so far may its own constant be below what is normal
    )

    def recovered(self, residual: float, variance: float, wander: float, metric: Metric) -> bool:
        """One more block: is it back to normal, or still slower by what matters? A CUSUM of the
        likelihood ratio, clipped.

        Not against the size that was raised: a loss of 14 % that settles at 5 % is not over. What
        matters is the smaller size that is looked for, and no less than twice what is nobody's
        business, for the line lies at half of it; nor less than can be told from the wander (its
        standard deviation). `variance`: the long-run variance of a block, for neighbours wander
        together.
        """
        drop = min(self.drop, max(metric.drops[0], 2 * metric.practical, WANDERED * wander))
        gain = drop * (residual - self.level + self.slack + drop / 2) / variance
        self.recovery = max(0.0, self.recovery + max(-RECOVERY_STEP, min(RECOVERY_STEP, gain)))
        return self.recovery >= RECOVERED

    def restarted(self, scatter: float) -> None:
        """Another process runs: it is compared with what is normal, and may be below it by as much
        as starts are known to scatter.
        """
        self.level, self.slack, self.recovery = 0.0, scatter, 0.0


def warning_threshold(s: DriftSettings, block_s: float) -> float:
    """Evidence from which an effect is a warning."""
    return log_threshold(warnings_per_month(s), block_s, DETECTORS)
