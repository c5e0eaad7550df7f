"""How the residual of a healthy server moves by itself, learnt from its blocks: a slow wander and
fast extra noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from statistics import fmean, median

from monitor.judge.drift.stats.blocks import Block, mad_sd
from monitor.judge.drift.stats.cusum import Wander

WANDER_LAGS = 24
USUAL_TAU = 8.0  # blocks: 40 minutes
USUAL_WANDER = 0.005  # before anything is known, and with the weight of half a day afterwards
USUAL_BLOCKS = 144
SHORT_BLOCKS = 576  # two days, before the correlation time itself can be learnt
WANDER_TAUS = (3.0, 6.0, 8.0, 12.0, 24.0, 48.0)  # correlation times tried, in blocks


def fit_wander(blocks: Sequence[Block], least: float) -> Wander:
    """Slow wander and fast extra noise of healthy block residuals, by their autocovariance up to
    two hours apart.

    Sampling noise is not correlated from block to block, so every lag above zero shows the wander
    alone; what lag zero has beyond wander and sampling noise is `white`. Short histories do not
    show the slow part: its variance is raised by the share they miss.
    """
    usual = Wander(math.exp(-1 / USUAL_TAU), max(least, USUAL_WANDER) ** 2)
    if len(blocks) < 2 * WANDER_LAGS:
        return usual
    ordered = sorted(b.residual for b in blocks)  # both medians are quick on what is sorted
    middle = median(ordered)
    limit = 4 * max(1e-6, mad_sd(ordered, middle))
    low, high, first = middle - limit, middle + limit, blocks[0].number
    values, there = (
        [0.0] * (blocks[-1].number - first + 1),
        bytearray(blocks[-1].number - first + 1),
    )
    for number, _, residual, _ in blocks:
        drawn_in = low if residual < low else min(residual, high)
        values[number - first], there[number - first] = drawn_in - middle, 1
    covariance = [_covariance(values, there, lag) for lag in range(WANDER_LAGS + 1)]
    _, tau, variance = min(
        (_fitted(covariance, tau) for tau in WANDER_TAUS), key=lambda fit: fit[0]
    )
    if len(blocks) < SHORT_BLOCKS:
        tau = USUAL_TAU
        variance = _fitted(covariance, tau)[2]
    variance = (len(blocks) * variance + USUAL_BLOCKS * usual.variance) / (
        len(blocks) + USUAL_BLOCKS
    )
    variance = max(least * least, variance * (1.0 + 6.0 * tau / len(blocks)))
    white = max(0.0, covariance[0] - variance - fmean([b.noise**2 for b in blocks]))
    return Wander(math.exp(-1.0 / tau), variance, white)


def _covariance(values: Sequence[float], there: bytes | bytearray, lag: int) -> float:
    """Mean product of values so many places apart. Those that are not `there` (0) are zero and not
    counted.
    """
    pairs = len(there) - lag if 0 not in there else sum(map(mul, there, there[lag:]))
    return sum(map(mul, values, values[lag:])) / pairs if pairs > 0 else 0.0


def _fitted(covariance: Sequence[float], tau: float) -> tuple[float, float, float]:
    """Squared error, tau and variance of the best exponential with this correlation time, over a
    constant for what is slower still.

    The slower part (the time of day) is too small and too slow to be taken for a drop, and is left
    out of the wander.
    """
    shape = [math.exp(-lag / tau) for lag in range(1, len(covariance))]
    seen = covariance[1:]
    mean_shape, mean_seen = fmean(shape), fmean(seen)
    bent = sum((x - mean_shape) ** 2 for x in shape)
    variance = max(
        0.0,
        sum((c - mean_seen) * (x - mean_shape) for c, x in zip(seen, shape, strict=True)) / bent,
    )
    slow = mean_seen - variance * mean_shape
    if slow < 0:
        slow, variance = (
            0.0,
            max(
                0.0,
                sum(c * x for c, x in zip(seen, shape, strict=True)) / sum(x * x for x in shape),
            ),
        )
    return (
        sum((c - slow - variance * x) ** 2 for c, x in zip(seen, shape, strict=True)),
        tau,
        variance,
    )
