"""Cron lines: how often they run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from monitor.config.cron import cron_interval, intervals_of

TUESDAY = datetime(2026, 3, 3, 12, 0, 20, tzinfo=UTC)
FRIDAY = datetime(2026, 3, 6, 8, 0, 0, tzinfo=UTC)


def test_a_line_for_every_five_minutes_is_expected_every_five_minutes_and_not_once_a_day() -> None:
    assert cron_interval("*/5 * * * *", TUESDAY) == timedelta(seconds=15 * 60 - 20) / 3


def test_over_a_weekend_a_line_for_working_days_is_expected_later() -> None:
    assert (
        cron_interval("0 8 * * mon-fri", FRIDAY) == timedelta(days=5) / 3
    )  # Monday, Tuesday, Wednesday
    assert cron_interval("0 8 * * mon-fri", FRIDAY - timedelta(days=4)) == timedelta(days=1)


def test_a_line_that_never_runs_is_never_overdue() -> None:
    assert cron_interval("0 0 30 feb *", TUESDAY) is None


def test_seconds_are_taken_as_they_are_and_an_unknown_schedule_is_left_out() -> None:
    found = intervals_of({"a": 30.0, "b": "0 * * * *", "c": None}, {"b": TUESDAY}, FRIDAY)
    assert found == {
        "a": timedelta(seconds=30),
        "b": (timedelta(hours=3) - timedelta(seconds=20)) / 3,
    }


@pytest.mark.parametrize("since", [TUESDAY, FRIDAY])
def test_a_probe_without_a_sample_is_counted_from_when_watching_began(since: datetime) -> None:
    assert intervals_of({"b": "0 8 * * mon-fri"}, {}, since) == {
        "b": cron_interval("0 8 * * mon-fri", since)
    }
