"""Since when? The break of a line through block residuals that explains them best: a step, or a
slope that begins.

The sequential tests tell *that* something was lost; the onset they found it with is the earliest
they can make use of. Here both sides are fitted anew by weighted least squares, for every block in
which it may have begun (Hinkley 1970; a slope: Hinkley 1971).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

CLEAR = 8.0  # a break must lower the weighted squared error by so much, or all of it is one piece
LEAST = 4  # values
SLOPE_CLEARER = 6.0  # and a slope by so much more than a step, before it is preferred


class Break(NamedTuple):
    """Where a line breaks: index of the first value behind it, weighted squared error left, and
    whether it is a slope.
    """

    start: int
    error: float
    slope: bool


def find_break(values: Sequence[float], variances: Sequence[float]) -> Break | None:
    """The downward break in a series; None when one level explains it as well. A single wild value
    is no break (median of three).
    """
    if len(values) < LEAST:
        return None
    values = [
        *values[:1],
        *(sorted(values[i - 1 : i + 2])[1] for i in range(1, len(values) - 1)),
        *values[1:][-1:],
    ]
    weights = [1.0 / variance for variance in variances]
    whole = _error(values, weights, [0.0] * len(values))
    best: Break | None = None
    for slope in (False, True):
        found = min(
            (_broken(values, weights, start, slope) for start in range(1, len(values))),
            key=lambda b: b.error,
            default=None,
        )
        if found is not None and (best is None or found.error < best.error - SLOPE_CLEARER):
            best = found
    return best if best is not None and best.error < whole - CLEAR else None


def _broken(values: Sequence[float], weights: Sequence[float], start: int, slope: bool) -> Break:
    shape = [0.0] * start + [float(i) if slope else 1.0 for i in range(1, len(values) - start + 1)]
    return Break(start, _error(values, weights, shape), slope)


def _error(values: Sequence[float], weights: Sequence[float], shape: Sequence[float]) -> float:
    """Weighted squared error that level + size x shape leaves, the size not above zero."""
    total = sum(weights)
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    middle = sum(w * x for w, x in zip(weights, shape, strict=True)) / total
    spread = sum(w * (x - middle) ** 2 for w, x in zip(weights, shape, strict=True))
    along = sum(
        w * (x - middle) * (v - mean) for w, v, x in zip(weights, values, shape, strict=True)
    )
    across = sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True))
    if spread <= 0.0 or along >= 0.0:
        return across if not any(shape) else math.inf
    return across - along * along / spread
