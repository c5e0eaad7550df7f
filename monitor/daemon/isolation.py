"""Isolation of faults: whatever a server answers, monitoring continues and the sample is stored."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from monitor.errors import UserError
from monitor.judge.quality.gate import judge_gate
from monitor.judge.quality.pinned import PinJudgement
from monitor.measure.canary import Measurement
from monitor.measure.stream.answer import Answer, observed
from monitor.model import Marks, Outcome, Pin, Probe, Sample, Verdict

T = TypeVar("T")
log = logging.getLogger(__name__)
# processor time; an answer takes less than a millisecond, a megabyte of JSON tenths of a second
JUDGE_LIMIT_S = 1.0


@contextmanager
def only_logged(what: str, *values: object) -> Iterator[None]:
    """Logs any failure of its block and continues. `what` and its values are a log message.

    Expected failures (UserError) are for the caller, and are raised.
    """
    try:
        yield
    except UserError:
        raise
    except Exception:  # an internal error that an answer triggered must not end the watch
        log.exception(what, *values)


def unreadable(sample: Sample, error: Exception) -> Measurement:
    """Returns the measurement of an answer that made measuring itself fail."""
    log.error(
        "target=%s probe=%s an answer could not be read",
        sample.target,
        sample.probe,
        exc_info=error,
    )
    detail = (
        f"the answer could not be read ({type(error).__name__}: {error}); please report "
        "this with the log"
    )
    return Measurement(sample, Marks(), Answer(), detail, None)


def judged_in_time(probe: Probe, outcome: Outcome, answer: Answer, pin: Pin | None) -> PinJudgement:
    """Returns the verdict on an answer; `unknown` if judging takes longer than JUDGE_LIMIT_S: a
    `regex` with catastrophic backtracking, or an endless list under a schema, would block the loop
    that takes time stamps.
    """
    try:
        return within(JUDGE_LIMIT_S, lambda: judge_gate(probe, outcome, observed(answer), pin))
    except TooLongError:
        why = "a `regex` or `pattern` with nested repetition, such as (a+)+, can backtrack for ever"
        return PinJudgement(
            Verdict.UNKNOWN, f"the answer could not be judged within {JUDGE_LIMIT_S:g} s: {why}"
        )


class TooLongError(BaseException):
    """The time limit has passed. Not an Exception, so that no handler on the way catches it."""


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Computes for at most `limit_s` seconds of processor time. Raises TooLongError.

    The alarm is a signal, because Python's code and regular expressions check for signals while
    they run; a thread would not help, since they hold the interpreter's lock. Signals reach only
    the main thread, where the daemon's loop is; in other threads there is no limit.
    """
    armed = True

    def ring(_number: int, _frame: Any) -> None:
        if armed:
            raise TooLongError

    try:
        before = signal.signal(signal.SIGVTALRM, ring)
    except ValueError:  # not the main thread
        return work()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
        return work()
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
