"""How a healthy server moves by itself, and how far its starts scatter."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.judge.drift.speed.start_offsets import StartMean, scatter_of
from monitor.judge.drift.stats.ar1 import _covariance, fit_ar1
from monitor.judge.drift.stats.blocks import ResidualBlock


def ar1_series(
    n: int, sd: float, tau: float, noise: float, white: float = 0.0, seed: int = 1
) -> list[ResidualBlock]:
    draw, phi = random.Random(seed), math.exp(-1 / tau)
    w, found = draw.gauss(0, sd), []
    for i in range(n):
        w = phi * w + draw.gauss(0, sd * math.sqrt(1 - phi * phi))
        found.append(ResidualBlock(i, 5, w + draw.gauss(0, noise) + draw.gauss(0, white), noise))
    return found


def test_ar1_noise_is_told_from_white_noise() -> None:
    model = fit_ar1(ar1_series(6000, 0.006, 8, 0.01), 0.0015)
    assert math.sqrt(model.variance) == pytest.approx(0.006, rel=0.15)
    assert -1 / math.log(model.phi) == pytest.approx(8, rel=0.6)
    assert math.sqrt(model.white) < 0.003


def test_noise_that_single_canaries_do_not_explain_is_named_apart() -> None:
    model = fit_ar1(ar1_series(6000, 0.004, 8, 0.004, white=0.006), 0.0015)
    assert math.sqrt(model.white) == pytest.approx(0.006, rel=0.2)


def test_a_quiet_server_is_never_taken_for_quieter_than_the_least() -> None:
    model = fit_ar1(ar1_series(6000, 0.0, 8, 0.0001), 0.0015)
    assert math.sqrt(model.variance) >= 0.0015


def test_a_short_history_is_taken_for_a_usual_one() -> None:
    assert math.sqrt(fit_ar1(ar1_series(30, 0.0001, 8, 0.0001), 0.0015).variance) == pytest.approx(
        0.005
    )
    half_a_day = math.sqrt(fit_ar1(ar1_series(144, 0.0001, 8, 0.0001), 0.0015).variance)
    assert 0.003 < half_a_day < 0.005


def test_the_time_of_day_is_no_ar1_noise() -> None:
    calm = ar1_series(6000, 0.004, 8, 0.003)
    daily = [
        b._replace(residual=b.residual + 0.004 * math.sin(2 * math.pi * b.number / 288))
        for b in calm
    ]
    assert fit_ar1(daily, 0.0015).variance == pytest.approx(
        fit_ar1(calm, 0.0015).variance, rel=0.35
    )


def test_hours_without_canaries_count_for_nothing() -> None:
    whole = ar1_series(6000, 0.006, 8, 0.005)
    with_gaps = [b for b in whole if b.number % 500 < 350]
    assert fit_ar1(with_gaps, 0.0015).variance == pytest.approx(
        fit_ar1(whole, 0.0015).variance, rel=0.15
    )


@given(
    st.lists(st.one_of(st.none(), st.floats(-0.1, 0.1)), min_size=1, max_size=60),
    st.integers(0, 24),
)
def test_the_autocovariance_is_the_mean_over_the_pairs_that_are_there(
    values: list[float | None], lag: int
) -> None:
    pairs = [
        a * b for a, b in zip(values, values[lag:], strict=False) if a is not None and b is not None
    ]
    there = bytes(value is not None for value in values)
    assert _covariance([value or 0.0 for value in values], there, lag) == pytest.approx(
        fmean(pairs) if pairs else 0.0, abs=1e-12
    )


def test_the_scatter_of_starts_is_learnt_from_three_of_them() -> None:
    def start(number: int, offset: float) -> StartMean:
        return StartMean(number, number, blocks=24, weight=100.0, total=100.0 * offset)

    assert scatter_of([start(1, 0.0), start(2, 0.2)]) == (0.01, 2)
    scatter, known = scatter_of(
        [start(1, -0.1), start(2, 0.1), start(3, 0.0), start(4, 0.1), start(5, -0.1)]
    )
    assert known == 5 and scatter == pytest.approx(0.148, abs=0.01)
    assert scatter_of([start(i, 0.0) for i in range(5)])[0] == 0.003
    assert scatter_of([start(i, 0.0) for i in range(3)], without_us=1)[1] == 2
