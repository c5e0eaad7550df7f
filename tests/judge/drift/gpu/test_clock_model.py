"""What a GPU's clock is at this temperature and power."""

from __future__ import annotations

from random import Random

from monitor.judge.drift.gpu.clock_model import ClockModel
from monitor.judge.drift.gpu.interval import Interval


def minute(temp_c: float, power_w: float, clock: float, busy: int = 1) -> Interval:
    return Interval(0, 1, busy, temp_c=temp_c, power_w=power_w, sm_clock_mhz=clock)


def spark(minutes: int = 400) -> ClockModel:
    """A GB10: 4.5 MHz lost per degree above 62 °C, 35 to 80 W, a little noise."""
    random, model = Random(5), ClockModel()
    for _ in range(minutes):
        power = random.uniform(35.0, 80.0)
        temp = 50.0 + 0.4 * power + random.uniform(-3.0, 3.0)
        model.learn(
            minute(temp, power, 2496.0 - 4.5 * max(0.0, temp - 62.0) + random.gauss(0.0, 5.0))
        )
    return model


def test_a_clock_that_falls_with_the_temperature_as_it_always_did_is_no_deficit() -> None:
    found = spark().deficit(minute(76.0, 60.0, 2433.0))
    assert found is not None
    assert abs(found.share) < 0.01
    assert found.sds < 3.0


def test_a_clock_below_what_is_usual_there_is_one() -> None:
    found = spark().deficit(minute(70.0, 50.0, 2300.0))
    assert found is not None
    assert abs(found.share - 0.066) < 0.01
    assert found.sds > 8.0


def test_beyond_the_temperatures_that_were_learnt_boost_bins_are_granted() -> None:
    found = spark().deficit(minute(94.0, 60.0, 2345.0))
    assert found is not None
    assert found.share < 0.015


def test_less_power_than_ever_excuses_no_low_clock() -> None:
    found = spark().deficit(minute(55.0, 14.0, 799.0))
    assert found is not None
    assert found.share > 0.6


def test_work_that_draws_more_than_the_gpu_ever_did_is_not_judged() -> None:
    assert spark().deficit(minute(80.0, 120.0, 2200.0)) is None


def test_near_the_most_that_it_ever_drew_a_limit_that_cannot_be_read_may_hold_it() -> None:
    assert spark().deficit(minute(80.0, 79.0, 2200.0)) is None
    assert spark().deficit(minute(80.0, 79.0, 2200.0)._replace(power_limit_w=140.0)) is not None


def test_idle_minutes_are_neither_learnt_nor_judged() -> None:
    model = ClockModel()
    for _ in range(400):
        model.learn(minute(40.0, 15.0, 210.0, busy=0))
    assert not model.armed
    assert spark().deficit(minute(40.0, 15.0, 210.0, busy=0)) is None


def test_nothing_is_said_before_an_hour_of_work_was_seen() -> None:
    model = spark(59)
    assert not model.armed
    assert model.deficit(minute(70.0, 50.0, 1000.0)) is None


def test_a_gpu_that_always_ran_at_one_clock_is_allowed_one_step_of_its_governor() -> None:
    model = ClockModel()
    for watts in range(300):
        model.learn(minute(50.0, 200.0 + watts, 1980.0))
    small, large = (
        model.deficit(minute(50.0, 300.0, 1965.0)),
        model.deficit(minute(50.0, 300.0, 1860.0)),
    )
    assert small is not None
    assert small.sds < 4.0
    assert large is not None
    assert large.sds > 4.0
