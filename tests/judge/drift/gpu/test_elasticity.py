"""What a lost clock costs."""

from __future__ import annotations

import math
from random import Random

import pytest

from monitor.judge.drift.gpu.elasticity import DECODE, PREFILL, Elasticity
from monitor.judge.drift.settings import DriftSettings
from monitor.model import CanaryPoint

SETTINGS = DriftSettings()
SAMPLE = CanaryPoint(
    at_us=0,
    known_us=3_000_000,
    probe="decode-fixed",
    fingerprint="f",
    e2e_ms=2500.0,
    ttft_ms=300.0,
    decode_tok_s=50.0,
    completion_tokens=128.0,
    prompt_tokens=2000.0,
    cached_tokens=0.0,
    running=0.0,
    waiting=0.0,
    sm_clock_mhz=1980.0,
    mem_clock_mhz=2619.0,
)


def learnt(
    share: float, clocks: tuple[float, ...] = (1980.0, 1755.0), count: int = 200, **changes: object
) -> Elasticity:
    """From canaries of a server of whose work this share follows the clock, 1 % noise."""
    random, found = Random(1), Elasticity()
    for number in range(count):
        clock = clocks[number % len(clocks)]
        speed = math.exp(random.gauss(0.0, 0.01)) / (1.0 - share + share * 1980.0 / clock)
        point = SAMPLE._replace(
            sm_clock_mhz=clock, decode_tok_s=50.0 * speed, ttft_ms=300.0 / speed, **changes
        )
        found.canary(point)
    return found


def test_before_anything_was_seen_others_measurements_are_told_with_their_width() -> None:
    decode, prefill = Elasticity().decode(), Elasticity().prefill()
    assert (decode.value, prefill.value) == (DECODE.mean, PREFILL.mean)
    assert decode.low < 0.23 < 0.57 < decode.high
    assert decode.samples == 0


@pytest.mark.parametrize(
    ("share", "which"),
    [(0.2, "decode"), (0.5, "decode"), (0.9, "decode"), (0.6, "prefill"), (0.9, "prefill")],
)
def test_how_much_follows_the_clock_is_learnt_where_the_clock_varied(
    share: float, which: str
) -> None:
    slope = getattr(learnt(share), which)()
    assert slope.low < share < slope.high
    assert abs(slope.value - share) < 0.1
    assert slope.samples > 50


def test_a_clock_that_never_varied_teaches_nothing() -> None:
    decode = learnt(0.9, clocks=(1980.0,)).decode()
    assert abs(decode.value - DECODE.mean) < 0.02


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "queue_cap"},
        {"phase": "idle"},
        {"waiting": 2.0},
        {"e2e_ms": 300.0},
        {"sm_clock_mhz": None},
        {"decode_tok_s": None},
    ],
)
def test_samples_whose_speed_has_other_reasons_teach_nothing(changes: dict[str, object]) -> None:
    found = Elasticity()
    for clock in (1980.0, 1500.0) * 50:
        found.canary(
            SAMPLE._replace(**{"sm_clock_mhz": clock, "decode_tok_s": clock / 40, **changes})
        )
    assert found.decode().value == DECODE.mean


def test_a_slowed_memory_is_not_taken_for_the_sm_clock() -> None:
    found = Elasticity()
    for clock, memory in ((1980.0, 2619.0), (1900.0, 1500.0)) * 50:
        found.canary(
            SAMPLE._replace(
                sm_clock_mhz=clock, mem_clock_mhz=memory, decode_tok_s=50.0 * memory / 2619.0
            )
        )
    assert abs(found.decode().value - DECODE.mean) < 0.02


def test_load_is_not_taken_for_the_clock() -> None:
    found = Elasticity()
    for number in range(400):
        busy = number % 2
        found.canary(
            SAMPLE._replace(
                sm_clock_mhz=1980.0 - 200.0 * busy,
                running=8.0 * busy,
                decode_tok_s=50.0 - 20.0 * busy,
            )
        )
    assert abs(found.decode().value - DECODE.mean) < 0.02


def test_a_prediction_says_what_the_clock_costs_in_per_cent() -> None:
    predicted = learnt(0.5).predict(1980.0, 1584.0)  # 1 / (0.5 + 0.5 / 0.8) = 0.889
    assert predicted.decode_pct == pytest.approx(-11.1, abs=1.5)
    assert predicted.ttft_pct == pytest.approx(12.5, abs=2.0)
    assert predicted.decode_low_pct < predicted.decode_pct < predicted.decode_high_pct < 0
    assert predicted.ttft_low_pct < predicted.ttft_pct < predicted.ttft_high_pct


def test_a_prediction_between_two_clocks_is_that_of_their_ratio_at_the_highest_clock() -> None:
    """1 / (1 - b + b · 1980/1584) over 1 / (1 - b + b · 1980/1782), b = 0.5."""
    predicted = learnt(0.5, clocks=(1980.0, 1782.0, 1584.0)).predict(1782.0, 1584.0)
    assert predicted.decode_pct == pytest.approx(
        100 * ((0.5 + 0.5 / 0.9) / (0.5 + 0.5 / 0.8) - 1), abs=1.0
    )


def test_the_memory_of_other_groups_does_not_move_the_share() -> None:
    found = learnt(0.5)
    for clock in (1980.0, 1755.0) * 100:
        time = 0.5 + 0.5 * 1980.0 / clock
        found.canary(
            SAMPLE._replace(
                probe="long", sm_clock_mhz=clock, decode_tok_s=7.0 / time, ttft_ms=5000.0 * time
            )
        )
    assert abs(found.decode().value - 0.5) < 0.05


def test_what_is_kept_is_bounded() -> None:
    found = Elasticity()
    for number in range(500):
        found.canary(SAMPLE._replace(probe=f"probe-{number}"))
    assert len(found.decode_groups) <= 24
