"""The 99th percentile of a share of time, from a histogram of minutes that fades over a week."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

#: Upper edges of the bins of a share.
EDGES = (
    *(0.0, 0.001, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15),
    *(0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
MEMORY_MIN = 7 * 24 * 60.0
QUANTILE = 0.99
UPDATE_EVERY = 30  # minutes
GROWTH = 1.0 / (1.0 - 1.0 / MEMORY_MIN)
MAX_UNIT = 1e6


@dataclass(slots=True)
class ShareHistogram:
    """Histogram of minutes. Instead of fading the old weights, the weight of new minutes grows."""

    weights: list[float] = field(default_factory=lambda: [0.0] * len(EDGES))
    unit: float = 1.0  # weight of a minute that is learned now
    count: int = 0  # minutes ever learned
    minutes: float = 0.0  # minutes that still count
    p99: float | None = None  # upper edge of the bin with the 99th percentile

    def learn(self, share: float) -> None:
        """Processes one minute."""
        self.weights[min(bisect_left(EDGES, share), len(EDGES) - 1)] += self.unit
        self.unit *= GROWTH
        self.count += 1
        if self.count % UPDATE_EVERY == 0:
            self._update()

    def _update(self) -> None:
        total = sum(self.weights)
        self.minutes = total / self.unit
        left = QUANTILE * total
        for weight, edge in zip(self.weights, EDGES, strict=True):
            left -= weight
            if left <= 1e-9 * total:
                self.p99 = edge
                break
        if self.unit > MAX_UNIT:
            self.weights, self.unit = [weight / self.unit for weight in self.weights], 1.0
