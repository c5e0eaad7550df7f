"""A line through what was seen."""

from __future__ import annotations

from random import Random

import pytest

from monitor.judge.drift.stats.regression import FadingRegression, solve


def fitted(
    slopes: tuple[float, float, float], count: int, noise_sd: float = 0.0, memory: float = 1e6
) -> FadingRegression:
    random, fit = Random(3), FadingRegression(memory)
    for _ in range(count):
        x = [random.uniform(20, 90), random.uniform(30, 400)]
        fit.learn(x, slopes[0] + slopes[1] * x[0] + slopes[2] * x[1] + random.gauss(0, noise_sd))
    return fit


def test_a_system_of_equations_is_solved() -> None:
    assert solve([[4.0, 1.0, 1.0], [1.0, 3.0, 2.0]]) == pytest.approx([1 / 11, 7 / 11])
    exchanged = solve([[2.0, 1.0, 3.0], [1.0, 3.0, 5.0]], least_pivot=1e-9)
    assert exchanged == pytest.approx([0.8, 1.4])


def test_equations_that_determine_nothing_have_no_solution() -> None:
    assert solve([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0]], least_pivot=1e-9) is None


def test_a_line_without_noise_is_found() -> None:
    fit = fitted((2600.0, -4.0, -0.5), 200)
    assert fit.predict([60.0, 200.0]) == pytest.approx(2600 - 240 - 100, abs=1.0)
    assert fit.predict([85.0, 50.0]) == pytest.approx(2600 - 340 - 25, abs=1.0)


def test_the_spread_is_that_of_the_noise() -> None:
    assert fitted((2600.0, -4.0, -0.5), 4000, noise_sd=12.0).sd == pytest.approx(12.0, rel=0.1)


def test_nothing_is_said_before_there_is_enough() -> None:
    fit = fitted((10.0, 1.0, 1.0), 7)
    assert fit.predict([50.0, 50.0]) is None
    assert fit.sd is None


def test_a_feature_that_never_moved_gets_no_slope_and_does_no_harm() -> None:
    fit, random = FadingRegression(1000.0), Random(1)
    for _ in range(64):
        x = random.uniform(0, 10)
        fit.learn([x, 700.0], 5.0 + 2.0 * x)
    assert fit.slopes[2] == pytest.approx(0.0, abs=1e-6)
    assert fit.predict([4.0, 700.0]) == pytest.approx(13.0, abs=0.05)


def test_two_features_that_always_move_together_share_the_slope() -> None:
    fit, random = FadingRegression(1000.0), Random(1)
    for _ in range(64):
        x = random.uniform(0, 10)
        fit.learn([x, x], 6.0 * x)
    assert fit.slopes[1] == pytest.approx(3.0, rel=0.05)
    assert fit.slopes[2] == pytest.approx(3.0, rel=0.05)


def test_what_is_old_is_forgotten() -> None:
    fit, random = FadingRegression(50.0), Random(2)
    for level in (10.0, 30.0):
        for _ in range(600):
            x = random.uniform(0, 10)
            fit.learn([x], level + x)
    assert fit.predict([0.0]) == pytest.approx(30.0, abs=0.2)


def test_one_wild_value_moves_the_line_no_further_than_a_large_one() -> None:
    calm, upset = (
        fitted((50.0, 0.1, 0.1), 200, noise_sd=1.0),
        fitted((50.0, 0.1, 0.1), 200, noise_sd=1.0),
    )
    upset.learn([55.0, 215.0], 1e6)
    calm.learn([55.0, 215.0], 100.0)
    for fit in (calm, upset):
        for _ in range(8):
            fit.learn([55.0, 215.0], 77.0)
    assert upset.predict([55.0, 215.0]) == pytest.approx(
        calm.predict([55.0, 215.0]) or 0.0, abs=0.5
    )


def test_the_sums_do_not_grow_without_bound() -> None:
    fit = fitted((1.0, 1.0, 1.0), 3000, noise_sd=0.1, memory=20.0)
    assert fit.unit < 1e7
    assert fit.predict([50.0, 100.0]) == pytest.approx(151.0, abs=0.5)
