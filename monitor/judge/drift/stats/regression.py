"""A straight line through what was seen, kept up to date: least squares whose memory fades, for
what a GPU's clock and heat follow.

Sums are kept relative to the first observation, so that large constant parts (a clock of 1980 MHz)
cost no precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

REFIT_EVERY = 8  # observations between two solutions
# an observation pulls no harder than one that is so far off (Huber's idea, with a fixed bound)
CLIP_SD = 4.0
# of each feature's own spread: features that move together share a slope instead of fighting over
# it
RIDGE = 1e-3
MAX_UNIT = 1e6
SD_FROM = 24  # observations before there is a spread to speak of


@dataclass(slots=True)
class Fit:
    """y as a linear function of features, with the spread of what it leaves. `memory`: observations
    after which one counts 1/e.
    """

    memory: float
    origin: list[float] = field(default_factory=list)  # the first observation: features, then y
    sums: list[list[float]] = field(
        default_factory=list
    )  # of the products of (1, features, y), each less its origin
    slopes: list[float] = field(default_factory=list)  # intercept at the origin, then one a feature
    error2: float = 0.0  # fading mean of the squared error, each error known before it was learnt
    seen: int = 0
    unit: float = 1.0  # weight of an observation that is learnt now

    @property
    def sd(self) -> float | None:
        """Standard deviation of an observation about the line; None until enough were seen."""
        return math.sqrt(self.error2) if self.seen >= SD_FROM else None

    def predict(self, features: Sequence[float]) -> float | None:
        """What the line says there; None before the first solution."""
        if not self.slopes:
            return None
        line = self.origin[-1] + self.slopes[0]
        for slope, value, zero in zip(self.slopes[1:], features, self.origin, strict=False):
            line += slope * (value - zero)
        return line

    def learn(self, features: Sequence[float], y: float) -> None:
        """Take up one observation."""
        if not self.sums:
            self.origin = [*features, y]
            self.sums = [[0.0] * (len(features) + 2) for _ in range(len(features) + 2)]
        said = self.predict(features)
        if said is not None:
            y = self._clipped(y, said)
        row = [
            1.0,
            *(value - zero for value, zero in zip((*features, y), self.origin, strict=True)),
        ]
        for i, a in enumerate(row):
            line, a = self.sums[i], a * self.unit  # noqa: PLW2901
            for j in range(i, len(row)):
                line[j] += a * row[j]
        self._fade()
        self.seen += 1
        if self.seen % REFIT_EVERY == 0:
            self._solve()

    def _fade(self) -> None:
        """What comes next weighs more, instead of all that is known weighing less: the same, for
        less work.
        """
        self.unit /= 1.0 - 1.0 / self.memory
        if self.unit > MAX_UNIT:
            self.sums = [[value / self.unit for value in line] for line in self.sums]
            self.unit = 1.0

    def _clipped(self, y: float, said: float) -> float:
        error, sd = y - said, self.sd
        if sd is not None and abs(error) > CLIP_SD * sd > 0:
            error = math.copysign(CLIP_SD * sd, error)
        share = max(1.0 / self.memory, 1.0 / (self.seen - REFIT_EVERY + 1))
        self.error2 += share * (error * error - self.error2)
        return said + error

    def _solve(self) -> None:
        """Normal equations with a ridge, by elimination; a feature that never moved gets no
        slope.
        """
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
        slopes = solve(rows)
        self.slopes = [
            means[size] - sum(slope * mean for slope, mean in zip(slopes, means[1:], strict=False)),
            *slopes,
        ]


def solve(rows: list[list[float]]) -> list[float]:
    """The solution of a small system of linear equations; each row holds the left side and, last,
    the right one. Positive definite.
    """
    size = len(rows)
    for i in range(size):
        pivot = rows[i][i]
        for j in range(i + 1, size):
            factor = rows[j][i] / pivot
            for k in range(i, size + 1):
                rows[j][k] -= factor * rows[i][k]
    found = [0.0] * size
    for i in reversed(range(size)):
        found[i] = (rows[i][size] - sum(rows[i][j] * found[j] for j in range(i + 1, size))) / rows[
            i
        ][i]
    return found
