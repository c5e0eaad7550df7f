"""What one GPU was like, and two times of it side by side."""

from __future__ import annotations

from monitor.judge.drift.gpu.history import GpuHistory
from monitor.judge.drift.gpu.interval import Interval
from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US


def minute(at: int, clock: float = 1980.0, util: float = 0.9, **changes: object) -> Interval:
    return Interval(
        at * MINUTE_US, 1, 1, temp_c=60.0, sm_clock_mhz=clock, util=util, power_w=400.0
    )._replace(**changes)


def history(*minutes: Interval) -> GpuHistory:
    found = GpuHistory()
    for one in minutes:
        found.add(one)
    return found


def test_now_stands_beside_before() -> None:
    gpu = history(
        *[minute(at) for at in range(60)], *[minute(at, clock=1700.0) for at in range(60, 120)]
    )
    compared = gpu.compare("GPU-1", (0, HOUR_US), (HOUR_US, 2 * HOUR_US), ())
    assert (compared.sm_clock_mhz.before, compared.sm_clock_mhz.now) == (1980.0, 1700.0)


def test_a_few_minutes_are_enough_for_now() -> None:
    gpu = history(
        *[minute(at) for at in range(60)], *[minute(at, clock=1700.0) for at in range(60, 63)]
    )
    assert gpu.compare("GPU-1", (0, HOUR_US), (HOUR_US, 2 * HOUR_US), ()).sm_clock_mhz.now == 1700.0


def test_before_is_taken_under_like_utilisation() -> None:
    light = [minute(at, clock=1900.0, util=0.3, power_w=200.0) for at in range(60)]
    heavy = [minute(at, clock=1980.0, util=0.9) for at in range(60, 120)]
    gpu = history(*light, *heavy, *[minute(at, clock=1700.0, util=0.85) for at in range(120, 180)])
    compared = gpu.compare("GPU-1", (0, 2 * HOUR_US), (2 * HOUR_US, 3 * HOUR_US), ())
    assert compared.sm_clock_mhz.before == 1980.0
    assert compared.util.before is not None
    assert (
        0.5 < compared.util.before < 0.7
    )  # of all the time: compared with its like a neighbour could not be seen


def test_a_time_that_nothing_is_known_of_is_unknown() -> None:
    compared = history(minute(0)).compare(
        "GPU-1", (5 * HOUR_US, 6 * HOUR_US), (7 * HOUR_US, 8 * HOUR_US), ("power",)
    )
    assert (compared.sm_clock_mhz.before, compared.sm_clock_mhz.now, compared.missing) == (
        None,
        None,
        ("power",),
    )


def test_days_ago_is_known_by_the_hour() -> None:
    gpu = history(
        *[minute(at, clock=1980.0 if at < 24 * 60 else 1700.0) for at in range(3 * 24 * 60)]
    )
    assert (
        gpu.compare(
            "GPU-1", (0, DAY_US - HOUR_US), (2 * DAY_US, 3 * DAY_US), ()
        ).sm_clock_mhz.before
        == 1980.0
    )
    assert len(gpu.minutes) + len(gpu.blocks) + len(gpu.hours) < 250


def test_after_a_gap_blocks_go_on_on_the_same_grid() -> None:
    gpu = history(*[minute(at) for at in range(5)], *[minute(at) for at in range(1003, 1012)])
    assert [block.at_us // MINUTE_US for block in gpu.blocks] == [0, 1003, 1005]


def test_what_is_dated_later_can_be_forgotten_and_blocks_go_on_on_the_same_grid() -> None:
    gpu = history(
        *[minute(at) for at in range(12)], *[minute(at) for at in range(500_000, 500_012)]
    )
    gpu.forget_after(12 * MINUTE_US)
    assert [one.at_us // MINUTE_US for one in gpu.minutes] == list(range(4, 12))
    assert [block.at_us // MINUTE_US for block in gpu.blocks] == [0, 5, 10]
    for at in range(13, 21):
        gpu.add(minute(at))
    assert [block.at_us // MINUTE_US for block in gpu.blocks] == [0, 5, 10, 10, 15]
    assert (
        gpu.compare("GPU-1", (0, 10 * MINUTE_US), (10 * MINUTE_US, HOUR_US), ()).sm_clock_mhz.now
        == 1980.0
    )
