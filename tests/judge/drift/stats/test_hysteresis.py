"""Hysteresis over minutes, and the 99th percentile of a share of time."""

from __future__ import annotations

from monitor.judge.drift.stats.hysteresis import Hysteresis, HysteresisRule
from monitor.judge.drift.stats.share_histogram import ShareHistogram

RULE = HysteresisRule(need=3, of=5, clear=4)


def after(*hits: bool | None) -> Hysteresis:
    state = Hysteresis()
    for at, hit in enumerate(hits):
        state.minute(hit, at, RULE)
    return state


def test_a_condition_opens_when_enough_of_the_last_minutes_have_it() -> None:
    assert not after(True, False, True, False).open
    assert after(True, False, True, False, True).open


def test_hits_too_far_apart_open_nothing() -> None:
    assert not after(True, False, False, False, True, False, False, False, True).open


def test_the_onset_is_the_first_hit_that_still_counts() -> None:
    assert after(False, False, True, True, False, True).first_us == 2
    assert after(True, False, False, False, False, False, True, True, True).first_us == 6


def test_it_closes_after_good_minutes_in_a_row() -> None:
    assert after(True, True, True, False, False, False, True, False, False, False).open
    assert not after(True, True, True, False, False, False, False).open


def test_unknown_minutes_neither_open_nor_close() -> None:
    assert after(True, None, True, None, True).open
    assert after(True, True, True, *[None] * 50).open


def test_after_a_silence_what_was_seen_before_opens_nothing_but_what_is_open_stays() -> None:
    state = after(True, True)
    state.forget()
    state.minute(True, 9, RULE)
    assert not state.open
    assert state.first_us == 9
    lasting = after(True, True, True)
    lasting.forget()
    assert lasting.open


def test_the_p99_is_what_99_in_100_minutes_stay_below() -> None:
    usual = ShareHistogram()
    for minute in range(3000):
        usual.learn(0.09 if minute % 50 == 0 else 0.0)  # 2 in 100
    assert usual.p99 == 0.1
    rare = ShareHistogram()
    for minute in range(3000):
        rare.learn(0.09 if minute % 200 == 0 else 0.0)  # 5 in 1000
    assert rare.p99 == 0.0


def test_a_week_later_the_old_minutes_weigh_less_and_nothing_grows_without_bound() -> None:
    usual = ShareHistogram()
    for _ in range(10_000):
        usual.learn(1.0)
    for _ in range(60_000):
        usual.learn(0.0)
    assert usual.p99 == 0.0
    assert usual.minutes < 10_100
    assert usual.unit < 1e7
