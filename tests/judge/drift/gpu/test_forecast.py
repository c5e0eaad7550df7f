"""When a GPU will reach its own limit."""

from __future__ import annotations

from random import Random

from monitor.judge.drift.gpu.forecast import minutes_to_limit
from monitor.judge.drift.gpu.interval import Interval
from monitor.judge.drift.settings import MINUTE_US


def growing(pace: float, minutes: int = 20, noise_c: float = 0.3) -> list[Interval]:
    random = Random(2)
    return [
        Interval(at * MINUTE_US, residual_c=pace * at + random.gauss(0.0, noise_c))
        for at in range(minutes)
    ]


def test_steady_growth_is_carried_on_to_the_limit() -> None:
    found = minutes_to_limit(growing(0.5), margin_c=8.0)
    assert found is not None
    assert abs(found - 16.0) < 2.0


def test_what_does_not_grow_or_wavers_forecasts_nothing() -> None:
    assert minutes_to_limit(growing(0.0), 8.0) is None
    assert minutes_to_limit(growing(-0.5), 8.0) is None
    assert minutes_to_limit(growing(0.1, noise_c=4.0), 8.0) is None
    assert (
        minutes_to_limit([Interval(at * MINUTE_US, residual_c=5.0) for at in range(20)], 8.0)
        is None
    )


def test_too_few_minutes_no_room_or_no_known_limit_forecast_nothing() -> None:
    assert minutes_to_limit(growing(0.5, minutes=9), 8.0) is None
    assert minutes_to_limit(growing(0.5), None) is None
    assert minutes_to_limit(growing(0.5), 0.0) is None


def test_an_hour_ahead_nothing_is_claimed() -> None:
    assert minutes_to_limit(growing(0.1, noise_c=0.05), 20.0) is None
