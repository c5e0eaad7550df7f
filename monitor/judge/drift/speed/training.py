"""Canaries kept for learning the load curve, by load: rare loads are kept whole, common ones
thinned out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.speed.load import EngineLoad, MetricValue, peers_bin

MOST_POINTS = 1440  # in all; the fullest load is thinned out


class TrainingPoint(NamedTuple):
    """One canary kept for learning: block, probe, load, and the logarithm of its metric (lower is
    worse).
    """

    block: int
    key: int
    peers: float | None
    prompts: float | None
    value: float

    @classmethod
    def of(cls, block: int, measured: MetricValue) -> TrainingPoint:
        """A measurement with fewer digits, since it is stored."""
        peers, prompts = measured.load
        return cls(
            block=block,
            key=measured.key,
            peers=None if peers is None else round(peers, 4),
            prompts=None if prompts is None else round(prompts, 4),
            value=round(measured.value, 6),
        )

    @property
    def load(self) -> EngineLoad:
        """The load it met."""
        return EngineLoad(self.peers, self.prompts)


@dataclass(slots=True)
class LoadBin:
    """Canaries of one load. When there are too many, those of half of the blocks are kept: whole
    blocks, spread over the whole time.
    """

    stride: int = 1  # how many canaries one of them represents: a power of two
    points: list[TrainingPoint] = field(default_factory=list)


def _chosen(block: int, stride: int) -> bool:
    """One block in `stride`, pseudo-randomly (Knuth's multiplicative hash), so that a probe that
    runs in every second block is not thinned out completely.
    """
    return (block * 2_654_435_761 & 0xFFFF_FFFF) * stride < 1 << 32


@dataclass(slots=True)
class TrainingSet:
    """All canaries kept for learning one metric."""

    bins: dict[str, LoadBin] = field(default_factory=dict)
    size: int = 0

    def add(self, point: TrainingPoint) -> None:
        """Keeps one more, unless its block was thinned out."""
        name = str(peers_bin(point.peers))
        bin_ = self.bins.get(name)
        if bin_ is None:
            bin_ = self.bins[name] = LoadBin()
        if not _chosen(point.block, bin_.stride):
            return
        bin_.points.append(point)
        self.size += 1
        if self.size > MOST_POINTS:
            fullest = max(self.bins.values(), key=lambda b: len(b.points))
            fullest.stride *= 2
            self._keep(fullest, lambda point: _chosen(point.block, fullest.stride))

    def forget_before(self, block: int) -> None:
        """Drops older canaries."""
        self._keep_all(lambda point: point.block >= block)

    def forget_where(self, known: Callable[[TrainingPoint], bool]) -> None:
        """Drops canaries whose load and probe are known by now."""
        self._keep_all(lambda point: not known(point))

    def _keep_all(self, wanted: Callable[[TrainingPoint], bool]) -> None:
        for name in list(self.bins):
            self._keep(self.bins[name], wanted)
            if not self.bins[name].points:
                del self.bins[name]

    def _keep(self, bin_: LoadBin, wanted: Callable[[TrainingPoint], bool]) -> None:
        kept = [point for point in bin_.points if wanted(point)]
        self.size += len(kept) - len(bin_.points)
        bin_.points = kept

    def points(self) -> list[TrainingPoint]:
        """All canaries, in order of blocks."""
        return sorted(
            (point for bin_ in self.bins.values() for point in bin_.points),
            key=lambda point: point.block,
        )

    def weight(self, point: TrainingPoint) -> int:
        """The number of canaries that a point represents."""
        return self.bins[str(peers_bin(point.peers))].stride
