"""Blocks: the grid in time, and the robust figure of what fell into a cell."""

from __future__ import annotations

import math
import random
from statistics import pstdev

import pytest

from monitor.judge.drift.settings import SECOND_US
from monitor.judge.drift.stats.blocks import OpenBlocks
from monitor.judge.drift.stats.robust import huber_mean, mad_sd

BLOCK_US, GRACE_US = 300 * SECOND_US, 30 * SECOND_US


def closed(times_s: list[float], now_s: float) -> list[tuple[int, list[float]]]:
    blocks: OpenBlocks[float] = OpenBlocks()
    for time_s in times_s:
        blocks.add(time_s, round(time_s * SECOND_US), BLOCK_US, GRACE_US)
    return list(blocks.closed(round(now_s * SECOND_US), GRACE_US))


def test_the_grid_begins_at_the_first_point() -> None:
    assert closed([1000.0, 1299.0, 1300.0, 1601.0], 3000.0) == [
        (0, [1000.0, 1299.0]),
        (1, [1300.0]),
        (2, [1601.0]),
    ]


def test_a_block_closes_when_its_grace_is_over_and_not_before() -> None:
    assert closed([0.0, 60.0], 329.0) == []
    assert closed([0.0, 60.0], 330.0) == [(0, [0.0, 60.0])]


def test_hours_without_a_canary_are_skipped() -> None:
    assert closed([0.0, 86_400.0], 90_000.0) == [(0, [0.0]), (288, [86_400.0])]


def test_a_point_of_a_closed_block_is_dropped_and_counted() -> None:
    blocks: OpenBlocks[float] = OpenBlocks()
    blocks.add(0.0, 0, BLOCK_US, GRACE_US)
    assert len(list(blocks.closed(400 * SECOND_US, GRACE_US))) == 1
    blocks.add(299.0, 299 * SECOND_US, BLOCK_US, GRACE_US)
    assert (blocks.late, blocks.points) == (1, [])


@pytest.mark.parametrize(
    "looks_s",
    [[3000.0], [300.0, 331.0, 640.0, 1000.0, 3000.0], [float(s) for s in range(0, 3001, 7)]],
)
def test_how_often_the_time_is_told_changes_nothing(looks_s: list[float]) -> None:
    points, found = [0.0, 10.0, 290.0, 301.0, 905.0, 1801.0], []
    blocks: OpenBlocks[float] = OpenBlocks()
    for now_s in looks_s:
        while points and points[0] <= now_s:
            blocks.add(points[0], round(points.pop(0) * SECOND_US), BLOCK_US, GRACE_US)
        found += blocks.closed(round(now_s * SECOND_US), GRACE_US)
    assert found == [(0, [0.0, 10.0, 290.0]), (1, [301.0]), (3, [905.0]), (6, [1801.0])]


def test_one_wild_value_hardly_moves_the_robust_mean() -> None:
    mean, _ = huber_mean([0.001, -0.001, 0.0, 0.002, -0.4], [0.002] * 5)
    assert abs(mean) < 0.002


def test_the_robust_mean_of_normal_values_is_as_uncertain_as_it_says() -> None:
    draw = random.Random(1)
    found = [huber_mean([draw.gauss(0, 0.01) for _ in range(5)], [0.01] * 5) for _ in range(2000)]
    spread = pstdev([mean for mean, _ in found])
    assert 0.9 < found[0][1] / spread < 1.15


def test_a_noisy_canary_weighs_less_than_a_quiet_one() -> None:
    mean, _ = huber_mean([0.0, 0.01], [0.001, 0.1])
    assert mean < 0.001


def test_the_median_absolute_deviation_of_normal_values_is_their_standard_deviation() -> None:
    draw = random.Random(2)
    assert math.isclose(mad_sd([draw.gauss(5, 3) for _ in range(4000)]), 3.0, rel_tol=0.05)
