"""Has the server's process been started anew?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from monitor.judge.starts import KnownStart, NewStart, judge_start
from monitor.model import ServerPage

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
KNOWN = KnownStart(started_at=NOON, seen_at=NOON)
UNTOLD = KnownStart(
    started_at=None, seen_at=NOON
)  # several API servers: the page has no start time
PAGE = ServerPage(
    at=NOON,
    state="ok",
    process_start_s=NOON.timestamp(),
    engine_steps=100.0,
    generation_tokens=500.0,
)
BARE = replace(PAGE, process_start_s=None)


def started(page: ServerPage, seconds: float) -> ServerPage:
    return replace(page, process_start_s=NOON.timestamp() + seconds)


@pytest.mark.parametrize("was_away", [False, True])
def test_the_same_start_time_is_the_same_process_also_after_an_outage(was_away: bool) -> None:
    assert judge_start(KNOWN, PAGE, PAGE, was_away) is None


def test_a_start_time_that_differs_by_rounding_is_the_same_process() -> None:
    assert judge_start(KNOWN, PAGE, started(PAGE, 0.01), False) is None
    assert judge_start(KNOWN, PAGE, started(PAGE, -0.01), False) is None


@pytest.mark.parametrize("seconds", [2.0, 3600.0, -3600.0])
def test_another_start_time_is_another_process(seconds: float) -> None:
    found = judge_start(KNOWN, PAGE, started(PAGE, seconds), False)
    assert found == NewStart(NOON + timedelta(seconds=seconds), "metrics")


def test_another_start_time_tells_a_restart_also_where_no_counter_fell() -> None:
    busier = replace(started(PAGE, 60.0), engine_steps=900.0, generation_tokens=9000.0)
    assert judge_start(KNOWN, PAGE, busier, False) is not None


def test_the_first_start_time_that_is_told_is_taken_up() -> None:
    assert judge_start(None, None, PAGE, False) == NewStart(NOON, "metrics")


def test_a_start_time_told_later_of_a_process_that_was_seen_already_is_no_restart() -> None:
    seen = KnownStart(
        None, NOON + timedelta(minutes=5)
    )  # its metrics page could not be read at first
    assert judge_start(seen, None, PAGE, False) is None
    assert judge_start(seen, None, started(PAGE, 600.0), False) == NewStart(
        NOON + timedelta(seconds=600), "metrics"
    )


def test_a_server_that_does_not_tell_is_seen_for_the_first_time_once() -> None:
    assert judge_start(None, None, BARE, False) == NewStart(None, "first_seen")
    assert judge_start(UNTOLD, BARE, BARE, False) is None


@pytest.mark.parametrize("fallen", [{"engine_steps": 5.0}, {"generation_tokens": 3.0}])
@pytest.mark.parametrize("known", [UNTOLD, KNOWN])
def test_without_a_start_time_a_counter_that_fell_tells_a_restart(
    known: KnownStart, fallen: dict[str, float]
) -> None:
    assert judge_start(known, BARE, replace(BARE, **fallen), False) == NewStart(
        None, "counter_fell"
    )


def test_without_a_start_time_an_outage_tells_a_restart() -> None:
    assert judge_start(UNTOLD, BARE, replace(BARE, engine_steps=101.0), True) == NewStart(
        None, "after_outage"
    )


@pytest.mark.parametrize(
    "page",
    [
        BARE,
        replace(BARE, engine_steps=None, generation_tokens=None),
        replace(BARE, engine_steps=200.0),
    ],
)
def test_counters_that_stand_rise_or_are_missing_tell_nothing(page: ServerPage) -> None:
    assert judge_start(UNTOLD, BARE, page, False) is None
    assert judge_start(UNTOLD, None, page, False) is None


@pytest.mark.parametrize("state", ["refused", "timeout"])
@pytest.mark.parametrize("known", [None, KNOWN, UNTOLD])
def test_a_server_that_does_not_answer_has_not_been_restarted_yet(
    known: KnownStart | None, state: str
) -> None:
    away = ServerPage(at=NOON, state=state)  # type: ignore[arg-type]
    assert judge_start(known, PAGE, away, True) is None
