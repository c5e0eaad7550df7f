"""When a loss began: the break of a line."""

from __future__ import annotations

import random

import pytest

from monitor.judge.drift.stats.change_point import find_break


def noisy(
    levels: list[float], seed: int = 0, noise: float = 0.01
) -> tuple[list[float], list[float]]:
    draw = random.Random(seed)
    return [level + draw.gauss(0, noise) for level in levels], [noise * noise] * len(levels)


@pytest.mark.parametrize("seed", range(10))
def test_a_step_is_dated_to_its_first_value(seed: int) -> None:
    found = find_break(*noisy([0.0] * 30 + [-0.05] * 5, seed))
    assert found is not None and abs(found.start - 30) <= 1 and not found.slope


@pytest.mark.parametrize("seed", range(10))
def test_a_slope_is_dated_to_where_it_begins(seed: int) -> None:
    found = find_break(*noisy([0.0] * 30 + [-0.01 * i for i in range(1, 15)], seed))
    assert found is not None and found.slope and abs(found.start - 30) <= 3


def test_a_step_after_a_slow_drift_is_dated_to_the_step() -> None:
    found = find_break(*noisy([-0.0003 * i for i in range(40)] + [-0.1] * 4))
    assert found is not None and abs(found.start - 40) <= 1


def test_one_wild_value_is_no_break() -> None:
    values, variances = noisy([0.0] * 20 + [-0.06] * 6)
    values[8] = -0.5
    found = find_break(values, variances)
    assert found is not None and abs(found.start - 20) <= 1


def test_a_rise_is_no_break_and_neither_is_nothing() -> None:
    assert find_break(*noisy([0.0] * 20 + [0.05] * 6)) is None
    assert find_break(*noisy([0.0] * 26)) is None
    assert find_break([], []) is None and find_break([1.0], [1.0]) is None
