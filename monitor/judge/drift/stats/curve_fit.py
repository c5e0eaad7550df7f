"""Learning the curve of curve.py: levels, nodes and noise, at first from kept canaries, then from
the deviations it has tallied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.speed.load import (
    UNKNOWN_BIN,
    Entry,
    Gathering,
    Load,
    mates_bin,
    prompts_bin,
)
from monitor.judge.drift.stats.blocks import mad_sd
from monitor.judge.drift.stats.curve import LEAST_NOISE, Expected, LoadCurve, Node, Tally

LEAST_FOR_NOISE = 30  # deviations before a noise is learnt from them
MEAN_ABS = 0.798  # mean absolute deviation of normal noise over its standard deviation
LEAST_DEPARTURE = 0.001  # how far a bin may be from a smooth curve: at least 0.1 %
# a load met in one hour only is known no better than what the server wanders within hours,
WANDER = 0.005
WANDER_CANARIES = 300  # until so many canaries have met it
# of a probe's deviation goes to its level at once: a probe that runs at one load only shares it
# with the load's node
KEY_SHARE = 0.5
REACH = 0.6  # of the smooth curve, in ln(1 + mates)
MOST_COUNT = 20_000  # what was learnt longer ago counts no more than so many canaries


class Cell(NamedTuple):
    """What was learnt at one cell of load: its mean place, height over the probes' levels, and from
    how many.
    """

    bins: tuple[int, int]  # mates, prompts
    at: tuple[float, float]
    height: float
    n: int


def fit_curve(gathered: Gathering, least: int) -> LoadCurve | None:
    """Learn everything for the first time; None while no load is known. `least`: canaries that make
    a load known.
    """
    entries = gathered.entries()
    if not entries:
        return None
    curve = LoadCurve()
    by_key: dict[str, list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(str(entry.key), []).append(entry)
    curve.levels = {
        key: median(entry.value for entry in members) for key, members in by_key.items()
    }
    curve.noises = dict.fromkeys(by_key, _noise_within(entries, curve))
    for _ in range(4):
        _set_nodes(curve, _cells(gathered, entries, curve), least)
        for key, members in by_key.items():
            known = [
                entry.value - e.value
                for entry in members
                if (e := _expected(curve, entry)) is not None
            ]
            if known:
                curve.levels[key] += median(known)
    if not curve.mates or not curve.prompts:
        return None
    _first_noises(curve, entries)
    return curve


def add_missing(curve: LoadCurve, gathered: Gathering, least: int) -> None:
    """Learn the loads and probes that were met often enough since, from canaries kept for that;
    what is known stays as it is.
    """
    entries = [entry for entry in gathered.entries() if not curve.knows(entry)]
    for key in sorted({entry.key for entry in entries if str(entry.key) not in curve.levels}):
        at_known = [entry for entry in entries if entry.key == key and _load_known(curve, entry)]
        if len(at_known) >= least:
            curve.levels[str(key)] = 0.0
            curve.noises[str(key)] = median(curve.noises.values())
            curve.levels[str(key)] = median(
                e.value - found.value
                for e in at_known
                if (found := _expected(curve, e)) is not None
            )
    usable = [entry for entry in entries if str(entry.key) in curve.levels]
    new = _cells(gathered, usable, curve)
    _set_nodes(curve, [*_known_cells(curve), *new], least)
    gathered.forget_where(curve.knows)


def refine(curve: LoadCurve) -> None:
    """Move nodes and noises by the deviations seen since the last time."""
    tallies, curve.tallies = curve.tallies, {}
    keys, curve.key_tallies = curve.key_tallies, {}
    common = sum(t.deviation for t in keys.values()) / max(
        1, sum(t.n for t in keys.values())
    )  # the level is set by blocks alone
    for key, tally in keys.items():
        if tally.n >= LEAST_FOR_NOISE:
            curve.levels[key] += KEY_SHARE * (tally.deviation / tally.n - common)
            curve.noises[key] = max(LEAST_NOISE, curve.noises[key] * _factor(tally))
    whole = (
        sum(t.size for t in tallies.values())
        / MEAN_ABS
        / max(1, sum(t.n for t in tallies.values()))
        or 1.0
    )
    for nodes, part in ((curve.mates, 0), (curve.prompts, 1)):
        grouped: dict[str, list[Tally]] = {}
        for name, tally in tallies.items():
            grouped.setdefault(name.split(".")[part], []).append(tally)
        for name, members in grouped.items():
            node, n = nodes[name], sum(t.n for t in members)
            before = min(node.canaries, MOST_COUNT)
            moved = node.height + sum(t.deviation for t in members) / n - common
            at = sum(t.prompts if part else t.mates for t in members) / n
            factor = (
                sum(t.size for t in members) / n / MEAN_ABS / whole if n >= LEAST_FOR_NOISE else 1.0
            )
            share = n / (before + n)
            nodes[name] = node._replace(
                at=node.at + (at - node.at) * share,
                seen=node.seen + (moved - node.seen) * share,
                noise=max(0.2, node.noise * factor ** max(share, 0.5)),
                canaries=before + n,
            )
        smooth(nodes, median(curve.noises.values()))
    for name, tally in tallies.items():
        curve.joint[name] = min(MOST_COUNT, curve.joint.get(name, 0) + tally.n)


def _load_known(curve: LoadCurve, entry: Entry) -> bool:
    return (
        str(mates_bin(entry.mates)) in curve.mates
        and str(prompts_bin(entry.prompts)) in curve.prompts
    )


def _factor(tally: Tally) -> float:
    return tally.size / tally.n / MEAN_ABS


def _expected(curve: LoadCurve, entry: Entry) -> Expected | None:
    return curve.expected(entry.key, Load(entry.mates, entry.prompts))


def _cells(gathered: Gathering, entries: Sequence[Entry], curve: LoadCurve) -> list[Cell]:
    """Medians over the levels, cell by cell."""
    grouped: dict[tuple[int, int], list[Entry]] = {}
    for entry in entries:
        grouped.setdefault((mates_bin(entry.mates), prompts_bin(entry.prompts)), []).append(entry)
    found = []
    for (m, p), members in sorted(grouped.items()):
        n = sum(gathered.weight(entry) for entry in members)
        mates = sum(entry.mates or 0.0 for entry in members) / len(members)
        prompts = sum(entry.prompts or 0.0 for entry in members) / len(members)
        found.append(
            Cell(
                (m, p),
                (mates, prompts),
                median(e.value - curve.levels[str(e.key)] for e in members),
                n,
            )
        )
    return found


def _known_cells(curve: LoadCurve) -> list[Cell]:
    """What the curve knows, as cells."""
    found = []
    for name, n in curve.joint.items():
        m, p = name.split(".")
        node, prompt_node = curve.mates.get(m), curve.prompts.get(p)
        if node is not None and prompt_node is not None:
            found.append(
                Cell((int(m), int(p)), (node.at, prompt_node.at), node.seen + prompt_node.seen, n)
            )
    return found


def _set_nodes(curve: LoadCurve, cells: Sequence[Cell], least: int) -> None:
    """An additive curve through the cells: for each bin the weighted mean of what the other measure
    leaves, in turn.
    """
    curve.joint = {"{}.{}".format(*cell.bins): cell.n for cell in cells}
    typical = median(curve.noises.values())
    for _ in range(3):
        for nodes, part in ((curve.mates, 0), (curve.prompts, 1)):
            others = curve.prompts if part == 0 else curve.mates
            grouped: dict[int, list[Cell]] = {}
            for cell in cells:
                grouped.setdefault(cell.bins[part], []).append(cell)
            fresh: dict[str, Node] = {}
            for bin_, members in sorted(grouped.items()):
                n = sum(cell.n for cell in members)
                if n < least:
                    continue
                left = [cell.height - _height(others, cell.bins[1 - part]) for cell in members]
                seen = sum(value * cell.n for value, cell in zip(left, members, strict=True)) / n
                at = sum(cell.at[part] * cell.n for cell in members) / n
                old = nodes.get(str(bin_))
                fresh[str(bin_)] = Node(at, seen, seen, 0.0, old.noise if old else 1.0, n)
            if part and fresh:  # the level belongs to one measure only
                zero = max(fresh.values(), key=lambda node: node.canaries).seen
                fresh = {name: node._replace(seen=node.seen - zero) for name, node in fresh.items()}
            smooth(fresh, typical)
            nodes.clear()
            nodes.update(fresh)


def _height(nodes: dict[str, Node], bin_: int) -> float:
    node = nodes.get(str(bin_))
    return 0.0 if node is None else node.height


def smooth(nodes: dict[str, Node], noise: float) -> None:
    """Draw each node towards a local parabola through its neighbours, as far as it is uncertain
    itself.
    """
    names = [name for name in nodes if name != str(UNKNOWN_BIN)]
    own = {name: _variance(node, noise) for name, node in nodes.items()}
    curve = {name: _parabola(nodes, names, nodes[name].at, own) for name in names}
    excess = [(nodes[name].seen - curve[name]) ** 2 - own[name] for name in names]
    departure = max(LEAST_DEPARTURE**2, sum(excess) / len(excess)) if len(names) > 3 else 1.0
    for name, node in nodes.items():
        trust = departure / (departure + own[name]) if name in curve else 1.0
        smooth = curve.get(name, node.seen)
        nodes[name] = node._replace(
            height=smooth + trust * (node.seen - smooth), error=math.sqrt(trust * own[name])
        )


def _variance(node: Node, noise: float) -> float:
    """Of a node by its own canaries: their scatter (a median costs 1.6 times a mean), and what the
    wander did while they were there.
    """
    return 1.6 * (node.noise * noise) ** 2 / max(1, node.canaries) + WANDER**2 * min(
        1.0, WANDER_CANARIES / max(1, node.canaries)
    )


def _parabola(
    nodes: dict[str, Node], names: Sequence[str], at: float, variance: dict[str, float]
) -> float:
    """Height at a place of the weighted least-squares parabola (a line, or a mean, where there are
    too few nodes) within reach.
    """
    reach = REACH
    while sum(abs(nodes[name].at - at) < reach for name in names) < min(5, len(names)):
        reach *= 1.5
    near = [nodes[name] for name in names if abs(nodes[name].at - at) < reach]
    weights = [
        (1 - (abs(nodes[n].at - at) / reach) ** 3) ** 3 / max(1e-12, variance[n])
        for n in names
        if abs(nodes[n].at - at) < reach
    ]
    x = [node.at - at for node in near]
    y = [node.seen for node in near]
    return weighted_parabola(x, y, weights)


def weighted_parabola(x: Sequence[float], y: Sequence[float], w: Sequence[float]) -> float:
    """Value at 0 of the weighted parabola through the points; of a line or a mean where that is all
    they carry.
    """
    terms = min(3, len(x))
    moments = [sum(wi * xi**k for xi, wi in zip(x, w, strict=True)) for k in range(5)]
    right = [sum(wi * yi * xi**k for xi, yi, wi in zip(x, y, w, strict=True)) for k in range(3)]
    for size in range(terms, 0, -1):
        solved = solve([[moments[i + j] for j in range(size)] for i in range(size)], right[:size])
        if solved is not None:
            return solved[0]
    return 0.0


def solve(matrix: list[list[float]], right: Sequence[float]) -> list[float] | None:
    """Gaussian elimination with pivots for a few unknowns; None where the equations do not
    determine them.
    """
    n = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    scale = max(abs(value) for row in matrix for value in row)
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        if abs(rows[pivot][i]) <= 1e-9 * scale:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, n):
            factor = rows[k][i] / rows[i][i]
            rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i], strict=True)]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (rows[i][n] - sum(rows[i][j] * found[j] for j in range(i + 1, n))) / rows[i][i]
    return found


def _differences(
    entries: Sequence[Entry], curve: LoadCurve, across: bool = False
) -> list[tuple[Entry, float]]:
    """Difference of each canary from the one before it in its block, over the square root of two:
    noise without slow wander.

    `across`: also from the last one of another block, where blocks hold too few canaries to tell.
    """
    found = []
    before: tuple[int, float] | None = None
    for entry in entries:
        expected = _expected(curve, entry)
        value = entry.value - (
            expected.value if expected is not None else curve.levels[str(entry.key)]
        )
        if before is not None and (across or before[0] == entry.block):
            found.append((entry, (value - before[1]) / math.sqrt(2.0)))
        before = (entry.block, value)
    return found


def _noise_within(entries: Sequence[Entry], curve: LoadCurve) -> float:
    differences = _differences(entries, curve)
    if len(differences) < min(LEAST_FOR_NOISE, len(entries) // 2):
        differences = _differences(entries, curve, across=True)
    return (
        max(LEAST_NOISE, mad_sd([value for _, value in differences], 0.0)) if differences else 0.05
    )


def _first_noises(curve: LoadCurve, entries: Sequence[Entry]) -> None:
    """Noise of each probe, then by how much each load makes it larger."""
    found = [
        (entry, value) for entry, value in _differences(entries, curve) if _load_known(curve, entry)
    ]
    for key in curve.levels:
        own = [v for e, v in found if str(e.key) == key]
        curve.noises[key] = (
            max(LEAST_NOISE, mad_sd(own, 0.0))
            if len(own) >= LEAST_FOR_NOISE
            else _noise_within(entries, curve)
        )
    scaled = [
        (mates_bin(e.mates), prompts_bin(e.prompts), v / curve.noises[str(e.key)]) for e, v in found
    ]
    for nodes, part in ((curve.mates, 0), (curve.prompts, 1)):
        by_bin: dict[str, list[float]] = {}
        for row in scaled:
            by_bin.setdefault(str((row[0], row[1])[part]), []).append(row[2])
        for name, node in nodes.items():
            nodes[name] = node._replace(noise=_noise_near(nodes, name, by_bin))
        scaled = [(m, p, v / nodes[str((m, p)[part])].noise) for m, p, v in scaled]
        smooth(nodes, median(curve.noises.values()))


def _noise_near(nodes: dict[str, Node], name: str, by_bin: dict[str, list[float]]) -> float:
    """Noise at one node by the deviations there, and at its nearest neighbours until there are
    enough.
    """
    values: list[float] = []
    for near in sorted(nodes, key=lambda other: abs(nodes[other].at - nodes[name].at)):
        values += by_bin.get(near, [])
        if len(values) >= 2 * LEAST_FOR_NOISE:
            break
    return max(0.2, mad_sd(values, 0.0)) if len(values) >= LEAST_FOR_NOISE else 1.0
