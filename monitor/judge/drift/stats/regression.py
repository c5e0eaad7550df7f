"""Least squares: a linear function kept up to date with a fading memory, the value of a weighted
parabola, and the linear solver of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

REFIT_EVERY = 8  # observations between two solutions
# a residual counts for at most this many standard deviations (Huber's idea, with a fixed bound)
CLIP_SD = 4.0
# of each feature's own spread: features that move together share a slope instead of cancelling out
RIDGE = 1e-3
MAX_UNIT = 1e6
SD_FROM = 24  # observations before a standard deviation is given


@dataclass(slots=True)
class FadingRegression:
    """y as a linear function of features, with the spread of its residuals. `memory`: observations
    after which one counts 1/e.

    Sums are kept relative to the first observation, so that large constant parts (a clock of 1980
    MHz) cost no precision.
    """

    memory: float
    origin: list[float] = field(default_factory=list)  # the first observation: features, then y
    # of the products of (1, features, y), each less its origin
    sums: list[list[float]] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)  # intercept at the origin, then one a feature
    # fading mean of the squared prediction error, each taken before the observation was learned
    error2: float = 0.0
    count: int = 0  # observations ever learned
    unit: float = 1.0  # weight of an observation that is learned now

    @property
    def sd(self) -> float | None:
        """Standard deviation of an observation about the line; None for the first observations."""
        return math.sqrt(self.error2) if self.count >= SD_FROM else None

    def predict(self, features: Sequence[float]) -> float | None:
        """Value of the line; None before the first solution."""
        if not self.slopes:
            return None
        value = self.origin[-1] + self.slopes[0]
        for slope, feature, zero in zip(self.slopes[1:], features, self.origin, strict=False):
            value += slope * (feature - zero)
        return value

    def learn(self, features: Sequence[float], y: float) -> None:
        """Processes one observation."""
        if not self.sums:
            self.origin = [*features, y]
            self.sums = [[0.0] * (len(features) + 2) for _ in range(len(features) + 2)]
        predicted = self.predict(features)
        if predicted is not None:
            y = self._clipped(y, predicted)
        differences = (
            value - zero for value, zero in zip((*features, y), self.origin, strict=True)
        )
        row = [1.0, *differences]
        for i, a in enumerate(row):
            sums, weighted = self.sums[i], a * self.unit
            for j in range(i, len(row)):
                sums[j] += weighted * row[j]
        self._fade()
        self.count += 1
        if self.count % REFIT_EVERY == 0:
            self._solve()

    def _fade(self) -> None:
        """Raises the weight of later observations, which equals fading all sums and costs less."""
        self.unit /= 1.0 - 1.0 / self.memory
        if self.unit > MAX_UNIT:
            self.sums = [[value / self.unit for value in line] for line in self.sums]
            self.unit = 1.0

    def _clipped(self, y: float, predicted: float) -> float:
        error, sd = y - predicted, self.sd
        if sd is not None and abs(error) > CLIP_SD * sd > 0:
            error = math.copysign(CLIP_SD * sd, error)
        share = max(1.0 / self.memory, 1.0 / (self.count - REFIT_EVERY + 1))
        self.error2 += share * (error * error - self.error2)
        return predicted + error

    def _solve(self) -> None:
        """Solves the normal equations with a ridge; a feature that never moved gets no slope."""
        size = len(self.sums) - 1
        total = self.sums[0][0]
        means = [self.sums[0][i] / total for i in range(size + 1)]
        rows = []
        for i in range(1, size):
            row = [
                self.sums[min(i, j)][max(i, j)] - total * means[i] * means[j]
                for j in range(1, size + 1)
            ]
            row[i - 1] = row[i - 1] * (1.0 + RIDGE) + 1e-9 * total
            rows.append(row)
        slopes = solve(rows) or []
        offset = sum(slope * mean for slope, mean in zip(slopes, means[1:], strict=False))
        self.slopes = [means[size] - offset, *slopes]


def weighted_parabola(x: Sequence[float], y: Sequence[float], w: Sequence[float]) -> float:
    """Value at 0 of the weighted least-squares parabola through the points; of a line or a mean
    where the points determine no more.
    """
    moments = [sum(wi * xi**k for xi, wi in zip(x, w, strict=True)) for k in range(5)]
    right = [sum(wi * yi * xi**k for xi, yi, wi in zip(x, y, w, strict=True)) for k in range(3)]
    for size in range(min(3, len(x)), 0, -1):
        rows = [[*(moments[i + j] for j in range(size)), right[i]] for i in range(size)]
        solved = solve(rows, least_pivot=1e-9)
        if solved is not None:
            return solved[0]
    return 0.0


def solve(rows: Sequence[Sequence[float]], least_pivot: float | None = None) -> list[float] | None:
    """Solves a few linear equations by Gaussian elimination; each row holds the left side and,
    last, the right one.

    With `least_pivot` rows are exchanged, and the result is None where a pivot is not above this
    share of the largest coefficient: the equations do not determine the unknowns. Without it the
    matrix must be positive definite, which needs neither.
    """
    left = [list(row) for row in rows]
    size = len(left)
    floor = 0.0
    if least_pivot is not None:
        floor = least_pivot * max(abs(value) for row in left for value in row[:size])
    for i in range(size):
        if least_pivot is not None:
            pivot = max(range(i, size), key=lambda k: abs(left[k][i]))
            if abs(left[pivot][i]) <= floor:
                return None
            left[i], left[pivot] = left[pivot], left[i]
        top = left[i]
        for row in left[i + 1 :]:
            factor = row[i] / top[i]
            for k in range(i, size + 1):
                row[k] -= factor * top[k]
    found = [0.0] * size
    for i in reversed(range(size)):
        known = sum(left[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (left[i][size] - known) / left[i][i]
    return found
