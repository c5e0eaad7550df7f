"""An effect from when it is raised until the metric has recovered."""

from __future__ import annotations

import math
from dataclasses import dataclass

from monitor.judge.drift.speed.metric import MetricSpec

# an open effect closes when "recovered" is this many times likelier than "still slower",
RECOVERED = math.log(50.0)
RECOVERY_STEP = RECOVERED / 3  # and no single block proves more than a third of that
NOISE_SDS = 3.0  # a smaller loss may be AR(1) noise alone


@dataclass(slots=True)
class OpenEffect:
    """An effect that was raised and has not recovered."""

    onset: int  # block
    raised: int  # block
    level: float  # of the residual before it
    drop: float  # when it was raised, logarithm, positive
    evidence: float
    threshold: float
    recovery: float = 0.0
    # after a restart: how far below the baseline the constant of the new process may be
    slack: float = 0.0

    def recovered(
        self, residual: float, variance: float, noise_sd: float, metric: MetricSpec
    ) -> bool:
        """Processes one block: recovered, or still slower by a relevant size? A CUSUM of the
        clipped likelihood ratio.

        The size is not the one that was raised, since a loss of 14 % that settles at 5 % has not
        recovered. It is the smaller size that is looked for, at least twice the practical limit
        (the line lies at half of it) and at least three standard deviations of the AR(1) noise.
        `variance`: the long-run variance of a block, since neighbours are correlated.
        """
        drop = min(self.drop, max(metric.drops[0], 2 * metric.practical, NOISE_SDS * noise_sd))
        gain = drop * (residual - self.level + self.slack + drop / 2) / variance
        self.recovery = max(0.0, self.recovery + max(-RECOVERY_STEP, min(RECOVERY_STEP, gain)))
        return self.recovery >= RECOVERED

    def restarted(self, scatter: float) -> None:
        """Compares a new process with the baseline, which it may miss by the scatter of starts."""
        self.level, self.slack, self.recovery = 0.0, scatter, 0.0
