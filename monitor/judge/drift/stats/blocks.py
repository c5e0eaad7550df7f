"""Blocks of a fixed length in time, and the points that wait until their block is over.

A single canary may be disturbed by anything; the robust mean of the canaries of one block is the
unit in which drift is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class ResidualBlock(NamedTuple):
    """Robust mean of one metric's residuals in one block, as a logarithm; lower is worse."""

    number: int  # blocks since the first point
    n: int  # canaries in it
    residual: float
    noise: float  # standard deviation of `residual` by the scatter of single canaries alone


@dataclass(slots=True)
class OpenBlocks(Generic[T]):
    """Points that wait until their block is over. The grid starts at the first point and keeps its
    block length.
    """

    anchor_us: int | None = None
    block_us: int = 0
    next_index: int = 0  # the oldest block that is still open
    due_us: int = 0  # no block can be closed before
    late: int = 0  # points that arrived after their block was closed
    points: list[T] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)  # of the points

    def add(self, point: T, at_us: int, block_us: int, grace_us: int) -> None:
        """Keeps a point; one of a closed block is counted and dropped. `block_us` sets the grid
        with the first point only.
        """
        if self.anchor_us is None:
            self.anchor_us = at_us
            self.block_us = block_us
            self._set_due(grace_us)
        if at_us < self.anchor_us + self.next_index * self.block_us:
            self.late += 1
        else:
            self.points.append(point)
            self.times_us.append(at_us)

    def start_us(self, index: int) -> int:
        """Start of a block."""
        return (self.anchor_us or 0) + index * self.block_us

    def closed(self, now_us: int, grace_us: int) -> Iterator[tuple[int, list[T]]]:
        """Each block that is over, with its points; empty ones are skipped."""
        while self.anchor_us is not None and now_us >= self.due_us:
            first_open = (now_us - grace_us - self.anchor_us) // self.block_us
            index = first_open
            if self.points:
                oldest = (min(self.times_us) - self.anchor_us) // self.block_us
                index = min(first_open, oldest)
            self.next_index = max(self.next_index, min(first_open, index + 1))
            self._set_due(grace_us)
            if index < first_open:
                yield index, self._take_until(self.start_us(index + 1))

    def forget_until(self, at_us: int) -> None:
        """Drops the waiting points up to and including this time."""
        self._take_until(at_us + 1)

    def _take_until(self, end_us: int) -> list[T]:
        """Removes and returns the points before a time."""
        points, times = self.points, self.times_us
        if not times or max(times) < end_us:
            self.points, self.times_us = [], []
            return points
        self.points = [point for point, at in zip(points, times, strict=True) if at >= end_us]
        self.times_us = [at for at in times if at >= end_us]
        return [point for point, at in zip(points, times, strict=True) if at < end_us]

    def _set_due(self, grace_us: int) -> None:
        self.due_us = self.start_us(self.next_index + 1) + grace_us
