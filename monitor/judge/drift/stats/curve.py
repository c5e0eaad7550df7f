"""What is normal at a load: a level for each probe and a curve over both measures of load, learnt
once and refined for ever (curvefit.py).

First from canaries that were kept whole (medians in turn). From then on every canary says how far
it was from its block's mean; those deviations, added up by load, refine curve and noise without the
slow wander, and need no canary to be kept.

A node of the curve is what was seen in its bin, drawn towards a smooth curve through its neighbours
as far as it is uncertain (empirical Bayes); what stays uncertain is handed out and makes a block
noisier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.speed.load import UNKNOWN_BIN, Entry, Load, mates_bin, prompts_bin

LEAST_NOISE = 5e-4  # nothing is quieter than 0.05 %
DEVIATION_CLIP = 3.0  # noises: more than this is an outlier
LEAST_JOINT = 5  # canaries that met both measures together, before that is known


class Node(NamedTuple):
    """The curve at one bin of load."""

    at: float  # where its canaries were, on the average
    height: float
    seen: float  # the height by its own canaries alone
    error: float  # standard deviation of `height`
    noise: float  # of single canaries, beside the noise of their probe
    canaries: int


@dataclass(slots=True)
class Tally:
    """Deviations from the block's mean that were seen in one cell of load, or of one probe."""

    n: int = 0
    mates: float = 0.0
    prompts: float = 0.0
    deviation: float = 0.0
    size: float = 0.0  # of deviations, in noises

    def add(self, mates: float, prompts: float, deviation: float, size: float) -> None:
        """One more canary."""
        self.n += 1
        self.mates += mates
        self.prompts += prompts
        self.deviation += deviation
        self.size += size


class Expected(NamedTuple):
    """What a canary should show: its value, the noise of a single one, and how uncertain the curve
    is there.
    """

    value: float
    noise: float
    error: float


@dataclass(slots=True)
class LoadCurve:
    """Levels by probe (key), nodes by bin of load. Logarithms; known only where there are nodes."""

    levels: dict[str, float] = field(default_factory=dict)
    noises: dict[str, float] = field(default_factory=dict)  # of single canaries, by key
    mates: dict[str, Node] = field(default_factory=dict)
    prompts: dict[str, Node] = field(default_factory=dict)
    joint: dict[str, int] = field(default_factory=dict)  # canaries by both bins
    tallies: dict[str, Tally] = field(
        default_factory=dict
    )  # since the last refinement, by both bins
    key_tallies: dict[str, Tally] = field(default_factory=dict)

    def expected(self, key: int, load: Load) -> Expected | None:
        """What a canary should show there; None where that was not learnt."""
        mates, prompts = load
        m, p = mates_bin(mates), prompts_bin(prompts)
        node, prompt_node, name = self.mates.get(str(m)), self.prompts.get(str(p)), str(key)
        if (
            node is None
            or prompt_node is None
            or name not in self.levels
            or self.joint.get(f"{m}.{p}", 0) < LEAST_JOINT
        ):
            return None
        value = (
            self.levels[name]
            + _between(self.mates, node, m, mates)
            + _between(self.prompts, prompt_node, p, prompts)
        )
        noise = self.noises[name] * node.noise * prompt_node.noise
        return Expected(value, max(LEAST_NOISE, noise), node.error + prompt_node.error)

    def observe(self, key: int, load: Load, deviation: float, noise: float) -> None:
        """How far a canary was from the mean of its block."""
        size = abs(deviation) / noise
        if size > DEVIATION_CLIP:
            deviation, size = math.copysign(DEVIATION_CLIP * noise, deviation), DEVIATION_CLIP
        mates, prompts = load
        cell, name = f"{mates_bin(mates)}.{prompts_bin(prompts)}", str(key)
        if cell not in self.tallies:
            self.tallies[cell] = Tally()
        if name not in self.key_tallies:
            self.key_tallies[name] = Tally()
        self.tallies[cell].add(mates or 0.0, prompts or 0.0, deviation, size)
        self.key_tallies[name].add(0.0, 0.0, deviation, size)

    def knows(self, entry: Entry) -> bool:
        """Whether the probe and the load of a kept canary are known."""
        return self.expected(entry.key, Load(entry.mates, entry.prompts)) is not None

    def words(self) -> str:
        """The support in words."""
        highest = max(
            (node.at for name, node in self.mates.items() if name != str(UNKNOWN_BIN)), default=None
        )
        return (
            "load unknown"
            if highest is None
            else f"load from 0 to {math.expm1(highest):.0f} other sequences"
        )


def _between(nodes: dict[str, Node], here: Node, bin_: int, value: float | None) -> float:
    """Linear between the nodes of neighbouring bins; flat where the neighbour is unknown."""
    if value is None or value == here.at or bin_ == UNKNOWN_BIN:
        return here.height
    other = nodes.get(str(bin_ + (1 if value > here.at else -1)))
    if other is None or other.at == here.at:
        return here.height
    return here.height + (value - here.at) * (other.height - here.height) / (other.at - here.at)
