"""Sequential tests on levels and shares, and the threshold that follows from how rare a false alarm
must be. The test for drops is in drops.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MONTH_S = 30 * 86_400.0


def log_threshold(per_month: float, step_s: float, detectors: int) -> float:
    """ln(mean time to a false alarm in steps x number of detectors), for this many false alarms a
    month of all detectors together.

    For independent observations an LLR-CUSUM with threshold h has a mean time to false alarm of at
    least e^h steps (Lorden 1971); Shiryaev-Roberts keeps it by design (Pollak 1985). 0.05 a month,
    blocks of 300 s and six detectors make 13.9; 0.3 a month 12.1.
    """
    return math.log(max(1.0, MONTH_S / max(per_month, 1e-6) / step_s) * detectors)


@dataclass(slots=True)
class LevelCusum:
    """CUSUM for a level below the baseline, by the long-run variance: finds a loss that grew so
    slowly that the filter of DropTest followed it.

    S = max(0, S + drop (-r - drop/2) / v) (Page 1954, as a log-likelihood ratio), v = sampling
    variance + long-run variance of the AR(1) noise.
    """

    total: float = 0.0
    since: int = 0  # the block after S was last zero: the onset by maximum likelihood

    def step(self, index: int, residual: float, variance: float, drop: float) -> None:
        """Processes one block; a residual counts for at most four standard deviations beyond the
        drop.
        """
        limit = 4.0 * math.sqrt(variance) + drop
        gain = drop * (-max(-limit, min(limit, residual)) - drop / 2) / variance
        if self.total <= 0.0:
            self.since = index
        self.total = max(0.0, self.total + gain)


@dataclass(slots=True)
class ExceedanceTest:
    """Shiryaev-Roberts e-detector on yes/no observations: is the probability of a yes still at most
    `base`? One sum per alternative.

    For every alternative M = (1 + M) x likelihood ratio; their weighted mean crosses 1/alpha at the
    earliest after 1/alpha observations on average, whatever their dependence, as long as each has
    at most the base probability given its past (Shin, Ramdas, Rinaldo 2022).
    """

    sums: list[float] = field(default_factory=list)

    def step(self, exceeded: bool, base: float, alternatives: Sequence[float]) -> None:
        """Processes one observation."""
        before = self.sums or [0.0] * len(alternatives)
        if exceeded:
            self.sums = [
                min(1e300, (1.0 + m) * p / base) for m, p in zip(before, alternatives, strict=True)
            ]
        else:
            rest = 1.0 - base
            self.sums = [
                (1.0 + m) * (1.0 - p) / rest for m, p in zip(before, alternatives, strict=True)
            ]

    def log_evidence(self, weights: Sequence[float]) -> float:
        """ln of the weighted mean over the alternatives."""
        mean = sum(m * w for m, w in zip(self.sums, weights, strict=False))
        return math.log(mean) if mean > 0 else -math.inf


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Confidence interval of a share (Wilson 1927): bounds in 0..1."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = k / n, z * z
    middle, half = share + z2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z2 / n)), min(1.0, (middle + half) / (1 + z2 / n))
