"""AR(1) noise: how the residual of a healthy server moves without a cause, learned from its
blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from statistics import fmean, median
from typing import NamedTuple

from monitor.judge.drift.stats.blocks import ResidualBlock
from monitor.judge.drift.stats.robust import mad_sd

LAGS = 24
PRIOR_TAU = 8.0  # blocks: 40 minutes
# assumed before anything is learned, and with the weight of half a day afterwards
PRIOR_SD = 0.005
PRIOR_BLOCKS = 144
TAU_BLOCKS = 576  # two days, before the correlation time itself can be learned
TAUS = (3.0, 6.0, 8.0, 12.0, 24.0, 48.0)  # candidate correlation times, in blocks


class Ar1Noise(NamedTuple):
    """Autocorrelated noise of a healthy server's residual, and white noise on top of it."""

    phi: float  # correlation from block to block
    variance: float  # of the AR(1) part
    white: float = 0.0  # variance between blocks beyond the scatter of single canaries

    def of_block(self, noise: float) -> float:
        """Variance of the residual of a block with this sampling noise (standard deviation)."""
        return noise**2 + self.white + self.variance

    def long_run(self) -> float:
        """Variance of the mean of many blocks, times their number."""
        return self.variance * (1 + self.phi) / (1 - self.phi)


def fit_ar1(blocks: Sequence[ResidualBlock], least_sd: float) -> Ar1Noise:
    """AR(1) and white noise of healthy block residuals, by their autocovariance up to two hours
    apart.

    Sampling noise is not correlated between blocks, so every lag above zero shows the AR(1) part
    alone; `white` is what lag zero has beyond it and the sampling noise. Short histories do not
    show the slow part, so the variance is raised by the share they miss.
    """
    prior = Ar1Noise(math.exp(-1 / PRIOR_TAU), max(least_sd, PRIOR_SD) ** 2)
    if len(blocks) < 2 * LAGS:
        return prior
    values, present = _centred(blocks)
    covariance = [_covariance(values, present, lag) for lag in range(LAGS + 1)]
    tau, variance = _exponential(covariance, TAUS if len(blocks) >= TAU_BLOCKS else (PRIOR_TAU,))
    count = len(blocks)
    variance = (count * variance + PRIOR_BLOCKS * prior.variance) / (count + PRIOR_BLOCKS)
    variance = max(least_sd * least_sd, variance * (1.0 + 6.0 * tau / count))
    white = max(0.0, covariance[0] - variance - fmean([b.noise**2 for b in blocks]))
    return Ar1Noise(math.exp(-1.0 / tau), variance, white)


def _centred(blocks: Sequence[ResidualBlock]) -> tuple[list[float], bytearray]:
    """Residuals about their median by block number, outliers clipped to four standard deviations;
    and which blocks exist.
    """
    ordered = sorted(b.residual for b in blocks)  # both medians are fast on sorted values
    middle = median(ordered)
    limit = 4 * max(1e-6, mad_sd(ordered, middle))
    low, high, first = middle - limit, middle + limit, blocks[0].number
    size = blocks[-1].number - first + 1
    values, present = [0.0] * size, bytearray(size)
    for number, _, residual, _ in blocks:
        clipped = low if residual < low else min(residual, high)
        values[number - first], present[number - first] = clipped - middle, 1
    return values, present


def _covariance(values: Sequence[float], present: bytes | bytearray, lag: int) -> float:
    """Mean product of values `lag` places apart. Values that are not present are zero and not
    counted.
    """
    pairs = len(present) - lag if 0 not in present else sum(map(mul, present, present[lag:]))
    return sum(map(mul, values, values[lag:])) / pairs if pairs > 0 else 0.0


def _exponential(covariance: Sequence[float], taus: Sequence[float]) -> tuple[float, float]:
    """Correlation time and variance of the exponential that fits the autocovariance best."""
    _, tau, variance = min((_fitted(covariance, tau) for tau in taus), key=lambda fit: fit[0])
    return tau, variance


def _fitted(covariance: Sequence[float], tau: float) -> tuple[float, float, float]:
    """Squared error, tau and variance of the best exponential with this correlation time, above a
    constant for slower movements.

    The slower part (the time of day) is too small and too slow to be mistaken for a drop, and is
    left out of the noise.
    """
    shape = [math.exp(-lag / tau) for lag in range(1, len(covariance))]
    seen = covariance[1:]
    mean_shape, mean_seen = fmean(shape), fmean(seen)
    curvature = sum((x - mean_shape) ** 2 for x in shape)
    joint = sum((c - mean_seen) * (x - mean_shape) for c, x in zip(seen, shape, strict=True))
    variance = max(0.0, joint / curvature)
    slow = mean_seen - variance * mean_shape
    if slow < 0:
        joint = sum(c * x for c, x in zip(seen, shape, strict=True))
        slow, variance = 0.0, max(0.0, joint / sum(x * x for x in shape))
    error = sum((c - slow - variance * x) ** 2 for c, x in zip(seen, shape, strict=True))
    return error, tau, variance
