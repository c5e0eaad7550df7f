"""The edge: whatever a server answers and whatever it makes a judge do, the watch goes on, and the
sample is stored.
"""

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
# of computing; an answer is judged in less than a millisecond, a megabyte of JSON in tenths of a
# second
JUDGE_LIMIT_S = 1.0


@contextmanager
def only_logged(what: str, *values: object) -> Iterator[None]:
    """What is done inside may fail without ending the round that it is part of. `what` and its
    values as the log takes them. Expected failures (Told) are their caller's, and pass.
    """
    try:
        yield
    except UserError:
        raise
    except (
        Exception
    ):  # a fault of ours that an answer brought out: it must be seen, and must not blind us
        log.exception(what, *values)


def unreadable(sample: Sample, error: Exception) -> Measurement:
    """The measurement of an answer that made the measuring itself fail."""
    log.error(
        "target=%s probe=%s an answer could not be read",
        sample.target,
        sample.probe,
        exc_info=error,
    )
    detail = (
        f"the answer could not be read ({type(error).__name__}: {error}); please report "
        "it, the log has more"
    )
    return Measurement(sample, Marks(), Answer(), detail, None)


def judged_in_time(probe: Probe, outcome: Outcome, answer: Answer, pin: Pin | None) -> PinJudgement:
    """The verdict on an answer; `unknown` where it takes longer than JUDGE_LIMIT_S: a `regex` of
    the user's that tries too many ways, or an endless list under a schema, would stop the loop that
    takes time stamps.
    """
    try:
        return within(JUDGE_LIMIT_S, lambda: judge_gate(probe, outcome, observed(answer), pin))
    except TooLongError:
        why = (
            "a `regex` or `pattern` with a repetition inside a repetition, such as (a+)+, "
            "may try more ways than can be tried"
        )
        return PinJudgement(
            Verdict.UNKNOWN, f"the answer could not be judged within {JUDGE_LIMIT_S:g} s: {why}"
        )


class TooLongError(BaseException):
    """The time for it is over. No Exception, so that nothing on the way takes it for a failure of
    its own.
    """


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Do something that computes, for at most `limit_s` seconds of the processor. Raises
    TooLongError.

    The alarm is a signal, which Python's own code and its regular expressions look for while they
    run (a thread would not help: they hold the interpreter's lock). Signals reach the main thread
    only, where the daemon's loop is; elsewhere there is no limit.
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
