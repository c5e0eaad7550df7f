"""Whatever a server answers, the watch goes on: judging has a limit, and what fails inside is seen
and costs one answer at most.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

import pytest
from histories import a_probe

from monitor.daemon import isolation
from monitor.daemon.isolation import TooLongError, judged_in_time, only_logged, within
from monitor.errors import UserError
from monitor.measure.stream.answer import Answer
from monitor.model import Expectation, Outcome, Verdict


def endless() -> None:
    while True:
        pass


def test_a_pattern_that_tries_more_ways_than_can_be_tried_ends_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolation, "JUDGE_LIMIT_S", 0.05)
    slow = a_probe(expect=(Expectation(regex="(a+)+$"),))
    judged = judged_in_time(
        slow, Outcome.OK, Answer(text="a" * 60 + "b", finish_reason="stop"), None
    )
    assert judged.verdict is Verdict.UNKNOWN
    assert (judged.reason or "").startswith(
        "the answer could not be judged within 0.05 s: a `regex` or `pattern`"
    )


def test_what_takes_too_long_is_ended_and_leaves_no_alarm_behind() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TooLongError):
        within(0.02, endless)
    assert within(5.0, lambda: 42) == 42
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is before


def test_on_another_thread_there_is_no_limit_and_no_failure() -> None:
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(within(0.01, lambda: sum(range(10)))))
    thread.start()
    thread.join()
    assert results == [45]


def test_what_fails_inside_is_logged_with_its_place_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with only_logged("target=%s what the page tells is lost", "local"):
        raise OverflowError("timestamp out of range")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (
        logging.ERROR,
        "target=local what the page tells is lost",
    )
    assert record.exc_info is not None


@pytest.mark.parametrize("error", [UserError("the database is away"), KeyboardInterrupt()])
def test_what_is_expected_or_meant_to_end_us_passes(error: Any) -> None:
    with pytest.raises(type(error)), only_logged("lost"):
        raise error
