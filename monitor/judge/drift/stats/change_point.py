"""Change-point dating: the break in a line through block residuals that explains them best, a step
or the start of a slope.

The sequential tests show *that* something was lost; the onset they report is only the earliest one
they can use. Here both sides are fitted again by weighted least squares, for every block in which
the loss may have begun (Hinkley 1970; a slope: Hinkley 1971).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# a break must lower the weighted squared error by this much, or the series is one piece
CLEAR = 8.0
LEAST = 4  # values
# and a slope by this much more than a step, before it is preferred
SLOPE_CLEARER = 6.0


class Breakpoint(NamedTuple):
    """Index of the first value after a break, the weighted squared error left, and whether it is a
    slope.
    """

    start: int
    error: float
    slope: bool


def find_break(values: Sequence[float], variances: Sequence[float]) -> Breakpoint | None:
    """The downward break in a series; None when one level explains it as well. A single outlier is
    no break (median of three).
    """
    if len(values) < LEAST:
        return None
    middles = (sorted(values[i - 1 : i + 2])[1] for i in range(1, len(values) - 1))
    values = [*values[:1], *middles, *values[1:][-1:]]
    weights = [1.0 / variance for variance in variances]
    best: Breakpoint | None = None
    for slope in (False, True):
        found = min(
            (_broken(values, weights, start, slope) for start in range(1, len(values))),
            key=lambda b: b.error,
            default=None,
        )
        if found is not None and (best is None or found.error < best.error - SLOPE_CLEARER):
            best = found
    whole = _error(values, weights, [0.0] * len(values))
    return best if best is not None and best.error < whole - CLEAR else None


def _broken(
    values: Sequence[float], weights: Sequence[float], start: int, slope: bool
) -> Breakpoint:
    shape = [0.0] * start + [float(i) if slope else 1.0 for i in range(1, len(values) - start + 1)]
    return Breakpoint(start, _error(values, weights, shape), slope)


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
