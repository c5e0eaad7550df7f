"""Starts of the process: landed slow, or slower by the hour."""

from __future__ import annotations

from random import Random

import pytest

from monitor.judge.drift.settings import HOUR_US, MINUTE_US, DriftSettings
from monitor.judge.drift.speed.start_offsets import StartOffset
from monitor.judge.drift.speed.starts import StartChannel, slope_per_h
from monitor.model import CanaryPoint, Severity

SETTINGS = DriftSettings()
START_US = 1_700_000_000_000_000


def offsets(
    now: float, half: float = 0.005, blocks: int = 6, scatter: float = 0.01, others: int = 1
) -> list[StartOffset]:
    earlier = StartOffset(START_US, START_US, 0.0, 0.002, 200, 0.01, 1)
    return [
        earlier,
        StartOffset(START_US + HOUR_US, START_US + HOUR_US, now, half, blocks, scatter, others),
    ]


def channel() -> StartChannel:
    found = StartChannel()
    for process_us in (START_US, START_US + HOUR_US):
        found.canary(
            CanaryPoint(
                process_us, process_us + MINUTE_US, process_start_us=process_us, fingerprint="a"
            )
        )
    return found


def test_a_start_far_below_the_others_landed_slow() -> None:
    effect = channel().effect(offsets(-0.22), [], SETTINGS)
    assert effect is not None
    assert effect.severity is Severity.PAGE
    assert effect.since_us == START_US + HOUR_US
    assert effect.shift.change_pct == pytest.approx(-19.7, abs=0.1)


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("within what starts scatter", offsets(-0.05, scatter=0.02)),
        ("too small for anybody", offsets(-0.01, scatter=0.0)),
        ("not sure yet", offsets(-0.06, half=0.06)),
        ("too few blocks", offsets(-0.22, blocks=2)),
        ("no start to compare it with", offsets(-0.22, others=0)),
        ("faster", offsets(0.22)),
    ],
)
def test_a_start_is_not_called_slow_when(case: str, found: list[StartOffset]) -> None:
    assert channel().effect(found, [], SETTINGS) is None, case


def test_a_start_that_was_only_warming_up_is_well_again() -> None:
    slow = [(START_US + HOUR_US + n * 5 * MINUTE_US, -0.22) for n in range(12)]
    well = [(START_US + 2 * HOUR_US + n * 5 * MINUTE_US, 0.0) for n in range(12)]
    assert channel().effect(offsets(-0.22), slow, SETTINGS) is not None
    assert channel().effect(offsets(-0.22), [*slow, *well], SETTINGS) is None


def test_a_start_that_a_person_has_accepted_is_normal() -> None:
    starts = channel()
    starts.accept(START_US + 2 * HOUR_US)
    assert starts.effect(offsets(-0.22), [], SETTINGS) is None


def test_an_effect_follows_the_restart_just_before_it_and_no_other() -> None:
    starts = channel()
    assert starts.restarted(START_US + HOUR_US + 5 * MINUTE_US) == START_US + HOUR_US
    assert starts.restarted(START_US + 3 * HOUR_US) is None
    assert starts.restarted(START_US + HOUR_US // 2) is None


def test_the_first_digest_that_is_seen_is_no_change() -> None:
    assert channel().digest_changed(START_US) is None


def test_a_change_of_the_digest_is_remembered() -> None:
    starts = channel()
    at_us = START_US + 5 * HOUR_US
    starts.canary(
        CanaryPoint(at_us, at_us + MINUTE_US, process_start_us=START_US + HOUR_US, fingerprint="b")
    )
    assert starts.digest_changed(at_us + 2 * MINUTE_US) == at_us


def series(
    loss: float, step_at: float | None = None, hours: int = 10, seed: int = 0
) -> list[tuple[int, float]]:
    """Residuals every five minutes: by the hour, or in one step after `step_at` hours."""
    chance = Random(seed)
    found = []
    for number in range(hours * 12):
        hour = number / 12
        down = -loss * hour if step_at is None else -loss * (hour >= step_at)
        found.append((START_US + number * 5 * MINUTE_US, down + chance.gauss(0.0, 0.004)))
    return found


def test_a_loss_by_the_hour_is_measured_by_the_hour() -> None:
    slope = slope_per_h(series(0.005), START_US)
    assert slope == pytest.approx(-0.005, abs=0.001)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_no_decay(seed: int) -> None:
    assert slope_per_h(series(0.06, step_at=5.0, seed=seed), START_US) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_process_does_not_decay(seed: int) -> None:
    assert slope_per_h(series(0.0, seed=seed), START_US) is None


def test_what_was_before_the_start_does_not_count() -> None:
    assert slope_per_h(series(0.005), START_US + 8 * HOUR_US) is None


def test_a_process_whose_start_is_not_known_has_no_slope() -> None:
    assert slope_per_h(series(0.005), None) is None
