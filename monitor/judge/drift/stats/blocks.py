"""Blocks of canaries: a grid in time, and one robust figure with its noise for what fell into a
cell of it.

A single canary may be disturbed by anything; the robust mean of what fell into five minutes is the
unit in which drift is judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import mul
from statistics import median
from typing import Generic, NamedTuple, TypeVar

from monitor.judge.drift.settings import SECOND_US, DriftSettings

HUBER = 1.345  # 95 % efficient where the noise is normal (Huber 1964; Holland and Welsch 1977)
# variance of the robust mean over s²/n, where s comes from the MAD: 1.05 for normal noise, 1.15 for
# Student's t of 5
MEAN_COST = 1.15
MAD_SD = 1.4826  # standard deviation of normal noise over its median absolute deviation

T = TypeVar("T")


class Block(NamedTuple):
    """What one metric did in one block: the robust mean of its residuals, as a logarithm, lower is
    worse.
    """

    number: int  # blocks since the first point of all
    n: int  # canaries in it
    residual: float
    noise: float  # standard deviation of `residual` by the scatter of single canaries alone


@dataclass(slots=True)
class OpenBlocks(Generic[T]):
    """Points that wait until the block they belong to is over. The grid starts at the first point
    seen and keeps its step.
    """

    anchor_us: int | None = None
    block_us: int = 0
    next_index: int = 0  # the oldest block that is still open
    due_us: int = 0  # nothing can be closed before
    late: int = 0  # points that came when their block was closed
    points: list[T] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)  # of the points

    def add(self, point: T, at_us: int, settings: DriftSettings) -> None:
        """Keep a point; one of a closed block is counted and dropped."""
        if self.anchor_us is None:
            self.anchor_us = at_us
            self.block_us = round(settings.block_s * SECOND_US)
            self._wait(settings)
        if at_us < self.anchor_us + self.next_index * self.block_us:
            self.late += 1
        else:
            self.points.append(point)
            self.times_us.append(at_us)

    def start_us(self, index: int) -> int:
        """When a block begins."""
        return (self.anchor_us or 0) + index * self.block_us

    def closed(self, now_us: int, settings: DriftSettings) -> Iterator[tuple[int, list[T]]]:
        """Each block that is over, with its points; empty ones are skipped."""
        while self.anchor_us is not None and now_us >= self.due_us:
            over = (
                now_us - round(settings.grace_s * SECOND_US) - self.anchor_us
            ) // self.block_us  # this one and later are open
            index = (
                min(over, (min(self.times_us) - self.anchor_us) // self.block_us)
                if self.points
                else over
            )
            self.next_index = max(self.next_index, min(over, index + 1))
            self._wait(settings)
            if index < over:
                yield index, self._take(self.start_us(index + 1))

    def forget_until(self, at_us: int) -> None:
        """Drop the points that wait and are not later than this."""
        self._take(at_us + 1)

    def _take(self, end_us: int) -> list[T]:
        """The points before a moment, which wait no longer."""
        points, times = self.points, self.times_us
        if not times or max(times) < end_us:
            self.points, self.times_us = [], []
            return points
        self.points = [point for point, at in zip(points, times, strict=True) if at >= end_us]
        self.times_us = [at for at in times if at >= end_us]
        return [point for point, at in zip(points, times, strict=True) if at < end_us]

    def _wait(self, settings: DriftSettings) -> None:
        self.due_us = self.start_us(self.next_index + 1) + round(settings.grace_s * SECOND_US)


def huber_mean(values: Sequence[float], noises: Sequence[float]) -> tuple[float, float]:
    """Robust mean of values with known noise (standard deviations), and its own standard deviation.

    Where no value is far out it is the weighted mean; else that of values drawn in to HUBER noises
    from the centre, three times over.
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
