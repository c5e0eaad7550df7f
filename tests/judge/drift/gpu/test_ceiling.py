"""How hard a GPU works when it works hardest, and when it rests."""

from __future__ import annotations

from monitor.judge.drift.evidence import Pair
from monitor.judge.drift.gpu.ceiling import GpuCeiling
from monitor.judge.drift.settings import HOUR_US, MINUTE_US, SECOND_US
from monitor.model import CanaryPoint, GpuPoint

START_US = 1_700_000_000_000_000
BEFORE, NOW = (START_US, START_US + HOUR_US), (START_US + HOUR_US, START_US + 2 * HOUR_US)


def readings(
    ceiling: GpuCeiling,
    begin_us: int,
    top: float,
    floor: float = 0.0,
    power_w: float = 400.0,
    busy: float = 0.4,
) -> None:
    """An hour of readings every five seconds: so much of it busy, the rest idle."""
    for number in range(720):
        works = number % 10 < 10 * busy
        util = top if works else floor
        at_us = begin_us + number * 5 * SECOND_US
        ceiling.gpu(GpuPoint(at_us, "GPU-1", util=util, power_w=power_w if works else 75.0))


def test_the_ceiling_is_what_the_busiest_looks_show_whatever_the_load() -> None:
    ceiling = GpuCeiling()
    readings(ceiling, START_US, 0.95, busy=0.3)
    readings(ceiling, START_US + HOUR_US, 0.95, busy=0.9)
    util, power, _ = ceiling.compare(BEFORE, NOW)
    assert util == Pair(0.95, 0.95)
    assert power == Pair(400.0, 400.0)


def test_a_gpu_that_is_kept_waiting_never_works_as_hard_as_it_did() -> None:
    ceiling = GpuCeiling()
    readings(ceiling, START_US, 0.95)
    readings(ceiling, START_US + HOUR_US, 0.63)
    assert ceiling.compare(BEFORE, NOW)[0] == Pair(0.95, 0.63)


def test_other_kernels_draw_less_when_they_work_hardest() -> None:
    ceiling = GpuCeiling()
    readings(ceiling, START_US, 0.95)
    readings(ceiling, START_US + HOUR_US, 0.95, power_w=330.0)
    assert ceiling.compare(BEFORE, NOW)[1] == Pair(400.0, 330.0)


def test_a_gpu_that_hardly_works_shows_no_ceiling_but_a_floor() -> None:
    ceiling = GpuCeiling()
    readings(ceiling, START_US, 0.95, busy=0.1)
    readings(ceiling, START_US + HOUR_US, 0.95, floor=0.33, busy=0.1)
    util, power, floor = ceiling.compare(BEFORE, NOW)
    assert (util, power) == (Pair(), Pair())
    assert floor == Pair(0.0, 0.33)


def test_where_polls_see_no_work_long_answers_tell_the_ceiling() -> None:
    ceiling = GpuCeiling()
    for minute in range(120):
        at_us = START_US + minute * MINUTE_US
        ceiling.gpu(GpuPoint(at_us, "GPU-1", util=0.0, power_w=75.0))
        for second in (0, 20):
            sent_us = at_us + second * SECOND_US
            util = 0.9 if minute < 60 else 0.6
            ceiling.canary(
                CanaryPoint(
                    sent_us,
                    sent_us + SECOND_US,
                    completion_tokens=128.0,
                    gpu_util=util,
                    power_w=300.0,
                )
            )
            ceiling.canary(
                CanaryPoint(
                    sent_us, sent_us + SECOND_US, completion_tokens=8.0, gpu_util=0.05, power_w=90.0
                )
            )
    assert ceiling.compare(BEFORE, NOW)[0] == Pair(0.9, 0.6)


def test_what_is_under_way_counts_before_its_quarter_of_an_hour_is_over() -> None:
    ceiling = GpuCeiling()
    readings(ceiling, START_US, 0.95)
    for number in range(30):
        ceiling.gpu(
            GpuPoint(
                START_US + HOUR_US + number * 5 * SECOND_US,
                "GPU-1",
                util=0.5 + 0.1 * (number % 2),
                power_w=300.0,
            )
        )
    assert ceiling.compare(BEFORE, NOW)[0] == Pair(0.95, 0.6)


def test_two_days_are_kept() -> None:
    ceiling = GpuCeiling()
    for number in range(24 * 10):
        readings(ceiling, START_US + number * HOUR_US, 0.95)
    assert len(ceiling.polls.closed) <= 2 * 24 * 4 + 1


def test_a_look_from_the_future_neither_ends_the_ceiling_nor_forgets_the_past() -> None:
    ceiling = GpuCeiling()
    readings(ceiling, START_US, 0.95)
    ceiling.gpu(GpuPoint(START_US + 365 * 24 * HOUR_US, "GPU-1", util=0.9, power_w=400.0))
    readings(ceiling, START_US + HOUR_US, 0.63)
    assert ceiling.compare(BEFORE, NOW)[0] == Pair(0.95, 0.63)
    assert (
        len(ceiling.polls.open) < 200
    )  # it waits for the end of a quarter of an hour, and not of a year


def test_one_late_look_does_not_turn_the_clock_back() -> None:
    ceiling = GpuCeiling()
    readings(ceiling, START_US, 0.95)
    ceiling.gpu(GpuPoint(START_US - HOUR_US, "GPU-1", util=0.1))
    readings(ceiling, START_US + HOUR_US, 0.63)
    assert ceiling.compare(BEFORE, NOW)[0] == Pair(0.95, 0.63)
