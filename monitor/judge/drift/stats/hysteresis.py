"""When a sign counts: seen in so many of the last minutes, gone after so many good ones. And what
share of time is usual for a GPU.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple


class Rule(NamedTuple):
    """`need` of the last `of` minutes open a sign; `clear` good minutes in a row close it."""

    need: int
    of: int
    clear: int


@dataclass(slots=True)
class Latch:
    """One sign of one GPU. Unknown minutes neither open nor close anything: silence is not
    health.
    """

    hits: int = 0  # the last minutes, newest in the lowest bit
    good: int = 0  # good minutes in a row
    first_us: int | None = None  # the oldest hit that still counts: the onset
    open: bool = False

    def clear(self) -> None:
        """Begin anew."""
        self.hits, self.good, self.first_us, self.open = 0, 0, None, False

    def minute(self, hit: bool | None, at_us: int, rule: Rule) -> None:
        """Take up one minute: the sign is there, is not, or cannot be told."""
        if hit is None:
            return
        self.hits = ((self.hits << 1) | int(hit)) & ((1 << rule.of) - 1)
        self.good = 0 if hit else self.good + 1
        if hit and self.first_us is None:
            self.first_us = at_us
        if self.open:
            self.open = self.good < rule.clear
        elif self.hits.bit_count() >= rule.need:
            self.open = True
        if not self.open and self.hits == 0:
            self.first_us = None

    def forget(self) -> None:
        """After a long silence: what was seen before it opens nothing any more. What is open stays
        open.
        """
        if not self.open:
            self.clear()


#: Upper edges of the classes of a share of time.
EDGES = (
    0.0,
    0.001,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
)
MEMORY_MIN = 7 * 24 * 60.0
USUALLY = 0.99
LOOK_EVERY = 30  # minutes
GROWTH = 1.0 / (1.0 - 1.0 / MEMORY_MIN)
MAX_UNIT = 1e6


@dataclass(slots=True)
class Usual:
    """How much of its time a GPU usually spends held back: a histogram of minutes that fades over
    a week.
    """

    weights: list[float] = field(default_factory=lambda: [0.0] * len(EDGES))
    unit: float = (
        1.0  # of a minute that is learnt now: it grows, instead of all the older ones shrinking
    )
    count: int = 0  # minutes ever learnt
    seen: float = 0.0  # minutes that still count
    most: float | None = None  # what 99 in 100 minutes stay below

    def learn(self, duty: float) -> None:
        """Take up one minute."""
        self.weights[min(bisect_left(EDGES, duty), len(EDGES) - 1)] += self.unit
        self.unit *= GROWTH
        self.count += 1
        if self.count % LOOK_EVERY == 0:
            self._look()

    def _look(self) -> None:
        """Take stock, now and then."""
        total = sum(self.weights)
        self.seen = total / self.unit
        left = USUALLY * total
        for weight, edge in zip(self.weights, EDGES, strict=True):
            left -= weight
            if left <= 1e-9 * total:
                self.most = edge
                break
        if self.unit > MAX_UNIT:
            self.weights, self.unit = [weight / self.unit for weight in self.weights], 1.0
