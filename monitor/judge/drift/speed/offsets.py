"""Each start of the process as a constant of its own: how far it is from what is normal, and how
far starts of this server scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monitor.judge.drift.stats.blocks import mad_sd

START_BLOCKS = 24  # the offset of a start is what its first two hours show
MOST_STARTS = 16
DEFAULT_SCATTER = 0.01  # of starts, until three of them are known
LEAST_SCATTER = 0.003
LEAST_BLOCKS = 3  # of a start, before its offset counts
LEAST_KNOWN = 3  # starts, before they tell how far starts scatter


@dataclass(slots=True)
class Start:
    """How one start of the process differs from what is normal, by its first blocks."""

    process_start_us: int
    first_index: int
    blocks: int = 0
    weight: float = 0.0
    total: float = 0.0

    @property
    def offset(self) -> float | None:
        """Logarithm; below zero is slower."""
        return self.total / self.weight if self.weight > 0 else None


class StartOffset(NamedTuple):
    """The same, handed out: logarithms, with the half width of a 95 % interval, and how far starts
    of this server scatter.
    """

    process_start_us: int
    first_us: int  # its first block
    offset: float
    half_width: float
    blocks: int
    scatter: float  # standard deviation of the offsets of the other starts
    others: int  # how many other starts that is known from


def scatter_of(starts: Sequence[Start], without_us: int | None = None) -> tuple[float, int]:
    """How far starts of this server differ from each other (standard deviation), and from how many
    that is known.
    """
    offsets = [
        x.offset for x in starts if x.process_start_us != without_us and x.blocks >= LEAST_BLOCKS
    ]
    known = [offset for offset in offsets if offset is not None]
    return (
        max(LEAST_SCATTER, mad_sd(known)) if len(known) >= LEAST_KNOWN else DEFAULT_SCATTER
    ), len(known)
