"""Each start of the process as a constant of its own: its offset from the baseline, and how far
starts of this server scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monitor.judge.drift.stats.robust import mad_sd

START_BLOCKS = 24  # the offset of a start is measured in its first two hours
MOST_STARTS = 16
DEFAULT_SCATTER = 0.01  # of starts, until three of them are known
LEAST_SCATTER = 0.003
LEAST_BLOCKS = 3  # of a start, before its offset counts
LEAST_KNOWN = 3  # starts, before their scatter is known


@dataclass(slots=True)
class StartMean:
    """Weighted mean of the first residuals after one start of the process."""

    process_start_us: int
    first_index: int
    blocks: int = 0
    weight: float = 0.0
    total: float = 0.0

    def add(self, residual: float, variance: float) -> None:
        """Processes one block."""
        weight = 1.0 / variance
        self.blocks += 1
        self.weight += weight
        self.total += weight * residual

    @property
    def offset(self) -> float | None:
        """Logarithm; below zero is slower."""
        return self.total / self.weight if self.weight > 0 else None


class StartOffset(NamedTuple):
    """Offset of one start for other parts: logarithms, with the half width of a 95 % interval, and
    the scatter of this server's starts.
    """

    process_start_us: int
    first_us: int  # its first block
    offset: float
    half_width: float
    blocks: int
    scatter: float  # standard deviation of the offsets of the other starts
    others: int  # how many other starts that is known from


def scatter_of(starts: Sequence[StartMean], without_us: int | None = None) -> tuple[float, int]:
    """Standard deviation of the offsets of this server's starts, and from how many it is known."""
    offsets = [
        x.offset for x in starts if x.process_start_us != without_us and x.blocks >= LEAST_BLOCKS
    ]
    known = [offset for offset in offsets if offset is not None]
    if len(known) < LEAST_KNOWN:
        return DEFAULT_SCATTER, len(known)
    return max(LEAST_SCATTER, mad_sd(known)), len(known)
