"""The sequential tests: rare false alarms, quick true ones, and the numbers of their formulas."""

from __future__ import annotations

import math
import random

import pytest

from monitor.judge.drift.stats.ar1 import Ar1Noise
from monitor.judge.drift.stats.drops import DropSizes, DropTest
from monitor.judge.drift.stats.sequential import ExceedanceTest, LevelCusum, log_threshold

QUIET = Ar1Noise(math.exp(-1 / 8), 0.004**2)
SIZES = DropSizes(0.0305, 0.0834, 0.0025)


def ar1_series(n: int, seed: int, model: Ar1Noise = QUIET, noise: float = 0.002) -> list[float]:
    draw = random.Random(seed)
    w, found = draw.gauss(0, math.sqrt(model.variance)), []
    for _ in range(n):
        w = model.phi * w + draw.gauss(0, math.sqrt(model.variance * (1 - model.phi**2)))
        found.append(w + draw.gauss(0, noise))
    return found


def watched(values: list[float], noise: float = 0.002) -> list[float]:
    watch, found = DropTest(), []
    watch.restart(0.0, 0.001, QUIET)
    for i, value in enumerate(values):
        watch.step(i, value, noise, QUIET, SIZES)
        found.append(watch.log_sum)
    return found


def alarm_after(values: list[float], threshold: float = 12.0) -> int:
    return next((i + 1 for i, total in enumerate(watched(values)) if total > threshold), 10_000)


def test_the_wander_of_a_healthy_server_raises_nothing_in_weeks() -> None:
    assert max(watched(ar1_series(4000, 1))) < 12.0


def test_a_drop_of_three_per_cent_is_beyond_doubt_within_three_blocks_of_a_quiet_server() -> None:
    delays = [alarm_after([v - 0.03 for v in ar1_series(50, seed)]) for seed in range(20)]
    assert max(delays) <= 3


def test_a_loss_that_grows_over_two_hours_is_found_before_it_is_whole() -> None:
    delays = [
        alarm_after([v - 0.05 * min(1, i / 24) for i, v in enumerate(ar1_series(60, seed))])
        for seed in range(20)
    ]
    assert sorted(delays)[17] <= 20


def test_one_wild_block_is_forgotten_within_two() -> None:
    values = ar1_series(200, 3)
    values[100] -= 0.5
    after = watched(values)[101:]
    assert max(after[1:]) < 12.0


def test_the_onset_is_dated_to_the_block_of_the_drop() -> None:
    values = [v - (0.05 if i >= 100 else 0.0) for i, v in enumerate(ar1_series(106, 4))]
    watch = DropTest()
    watch.restart(0.0, 0.001, QUIET)
    for i, value in enumerate(values):
        watch.step(i, value, 0.002, QUIET, SIZES)
    likeliest = watch.likeliest()
    assert likeliest is not None and abs(likeliest.block - 100) <= 1


def test_the_offset_of_a_new_process_is_taken_for_its_constant_and_not_for_a_drop() -> None:
    watch = DropTest()
    watch.restart(0.0, 0.02, QUIET)
    largest = 0.0
    for i, value in enumerate(ar1_series(200, 5)):
        watch.step(i, value - 0.02, 0.002, QUIET, SIZES)
        largest = max(largest, watch.log_sum)
    assert largest < 12.0
    assert watch.constant == pytest.approx(-0.02, abs=0.004)


def test_what_the_filter_expects_is_as_uncertain_as_it_says() -> None:
    values, watch, scaled = ar1_series(3000, 6), DropTest(), []
    watch.restart(0.0, 0.001, QUIET)
    for i, value in enumerate(values):
        before = QUIET.phi * watch.noise + watch.constant
        variance = (
            QUIET.phi**2 * watch.var_noise
            + QUIET.variance * (1 - QUIET.phi**2)
            + 0.002**2
            + watch.var_constant
        )
        scaled.append((value - before) ** 2 / variance)
        watch.step(i, value, 0.002, QUIET, SIZES)
    assert sum(scaled) / len(scaled) == pytest.approx(1.0, abs=0.1)


def test_memory_for_onsets_is_bounded() -> None:
    watch = DropTest()
    watch.restart(0.0, 0.001, QUIET)
    for i in range(500):
        watch.step(i, -0.012, 0.03, QUIET, SIZES)
    assert len(watch.onsets) <= 72


def test_the_level_cusum_adds_the_log_likelihood_ratio() -> None:
    cusum = LevelCusum()
    cusum.step(7, -0.04, 0.01**2, 0.03)
    assert cusum.total == pytest.approx(0.03 * (0.04 - 0.015) / 0.01**2)
    assert cusum.since == 7


def test_the_level_cusum_dates_the_onset_to_where_it_left_zero() -> None:
    cusum = LevelCusum()
    for i in range(50):
        cusum.step(i, 0.0 if i < 30 else -0.03, 0.02**2, 0.03)
    assert cusum.since == 30


def test_the_threshold_is_the_log_of_steps_to_a_false_alarm_times_detectors() -> None:
    assert log_threshold(0.05, 300.0, 4) == pytest.approx(math.log(600 * 288 * 4))


def test_the_exceedance_test_follows_its_recursion() -> None:
    test = ExceedanceTest()
    test.step(True, 0.05, (0.5,))
    test.step(False, 0.05, (0.5,))
    assert test.sums == [pytest.approx((1 + 10.0) * (0.5 / 0.95))]
    assert test.log_evidence((1.0,)) == pytest.approx(math.log(11 * 0.5 / 0.95))


def test_the_exceedance_test_keeps_its_false_alarms_at_the_boundary() -> None:
    draw, alarms, n = random.Random(8), 0, 60_000
    test = ExceedanceTest()
    for _ in range(n):
        test.step(draw.random() < 0.05, 0.05, (0.1, 0.2, 0.5, 0.9))
        if test.log_evidence((0.25, 0.25, 0.25, 0.25)) > math.log(5_000):
            alarms, test = alarms + 1, ExceedanceTest()
    assert alarms <= n / 5_000
