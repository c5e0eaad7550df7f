"""Nodes of a load curve: an additive fit through cells of load, and smoothing.

A node is what was measured in its bin, drawn towards a smooth curve through its neighbours as far
as it is uncertain (empirical Bayes); the remaining uncertainty is reported and makes a block
noisier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.speed.curve import CurveNode, LoadCurve
from monitor.judge.drift.speed.load import UNKNOWN_BIN
from monitor.judge.drift.stats.regression import weighted_parabola

LEAST_DEPARTURE = 0.001  # how far a bin may be from a smooth curve: at least 0.1 %
# a load met in one hour only is known no better than the AR(1) noise of some hours,
NOISE_SD = 0.005
NOISE_CANARIES = 300  # until this many canaries have met it
MEDIAN_COST = 1.6  # variance of a median over that of a mean
REACH = 0.6  # of the smooth curve, in ln(1 + peers)

Nodes = dict[str, CurveNode]


class LoadCell(NamedTuple):
    """A pair of load bins: mean place of its canaries, height over the probes' levels, and
    count.
    """

    bins: tuple[int, int]  # peers, prompts
    at: tuple[float, float]
    height: float
    n: int


def known_cells(curve: LoadCurve) -> list[LoadCell]:
    """The curve as cells."""
    found = []
    for name, n in curve.joint.items():
        m, p = name.split(".")
        node, prompt_node = curve.peers.get(m), curve.prompts.get(p)
        if node is not None and prompt_node is not None:
            at, height = (node.at, prompt_node.at), node.seen + prompt_node.seen
            found.append(LoadCell((int(m), int(p)), at, height, n))
    return found


def set_nodes(curve: LoadCurve, cells: Sequence[LoadCell], least: int) -> None:
    """Fits an additive curve through the cells by backfitting: for each bin the weighted mean of
    what the other measure leaves. A bin with fewer than `least` canaries stays unknown.
    """
    curve.joint = {"{}.{}".format(*cell.bins): cell.n for cell in cells}
    typical = median(curve.noises.values())
    for _ in range(3):
        for nodes, part in ((curve.peers, 0), (curve.prompts, 1)):
            others = curve.prompts if part == 0 else curve.peers
            fresh = _additive(nodes, others, part, cells, least)
            if part and fresh:  # the level belongs to one measure only
                zero = max(fresh.values(), key=lambda node: node.canaries).seen
                fresh = {name: node._replace(seen=node.seen - zero) for name, node in fresh.items()}
            smooth(fresh, typical)
            nodes.clear()
            nodes.update(fresh)


def _additive(
    nodes: Nodes, others: Nodes, part: int, cells: Sequence[LoadCell], least: int
) -> Nodes:
    """Nodes of one measure of load, as what the other measure leaves of the cells."""
    grouped: dict[int, list[LoadCell]] = {}
    for cell in cells:
        grouped.setdefault(cell.bins[part], []).append(cell)
    fresh: Nodes = {}
    for bin_, members in sorted(grouped.items()):
        n = sum(cell.n for cell in members)
        if n < least:
            continue
        left = [cell.height - _height(others, cell.bins[1 - part]) for cell in members]
        seen = sum(value * cell.n for value, cell in zip(left, members, strict=True)) / n
        at = sum(cell.at[part] * cell.n for cell in members) / n
        old = nodes.get(str(bin_))
        noise = old.noise if old else 1.0
        fresh[str(bin_)] = CurveNode(
            at=at, height=seen, seen=seen, error=0.0, noise=noise, canaries=n
        )
    return fresh


def _height(nodes: Nodes, bin_: int) -> float:
    node = nodes.get(str(bin_))
    return 0.0 if node is None else node.height


def smooth(nodes: Nodes, noise: float) -> None:
    """Draws each node towards a local parabola through its neighbours, as far as it is uncertain
    itself.
    """
    names = [name for name in nodes if name != str(UNKNOWN_BIN)]
    own = {name: _variance(node, noise) for name, node in nodes.items()}
    curve = {name: _parabola(nodes, names, nodes[name].at, own) for name in names}
    excess = [(nodes[name].seen - curve[name]) ** 2 - own[name] for name in names]
    departure = max(LEAST_DEPARTURE**2, sum(excess) / len(excess)) if len(names) > 3 else 1.0
    for name, node in nodes.items():
        trust = departure / (departure + own[name]) if name in curve else 1.0
        smoothed = curve.get(name, node.seen)
        nodes[name] = node._replace(
            height=smoothed + trust * (node.seen - smoothed), error=math.sqrt(trust * own[name])
        )


def _variance(node: CurveNode, noise: float) -> float:
    """Variance of a node by its own canaries: their scatter, and the AR(1) noise while they ran."""
    canaries = max(1, node.canaries)
    scatter = MEDIAN_COST * (node.noise * noise) ** 2 / canaries
    return scatter + NOISE_SD**2 * min(1.0, NOISE_CANARIES / canaries)


def _parabola(nodes: Nodes, names: Sequence[str], at: float, variance: dict[str, float]) -> float:
    """Height at a place of the weighted least-squares parabola (a line, or a mean, where there are
    too few nodes) within reach.
    """
    reach = REACH
    while sum(abs(nodes[name].at - at) < reach for name in names) < min(5, len(names)):
        reach *= 1.5
    near = [name for name in names if abs(nodes[name].at - at) < reach]
    weights = [
        (1 - (abs(nodes[name].at - at) / reach) ** 3) ** 3 / max(1e-12, variance[name])
        for name in near
    ]
    x = [nodes[name].at - at for name in near]
    return weighted_parabola(x, [nodes[name].seen for name in near], weights)
