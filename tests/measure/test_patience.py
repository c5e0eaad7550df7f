"""How long a canary waits, and what it concludes: time and the engine's step counter are
arguments.
"""

from __future__ import annotations

import pytest

from monitor.measure.stream.patience import READ_EVERY_S, Limits, Patience
from monitor.model import Outcome

LIMITS = Limits(max_wait_s=4.0, hang_after_s=10.0, give_up_s=100.0, answer_s=60.0)
UNCAPPED = Limits(max_wait_s=None, hang_after_s=10.0, give_up_s=100.0, answer_s=60.0)
SENT_S = 1000.0


def waiting(limits: Limits = LIMITS, steps: float | None = 50.0) -> Patience:
    return Patience(limits, SENT_S, steps)


def after(patience: Patience, seconds: float, steps: float | None) -> Outcome | None:
    return patience.conclude(SENT_S + seconds, steps)


def test_at_max_wait_a_moving_counter_is_a_queue() -> None:
    patience = waiting()
    assert after(patience, 2, 51) is None
    assert after(patience, 4, 52) is Outcome.QUEUE_CAP


def test_one_move_before_max_wait_is_enough_for_a_queue() -> None:
    patience = waiting()
    assert after(patience, 2, 51) is None
    assert after(patience, 4, 51) is Outcome.QUEUE_CAP


def test_at_max_wait_a_still_counter_is_waited_for_until_it_is_a_hang() -> None:
    patience = waiting()
    assert [after(patience, s, 50) for s in (2, 4, 6, 8, 9.9)] == [None] * 5
    assert after(patience, 10, 50) is Outcome.HUNG


def test_a_counter_that_moves_after_max_wait_is_a_queue_at_once() -> None:
    patience = waiting()
    assert after(patience, 4, 50) is None
    assert after(patience, 6, 51) is Outcome.QUEUE_CAP


def test_an_engine_that_stops_after_it_moved_is_hung_when_no_max_wait_ends_it() -> None:
    patience = waiting(UNCAPPED)
    assert after(patience, 6, 60) is None
    assert after(patience, 15.9, 60) is None
    assert after(patience, 16, 60) is Outcome.HUNG


def test_without_any_counter_max_wait_ends_as_a_timeout() -> None:
    patience = waiting(steps=None)
    assert after(patience, 2, None) is None
    assert after(patience, 4, None) is Outcome.TIMEOUT


def test_a_counter_that_cannot_be_read_any_more_is_waited_for_as_long_as_for_a_hang() -> None:
    patience = waiting()
    assert [after(patience, s, None) for s in (4, 8, 13.9)] == [None] * 3
    assert after(patience, 14, None) is Outcome.TIMEOUT


def test_one_reading_alone_never_proves_a_hang() -> None:
    patience = waiting(UNCAPPED, steps=None)
    assert after(patience, 15, 50) is None
    assert after(patience, 24.9, 50) is None
    assert after(patience, 25, 50) is Outcome.HUNG


def test_a_first_reading_at_max_wait_is_no_proof_that_the_engine_moved() -> None:
    patience = waiting(steps=None)
    assert after(patience, 4, 50) is None
    assert after(patience, 6, 51) is Outcome.QUEUE_CAP


def test_readings_that_fail_in_between_do_not_hide_a_hang() -> None:
    patience = waiting(UNCAPPED)
    assert [after(patience, s, None) for s in (2, 4, 6, 8)] == [None] * 4
    assert after(patience, 10, 50) is Outcome.HUNG


def test_a_counter_that_fell_has_moved() -> None:
    patience = waiting()
    assert after(patience, 2, 1) is None
    assert after(patience, 4, 1) is Outcome.QUEUE_CAP


def test_after_the_first_token_silence_over_a_still_counter_is_a_hang() -> None:
    patience = waiting()
    patience.token(SENT_S + 1)
    assert after(patience, 10.9, 50) is None
    assert after(patience, 11, 50) is Outcome.HUNG


def test_after_the_first_token_silence_over_a_moving_counter_is_waited_for() -> None:
    patience = waiting()
    patience.token(SENT_S + 1)
    assert [after(patience, s, s) for s in range(2, 60, 2)] == [None] * 29


def test_max_wait_ends_nothing_once_a_token_has_come() -> None:
    patience = waiting()
    patience.token(SENT_S + 3.9)
    assert after(patience, 4, 60) is None


def test_tokens_that_drip_for_ever_end_at_the_limit_of_the_answer() -> None:
    patience = waiting()
    steps = 50
    for second in range(1, 61):
        patience.token(SENT_S + second)
        steps += 1
        assert after(patience, second, steps) is None
    assert after(patience, 61, steps + 1) is Outcome.TIMEOUT


def test_an_uncapped_wait_ends_at_last() -> None:
    patience = waiting(UNCAPPED)
    assert [after(patience, s, s) for s in range(2, 100, 2)] == [None] * 49
    assert after(patience, 100, 100) is Outcome.TIMEOUT


def test_a_stream_that_flows_is_not_looked_at() -> None:
    patience = waiting()
    patience.token(SENT_S + 5)
    assert not patience.needs_reading(SENT_S + 5 + READ_EVERY_S / 2)
    assert patience.needs_reading(SENT_S + 5 + READ_EVERY_S)


def test_the_server_is_looked_at_exactly_at_max_wait() -> None:
    patience = waiting(Limits(max_wait_s=0.5))
    assert patience.next_reading_s(SENT_S) == SENT_S + 0.5
    assert patience.needs_reading(SENT_S + 0.5)
    assert not patience.needs_reading(SENT_S + 0.4)


@pytest.mark.parametrize(
    "limits", [LIMITS, UNCAPPED, Limits(max_wait_s=0.1, give_up_s=0.2, answer_s=0.1)]
)
@pytest.mark.parametrize("token_s", [None, 0.05, 3.0])
def test_the_next_look_is_never_in_the_past_and_never_far(
    limits: Limits, token_s: float | None
) -> None:
    patience = waiting(limits)
    if token_s is not None:
        patience.token(SENT_S + token_s)
    for tenth in range(2000):
        now_s = SENT_S + tenth / 10
        assert (
            now_s
            <= patience.next_reading_s(now_s)
            <= max(now_s, SENT_S + (token_s or 0)) + READ_EVERY_S
        )
