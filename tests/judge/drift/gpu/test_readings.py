"""From readings of a GPU to minutes."""

from __future__ import annotations

import pytest
from simulated_gpu import HEALTHY

from monitor.judge.drift.gpu.interval import Interval, merge
from monitor.judge.drift.gpu.minute import minute_of
from monitor.judge.drift.gpu.reading import (
    Reading,
    has_gpu_reading,
    reading_of_poll,
    reading_of_sample,
)
from monitor.judge.drift.settings import SECOND_US
from monitor.judge.drift.stats.robust import known_median
from monitor.model import CanaryPoint

SECOND_NS = 10**9


def poll(at_s: float, **changes: object) -> Reading:
    return reading_of_poll(HEALTHY._replace(at_us=int(at_s * SECOND_US), **changes))


def minute(*readings: Reading, before: Reading | None = None) -> Interval:
    return minute_of(0, readings, before, top_power_w=400.0)


def test_the_median_is_of_what_is_known() -> None:
    assert known_median([3.0, None, 1.0, 2.0]) == 2.0
    assert known_median([1.0, 4.0]) == 2.5
    assert known_median([None]) is None
    assert known_median([]) is None


def test_the_clock_of_a_minute_is_the_median_of_its_busy_readings() -> None:
    readings = [
        poll(s, sm_clock_mhz=mhz)
        for s, mhz in ((0, 1980.0), (15, 1530.0), (30, 1980.0), (45, 1980.0))
    ]
    idle = poll(55, util=0.0, sm_clock_mhz=345.0, temp_c=40.0)
    found = minute(*readings, idle)
    assert (found.sm_clock_mhz, found.temp_c, found.busy) == (1980.0, 60.0, 1)


def test_an_idle_minute_has_no_clock_but_a_temperature() -> None:
    found = minute(poll(0, util=0.0, sm_clock_mhz=345.0, temp_c=40.0))
    assert (found.sm_clock_mhz, found.temp_c, found.busy) == (None, 40.0, 0)


def test_without_utilisation_a_reading_that_draws_much_counts_as_busy() -> None:
    assert minute(poll(0, util=None, power_w=380.0)).busy == 1
    assert minute(poll(0, util=None, power_w=80.0)).busy == 0


def test_a_share_of_time_is_what_the_counter_grew_by_since_the_last_reading_before() -> None:
    found = minute(
        poll(5, throttle_thermal_ns=4 * SECOND_NS),
        poll(55, throttle_thermal_ns=16 * SECOND_NS),
        before=poll(-5),
    )
    assert found.thermal_duty == pytest.approx(16 / 60, abs=1e-4)


def test_two_counters_added_up_may_run_twice_as_fast_and_are_never_more_than_all_the_time() -> None:
    found = minute(poll(0), poll(50, throttle_thermal_ns=99 * SECOND_NS))
    assert found.thermal_duty == 1.0


def test_a_counter_that_outran_the_clock_is_unknown() -> None:
    assert minute(poll(0), poll(50, throttle_power_ns=60 * SECOND_NS)).power_duty is None
    assert minute(poll(0), poll(50, throttle_thermal_ns=120 * SECOND_NS)).thermal_duty is None


def test_a_counter_that_ran_backwards_is_unknown() -> None:
    assert minute(poll(0, throttle_brake_ns=9 * SECOND_NS), poll(50)).brake_duty is None


def test_a_counter_says_nothing_about_a_long_gap() -> None:
    assert minute(poll(5, throttle_thermal_ns=SECOND_NS), before=poll(-600)).thermal_duty is None


def test_bits_are_those_of_busy_readings() -> None:
    assert (
        minute(
            poll(0, event_reasons=0x20),
            poll(5, event_reasons=0x4),
            poll(10, util=0.0, event_reasons=0x1),
        ).event_reasons
        == 0x24
    )
    assert minute(poll(0, event_reasons=None)).event_reasons is None


def sample(**changes: object) -> Reading:
    point = CanaryPoint(
        0,
        2 * SECOND_US,
        gpu_uuid="GPU-1",
        gpu_temp_c=61.0,
        sm_clock_mhz=1980.0,
        gpu_util=0.3,
        throttle_thermal_ms=500.0,
    )
    return reading_of_sample(point._replace(**changes))


def test_a_sample_tells_the_clock_where_polls_saw_no_work() -> None:
    found = minute(poll(0, util=0.0, sm_clock_mhz=345.0, temp_c=40.0), sample())
    assert (found.sm_clock_mhz, found.temp_c) == (1980.0, 61.0)


def test_after_a_short_answer_the_clock_may_still_be_on_its_way_up() -> None:
    found = minute(sample(known_us=SECOND_US // 10, sm_clock_mhz=1218.0), sample())
    assert (found.sm_clock_mhz, found.temp_c) == (1980.0, 61.0)


def test_polls_that_saw_work_are_believed_rather_than_samples() -> None:
    assert minute(poll(0, sm_clock_mhz=1700.0), sample()).sm_clock_mhz == 1700.0


def test_a_sample_tells_the_share_of_its_time() -> None:
    assert minute(sample()).thermal_duty == 0.25
    assert minute(sample(), sample(throttle_thermal_ms=0.0)).thermal_duty == 0.125
    assert minute(sample(throttle_thermal_ms=None)).thermal_duty is None


@pytest.mark.parametrize(("name", "counters"), [("thermal", 2), ("power", 1), ("brake", 1)])
def test_more_than_can_have_passed_between_two_readings_is_unknown(
    name: str, counters: int
) -> None:
    """A sample of two seconds, with readings up to ten seconds further apart; by software and by
    hardware, heat may be counted twice.
    """
    most_ms = counters * 12_000.0
    share = f"{name}_duty"
    assert getattr(sample(**{f"throttle_{name}_ms": most_ms}), share) == 1.0
    assert getattr(sample(**{f"throttle_{name}_ms": most_ms + 1.0}), share) is None
    assert getattr(sample(**{f"throttle_{name}_ms": 40_000_000.0}), share) is None


NAMELESS = {"known_us": 0, "e2e_ms": None}  # no duration was told


def test_of_an_answer_of_unknown_length_no_share_of_time_is_known() -> None:
    found = sample(**NAMELESS, throttle_thermal_ms=500.0, throttle_power_ms=0.0, gpu_util=0.9)
    assert (found.thermal_duty, found.power_duty) == (None, None)


def test_the_length_is_that_of_first_token_and_rate_where_no_duration_was_told() -> None:
    found = sample(
        **NAMELESS,
        ttft_ms=500.0,
        completion_tokens=151.0,
        decode_tok_s=100.0,
        throttle_thermal_ms=500.0,
        gpu_util=0.1,
    )
    assert (found.thermal_duty, found.sm_clock_mhz) == (0.25, 1980.0)
    short = sample(
        **NAMELESS, ttft_ms=20.0, completion_tokens=8.0, decode_tok_s=100.0, gpu_util=0.9
    )
    assert short.sm_clock_mhz is None


def test_the_clock_beside_an_answer_of_unknown_length_counts_where_the_gpu_was_at_work() -> None:
    assert sample(**NAMELESS, gpu_util=0.9).sm_clock_mhz == 1980.0
    assert sample(**NAMELESS, gpu_util=0.0).sm_clock_mhz is None
    by_power = CanaryPoint(0, 0, gpu_uuid="GPU-1", sm_clock_mhz=1980.0, power_w=300.0)
    assert reading_of_sample(by_power, top_power_w=400.0).sm_clock_mhz == 1980.0
    assert (
        reading_of_sample(by_power._replace(power_w=70.0), top_power_w=400.0).sm_clock_mhz is None
    )


def test_where_the_gpu_does_not_tell_whether_it_worked_tokens_do() -> None:
    assert sample(**NAMELESS, gpu_util=None, decode_tok_s=100.0).sm_clock_mhz == 1980.0
    assert sample(**NAMELESS, gpu_util=None).sm_clock_mhz is None


def test_other_readings_count_whatever_the_length() -> None:
    found = sample(**NAMELESS, gpu_util=0.0, gpu_margin_c=2.0, power_limit_w=300.0)
    assert (found.temp_c, found.margin_c, found.power_limit_w) == (61.0, 2.0, 300.0)


def test_any_reading_a_gpu_can_be_judged_by_is_enough() -> None:
    assert not has_gpu_reading(CanaryPoint(0, 0, gpu_uuid="GPU-1"))
    for name in (
        "sm_clock_mhz",
        "gpu_temp_c",
        "gpu_margin_c",
        "power_limit_w",
        "throttle_thermal_ms",
        "throttle_brake_ms",
    ):
        assert has_gpu_reading(CanaryPoint(0, 0, gpu_uuid="GPU-1")._replace(**{name: 0.0}))


def test_stretches_are_merged_by_their_busy_minutes_and_shares_by_time() -> None:
    busy = Interval(0, 1, 1, temp_c=80.0, sm_clock_mhz=1900.0, util=0.9, thermal_duty=0.5)
    idle = Interval(60, 3, 0, temp_c=50.0, util=0.1, thermal_duty=0.1)
    found = merge([busy, idle])
    assert (found.minutes, found.busy, found.temp_c, found.sm_clock_mhz) == (4, 1, 80.0, 1900.0)
    assert (found.util, found.thermal_duty) == (0.3, 0.2)


def test_a_limit_is_the_last_one_that_was_told() -> None:
    assert (
        minute(poll(0, power_limit_w=700.0), poll(50, power_limit_w=500.0)).power_limit_w == 500.0
    )
    assert (
        merge(
            [Interval(0, power_limit_w=700.0), Interval(1, power_limit_w=500.0), Interval(2)]
        ).power_limit_w
        == 500.0
    )
