"""Service levels from few canaries."""

from __future__ import annotations

import random

import pytest
from pydantic import TypeAdapter

from monitor.judge.drift.evidence import Effect
from monitor.judge.drift.settings import MINUTE_US, DriftSettings
from monitor.judge.drift.speed.levels import LevelChannel, exceeded, threshold
from monitor.judge.drift.stats.sequential import wilson
from monitor.model import CanaryPoint

SETTINGS = DriftSettings(levels={"chat": 1000.0})


def canary(
    minute: float, ttft_ms: float | None = 200.0, outcome: str = "ok", traffic_class: str = "chat"
) -> CanaryPoint:
    at = round(minute * MINUTE_US)
    return CanaryPoint(
        at, at + 2_000_000, "p", traffic_class, "warm", outcome, ttft_ms=ttft_ms, e2e_ms=2000.0
    )


def waits(minute: float) -> CanaryPoint:
    return canary(minute, None, "queue_cap")


def fed(*points: CanaryPoint, channel: LevelChannel | None = None) -> LevelChannel:
    channel = channel or LevelChannel()
    for point in points:
        channel.canary(point, SETTINGS)
    return channel


def effect(channel: LevelChannel) -> Effect | None:
    return channel.effects(SETTINGS).get("chat")


def test_five_canaries_in_a_row_that_wait_too_long_are_enough() -> None:
    channel = fed(*(canary(m) for m in range(50)), *(waits(50 + m) for m in range(4)))
    assert effect(channel) is None
    found = effect(fed(waits(54), channel=channel))
    assert found is not None and found.channel == "level"
    assert found.since_us == waits(50).known_us
    assert found.shift.change_pct == 100.0 and found.shift.low_pct > 50


def test_good_days_before_do_not_delay_it() -> None:
    channel = fed(*(canary(m) for m in range(5000)), *(waits(5000 + m) for m in range(6)))
    assert effect(channel) is not None


def test_slower_than_the_level_counts_as_no_answer_does() -> None:
    assert effect(fed(*(canary(m, 1500.0) for m in range(5)))) is not None
    assert effect(fed(*(canary(m, 900.0) for m in range(500)))) is None


def test_without_a_level_only_those_without_a_first_token_count() -> None:
    slow = canary(0, 60_000.0, traffic_class="batch")
    assert exceeded(slow, SETTINGS) is False
    assert exceeded(slow._replace(ttft_ms=None, outcome="timeout"), SETTINGS) is True


@pytest.mark.parametrize(
    "outcome", ["rejected", "refused", "http_error", "cancelled", "asleep", "truncated"]
)
def test_what_failed_for_another_reason_says_nothing_of_waiting(outcome: str) -> None:
    assert exceeded(canary(0, None, outcome), SETTINGS) is None


def test_a_hang_after_the_first_token_is_no_wait_for_it() -> None:
    assert exceeded(canary(0, 200.0, "hung"), SETTINGS) is None


def test_one_in_thirty_is_within_the_level_for_months() -> None:
    draw, channel = random.Random(1), LevelChannel()
    for minute in range(30_000):
        channel.canary(waits(minute) if draw.random() < 0.033 else canary(minute), SETTINGS)
        assert effect(channel) is None


def test_one_in_five_is_found_within_the_hours() -> None:
    delays = []
    for seed in range(10):
        draw, channel = random.Random(seed), LevelChannel()
        for minute in range(1000):
            channel.canary(waits(minute) if draw.random() < 0.2 else canary(minute), SETTINGS)
            if effect(channel) is not None:
                delays.append(minute)
                break
    assert len(delays) == 10 and sorted(delays)[8] < 240


def test_many_canaries_of_one_moment_are_one_observation() -> None:
    channel = fed(*(waits(0 + i / 60) for i in range(10)))
    assert effect(channel) is None and channel.classes["chat"].count == 1


def test_a_stall_of_less_than_two_minutes_is_a_hiccup() -> None:
    channel = fed(*(canary(m) for m in range(10)), *(waits(10 + i * 0.35) for i in range(6)))
    assert effect(channel) is None


def test_it_closes_when_the_canaries_come_in_time_again() -> None:
    channel = fed(*(waits(m) for m in range(30)))
    assert effect(channel) is not None
    assert effect(fed(*(canary(30 + m) for m in range(27)), channel=channel)) is not None
    assert effect(fed(canary(57), channel=channel)) is None


@pytest.mark.parametrize("every", [5, 15, 60])
def test_a_class_that_is_asked_seldom_need_not_wait_for_so_many(every: int) -> None:
    channel = fed(*(waits(every * n) for n in range(30)))
    closed = next(
        n for n in range(30) if effect(fed(canary(every * (30 + n)), channel=channel)) is None
    )
    assert closed == max(6, 60 // every + 1)


@pytest.mark.parametrize(("share", "most"), [(0.15, 4.0), (0.2, 1.5), (0.3, 0.5)])
def test_it_does_not_flap_while_some_still_wait(share: float, most: float) -> None:
    draw, channel, opened, was = random.Random(1), LevelChannel(), 0, False
    for minute in range(20 * 1440):
        channel.canary(waits(minute) if draw.random() < share else canary(minute), SETTINGS)
        opened += (effect(channel) is not None) and not was
        was = effect(channel) is not None
    assert 1 <= opened < 20 * most


def test_a_moment_in_which_one_waits_is_not_in_time() -> None:
    channel = fed(*(waits(m) for m in range(30)))
    for minute in range(30, 90):
        assert effect(fed(canary(minute), waits(minute + 0.1), channel=channel)) is not None


def test_classes_are_judged_apart() -> None:
    channel = fed(
        *(waits(m)._replace(traffic_class="batch") for m in range(6)),
        *(canary(m) for m in range(6)),
    )
    assert set(channel.effects(SETTINGS)) == {"batch"}


def test_it_is_armed_from_the_first_canary_and_says_what_it_watches() -> None:
    armed = fed(canary(0)).armed(SETTINGS)
    assert [a.armed for a in armed] == [True]
    assert "no first token within 1000 ms; 1 canaries so far" in armed[0].detail


def test_suspicion_grows_with_each_that_waits() -> None:
    rising = [fed(*(waits(m) for m in range(n + 1))).suspicion(SETTINGS) for n in range(4)]
    assert rising == sorted(rising) and rising[-1] > 1 / 3


def test_the_threshold_is_the_observations_to_a_false_alarm() -> None:
    assert threshold(DriftSettings(false_alarms_per_month=0.05)) == pytest.approx(13.67, abs=0.01)


def test_the_interval_of_a_share_is_wilsons() -> None:
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_dump_in_the_middle_changes_nothing() -> None:
    adapter = TypeAdapter(LevelChannel)
    points = [
        *(canary(m) for m in range(20)),
        *(waits(20 + m) for m in range(8)),
        *(canary(28 + m) for m in range(3)),
    ]
    whole = fed(*points)
    for cut in range(len(points)):
        half = adapter.validate_json(adapter.dump_json(fed(*points[:cut])))
        assert fed(*points[cut:], channel=half) == whole
