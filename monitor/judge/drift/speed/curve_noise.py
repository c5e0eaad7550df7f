"""Noise of single canaries, by probe and by load, from canaries kept for learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from monitor.judge.drift.speed.curve import LEAST_NOISE, CurveNode, LoadCurve
from monitor.judge.drift.speed.curve_nodes import smooth
from monitor.judge.drift.speed.load import peers_bin, prompts_bin
from monitor.judge.drift.speed.training import TrainingPoint
from monitor.judge.drift.stats.robust import mad_sd

LEAST_FOR_NOISE = 30  # deviations before a noise is learned from them
LEAST_FACTOR = 0.2  # of the noise at one load over that of its probe
DEFAULT_NOISE = 0.05


def common_noise(points: Sequence[TrainingPoint], curve: LoadCurve) -> float:
    """Noise of all canaries together."""
    differences = _differences(points, curve)
    if len(differences) < min(LEAST_FOR_NOISE, len(points) // 2):
        differences = _differences(points, curve, across=True)
    if not differences:
        return DEFAULT_NOISE
    return max(LEAST_NOISE, mad_sd([value for _, value in differences], 0.0))


def _differences(
    points: Sequence[TrainingPoint], curve: LoadCurve, across: bool = False
) -> list[tuple[TrainingPoint, float]]:
    """Difference of each canary from the one before it in its block, over the square root of two:
    noise without the AR(1) part.

    `across`: also from the last one of another block, where blocks hold too few canaries.
    """
    found = []
    before: tuple[int, float] | None = None
    for point in points:
        expected = curve.expected(point.key, point.load)
        level = expected.value if expected is not None else curve.levels[str(point.key)]
        value = point.value - level
        if before is not None and (across or before[0] == point.block):
            found.append((point, (value - before[1]) / math.sqrt(2.0)))
        before = (point.block, value)
    return found


def set_noises(curve: LoadCurve, points: Sequence[TrainingPoint]) -> None:
    """Learns the noise of each probe, then the factor of each load."""
    found = [(point, v) for point, v in _differences(points, curve) if curve.knows_load(point)]
    for key in curve.levels:
        own = [v for point, v in found if str(point.key) == key]
        curve.noises[key] = (
            max(LEAST_NOISE, mad_sd(own, 0.0))
            if len(own) >= LEAST_FOR_NOISE
            else common_noise(points, curve)
        )
    scaled = [
        ((peers_bin(point.peers), prompts_bin(point.prompts)), v / curve.noises[str(point.key)])
        for point, v in found
    ]
    for nodes, part in ((curve.peers, 0), (curve.prompts, 1)):
        by_bin: dict[str, list[float]] = {}
        for bins, v in scaled:
            by_bin.setdefault(str(bins[part]), []).append(v)
        for name, node in nodes.items():
            nodes[name] = node._replace(noise=_noise_near(nodes, name, by_bin))
        scaled = [(bins, v / nodes[str(bins[part])].noise) for bins, v in scaled]
        smooth(nodes, median(curve.noises.values()))


def _noise_near(nodes: dict[str, CurveNode], name: str, by_bin: dict[str, list[float]]) -> float:
    """Noise factor at one node by the deviations there, and at its nearest neighbours until there
    are enough.
    """
    values: list[float] = []
    for near in sorted(nodes, key=lambda other: abs(nodes[other].at - nodes[name].at)):
        values += by_bin.get(near, [])
        if len(values) >= 2 * LEAST_FOR_NOISE:
            break
    return max(LEAST_FACTOR, mad_sd(values, 0.0)) if len(values) >= LEAST_FOR_NOISE else 1.0
