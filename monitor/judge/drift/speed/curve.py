"""The expected value of a metric at a load: a level for each probe and an additive curve over both
measures of load, learned once and refined from then on (curve_fit.py).

It is known only where there are nodes: extrapolating beyond the learned loads was the largest
source of false alarms (docs/detection.md). At first it is learned from canaries that were kept
whole. From then on every canary contributes its deviation from its block's mean; those deviations,
summed by load, refine curve and noise without the AR(1) noise, and no canary needs to be kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.speed.load import UNKNOWN_BIN, EngineLoad, peers_bin, prompts_bin
from monitor.judge.drift.speed.training import TrainingPoint

LEAST_NOISE = 5e-4  # no noise is taken to be below 0.05 %
DEVIATION_CLIP = 3.0  # noises: more than this is an outlier
LEAST_JOINT = 5  # canaries at a pair of load bins, before that pair is known


class CurveNode(NamedTuple):
    """The curve at one bin of load."""

    at: float  # mean place of its canaries
    height: float
    seen: float  # the height by its own canaries alone
    error: float  # standard deviation of `height`
    noise: float  # of single canaries, as a factor on the noise of their probe
    canaries: int


@dataclass(slots=True)
class DeviationSums:
    """Deviations from the block's mean, summed over one cell of load or over one probe."""

    n: int = 0
    peers: float = 0.0
    prompts: float = 0.0
    deviation: float = 0.0
    size: float = 0.0  # of deviations, in noises

    def add(self, load: EngineLoad, deviation: float, size: float) -> None:
        """Adds one canary."""
        self.n += 1
        self.peers += load.peers or 0.0
        self.prompts += load.prompts or 0.0
        self.deviation += deviation
        self.size += size


class ExpectedValue(NamedTuple):
    """Expected value of a canary, the noise of a single one, and the uncertainty of the curve."""

    value: float
    noise: float
    error: float


@dataclass(slots=True)
class LoadCurve:
    """Levels by probe (key), nodes by bin of load. Logarithms; known only where there are nodes."""

    levels: dict[str, float] = field(default_factory=dict)
    noises: dict[str, float] = field(default_factory=dict)  # of single canaries, by key
    peers: dict[str, CurveNode] = field(default_factory=dict)
    prompts: dict[str, CurveNode] = field(default_factory=dict)
    joint: dict[str, int] = field(default_factory=dict)  # canaries by both bins
    cell_sums: dict[str, DeviationSums] = field(default_factory=dict)  # since the last refinement
    key_sums: dict[str, DeviationSums] = field(default_factory=dict)

    def expected(self, key: int, load: EngineLoad) -> ExpectedValue | None:
        """Expected value at a load; None where that was not learned."""
        peers, prompts = load
        m, p = peers_bin(peers), prompts_bin(prompts)
        node, prompt_node, name = self.peers.get(str(m)), self.prompts.get(str(p)), str(key)
        if node is None or prompt_node is None or name not in self.levels:
            return None
        if self.joint.get(f"{m}.{p}", 0) < LEAST_JOINT:
            return None
        value = (
            self.levels[name]
            + _between(self.peers, node, m, peers)
            + _between(self.prompts, prompt_node, p, prompts)
        )
        noise = self.noises[name] * node.noise * prompt_node.noise
        return ExpectedValue(value, max(LEAST_NOISE, noise), node.error + prompt_node.error)

    def observe(self, key: int, load: EngineLoad, deviation: float, noise: float) -> None:
        """Processes the deviation of a canary from the mean of its block."""
        size = abs(deviation) / noise
        if size > DEVIATION_CLIP:
            deviation, size = math.copysign(DEVIATION_CLIP * noise, deviation), DEVIATION_CLIP
        cell, name = f"{peers_bin(load.peers)}.{prompts_bin(load.prompts)}", str(key)
        if cell not in self.cell_sums:
            self.cell_sums[cell] = DeviationSums()
        if name not in self.key_sums:
            self.key_sums[name] = DeviationSums()
        self.cell_sums[cell].add(load, deviation, size)
        self.key_sums[name].add(NO_LOAD, deviation, size)

    def knows(self, point: TrainingPoint) -> bool:
        """Whether the probe and the load of a kept canary are known."""
        return self.expected(point.key, point.load) is not None

    def knows_load(self, point: TrainingPoint) -> bool:
        """Whether both measures of its load are known."""
        return (
            str(peers_bin(point.peers)) in self.peers
            and str(prompts_bin(point.prompts)) in self.prompts
        )

    def words(self) -> str:
        """The learned range of load as text."""
        known = (node.at for name, node in self.peers.items() if name != str(UNKNOWN_BIN))
        highest = max(known, default=None)
        if highest is None:
            return "load unknown"
        return f"load from 0 to {math.expm1(highest):.0f} other sequences"


NO_LOAD = EngineLoad(0.0, 0.0)


def _between(nodes: dict[str, CurveNode], here: CurveNode, bin_: int, value: float | None) -> float:
    """Interpolates linearly between the nodes of neighbouring bins; flat where the neighbour is
    unknown.
    """
    if value is None or value == here.at or bin_ == UNKNOWN_BIN:
        return here.height
    other = nodes.get(str(bin_ + (1 if value > here.at else -1)))
    if other is None or other.at == here.at:
        return here.height
    return here.height + (value - here.at) * (other.height - here.height) / (other.at - here.at)
