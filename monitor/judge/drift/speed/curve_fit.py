"""Learning the load curve: at first from kept canaries, then from the deviations it has summed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from monitor.judge.drift.speed.curve import LEAST_NOISE, CurveNode, DeviationSums, LoadCurve
from monitor.judge.drift.speed.curve_nodes import LoadCell, known_cells, set_nodes, smooth
from monitor.judge.drift.speed.curve_noise import (
    LEAST_FACTOR,
    LEAST_FOR_NOISE,
    common_noise,
    set_noises,
)
from monitor.judge.drift.speed.load import peers_bin, prompts_bin
from monitor.judge.drift.speed.training import TrainingPoint, TrainingSet

MEAN_ABS = 0.798  # mean absolute deviation of normal noise over its standard deviation
# of a probe's deviation goes to its level at once: a probe that runs at one load only shares it
# with the load's node
KEY_SHARE = 0.5
MOST_COUNT = 20_000  # what was learned longer ago counts no more than this many canaries


def fit_curve(training: TrainingSet, least: int) -> LoadCurve | None:
    """Learns everything for the first time; None while no load is known. `least`: canaries that
    make a load known.
    """
    points = training.points()
    if not points:
        return None
    curve = LoadCurve()
    by_key: dict[str, list[TrainingPoint]] = {}
    for point in points:
        by_key.setdefault(str(point.key), []).append(point)
    curve.levels = {
        key: median(point.value for point in members) for key, members in by_key.items()
    }
    curve.noises = dict.fromkeys(by_key, common_noise(points, curve))
    for _ in range(4):
        set_nodes(curve, _cells(training, points, curve), least)
        for key, members in by_key.items():
            known = _residuals(curve, members)
            if known:
                curve.levels[key] += median(known)
    if not curve.peers or not curve.prompts:
        return None
    set_noises(curve, points)
    return curve


def _residuals(curve: LoadCurve, points: Iterable[TrainingPoint]) -> list[float]:
    """Value less its expectation, of the canaries that have one."""
    expected = ((point, curve.expected(point.key, point.load)) for point in points)
    return [point.value - e.value for point, e in expected if e is not None]


def add_missing(curve: LoadCurve, training: TrainingSet, least: int) -> None:
    """Learns the loads and probes that were met often enough since, from canaries kept for that;
    the learned ones stay as they are.
    """
    points = [point for point in training.points() if not curve.knows(point)]
    for key in sorted({point.key for point in points if str(point.key) not in curve.levels}):
        at_known = [point for point in points if point.key == key and curve.knows_load(point)]
        if len(at_known) >= least:
            curve.levels[str(key)] = 0.0
            curve.noises[str(key)] = median(curve.noises.values())
            curve.levels[str(key)] = median(_residuals(curve, at_known))
    usable = [point for point in points if str(point.key) in curve.levels]
    new = _cells(training, usable, curve)
    set_nodes(curve, [*known_cells(curve), *new], least)
    training.forget_where(curve.knows)


def _cells(
    training: TrainingSet, points: Sequence[TrainingPoint], curve: LoadCurve
) -> list[LoadCell]:
    """Medians over the levels, cell by cell."""
    grouped: dict[tuple[int, int], list[TrainingPoint]] = {}
    for point in points:
        bins = (peers_bin(point.peers), prompts_bin(point.prompts))
        grouped.setdefault(bins, []).append(point)
    found = []
    for bins, members in sorted(grouped.items()):
        n = sum(training.weight(point) for point in members)
        peers = sum(point.peers or 0.0 for point in members) / len(members)
        prompts = sum(point.prompts or 0.0 for point in members) / len(members)
        height = median(point.value - curve.levels[str(point.key)] for point in members)
        found.append(LoadCell(bins, (peers, prompts), height, n))
    return found


def refine(curve: LoadCurve) -> None:
    """Moves nodes and noises by the deviations seen since the last time."""
    cells, curve.cell_sums = curve.cell_sums, {}
    keys, curve.key_sums = curve.key_sums, {}
    # the level is set by blocks alone
    common = sum(s.deviation for s in keys.values()) / max(1, sum(s.n for s in keys.values()))
    for key, sums in keys.items():
        if sums.n >= LEAST_FOR_NOISE:
            curve.levels[key] += KEY_SHARE * (sums.deviation / sums.n - common)
            factor = sums.size / sums.n / MEAN_ABS
            curve.noises[key] = max(LEAST_NOISE, curve.noises[key] * factor)
    total = sum(s.size for s in cells.values())
    whole = total / MEAN_ABS / max(1, sum(s.n for s in cells.values())) or 1.0
    for nodes, part in ((curve.peers, 0), (curve.prompts, 1)):
        grouped: dict[str, list[DeviationSums]] = {}
        for name, sums in cells.items():
            grouped.setdefault(name.split(".")[part], []).append(sums)
        for name, members in grouped.items():
            nodes[name] = _refined(nodes[name], members, part, common, whole)
        smooth(nodes, median(curve.noises.values()))
    for name, sums in cells.items():
        curve.joint[name] = min(MOST_COUNT, curve.joint.get(name, 0) + sums.n)


def _refined(
    node: CurveNode, members: Sequence[DeviationSums], part: int, common: float, whole: float
) -> CurveNode:
    """A node moved by the deviations in its cells. `common`: their mean over everything; `whole`:
    their mean size.
    """
    n = sum(s.n for s in members)
    before = min(node.canaries, MOST_COUNT)
    moved = node.height + sum(s.deviation for s in members) / n - common
    at = sum(s.prompts if part else s.peers for s in members) / n
    factor = sum(s.size for s in members) / n / MEAN_ABS / whole if n >= LEAST_FOR_NOISE else 1.0
    share = n / (before + n)
    return node._replace(
        at=node.at + (at - node.at) * share,
        seen=node.seen + (moved - node.seen) * share,
        noise=max(LEAST_FACTOR, node.noise * factor ** max(share, 0.5)),
        canaries=before + n,
    )
