"""Robust estimates: a Huber mean of values with known noise, the MAD, and medians and means of
partly unknown values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from statistics import median

# 95 % efficient where the noise is normal (Huber 1964; Holland and Welsch 1977)
HUBER = 1.345
# variance of the robust mean over s²/n, where s comes from the MAD: 1.05 for normal noise, 1.15 for
# Student's t with 5 degrees of freedom
MEAN_COST = 1.15
MAD_SD = 1.4826  # standard deviation of normal noise over its median absolute deviation


def huber_mean(values: Sequence[float], noises: Sequence[float]) -> tuple[float, float]:
    """Robust mean of values with known noise (standard deviations), and its own standard deviation.

    Without outliers it is the weighted mean; else the mean of the values clipped to HUBER noises
    around the centre, iterated three times.
    """
    weights = [1.0 / (noise * noise) for noise in noises]
    total = sum(weights)
    own = math.sqrt(MEAN_COST / total)
    mean = sum(map(mul, weights, values)) / total
    for value, noise in zip(values, noises, strict=True):
        if abs(value - mean) > HUBER * noise:
            break
    else:
        return mean, own
    centre = median(values)
    for _ in range(3):
        pull = 0.0
        for value, noise, weight in zip(values, noises, weights, strict=True):
            off, limit = value - centre, HUBER * noise
            pull += weight * (off if -limit < off < limit else math.copysign(limit, off))
        centre += pull / total
    return centre, own


def mad_sd(values: Sequence[float], centre: float | None = None) -> float:
    """Standard deviation by the median absolute deviation from the centre (their median when
    None).
    """
    middle = median(values) if centre is None else centre
    return MAD_SD * median([abs(value - middle) for value in values])


def known_median(values: Sequence[float | None]) -> float | None:
    """Median of the known values. Written out, since the checks of the standard library cost more
    than the median itself in the loop over GPU readings.
    """
    known = sorted([value for value in values if value is not None])
    count = len(known)
    if not count:
        return None
    return known[count // 2] if count % 2 else (known[count // 2 - 1] + known[count // 2]) / 2


def known_mean(values: Sequence[float | None]) -> float | None:
    """Mean of the known values."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
