"""The token budget of a sliding hour."""

from __future__ import annotations

from datetime import timedelta

import pytest
from histories import NOON, a_probe
from hypothesis import given
from hypothesis import strategies as st

from monitor.daemon.budget import HOUR, RESERVE, TokenLedger, hourly_cost

MINUTE = timedelta(minutes=1)
SKY, LONG = a_probe(max_tokens=8), a_probe("long", max_tokens=500)


def ledger(limit: int) -> TokenLedger:
    """A budget of which the schedule may spend `limit`, the reserve beside it."""
    return TokenLedger(round(limit / (1 - RESERVE)))


def test_what_was_spent_counts_for_an_hour_and_not_longer() -> None:
    book = ledger(1000)
    book.note(SKY, NOON, 20, 8)
    book.note(SKY, NOON + 30 * MINUTE, 20, 2)
    assert book.spent(NOON + 59 * MINUTE) == 50
    assert book.spent(NOON + 61 * MINUTE) == 22
    assert book.spent(NOON + 91 * MINUTE) == 0


def test_what_was_spent_before_the_clock_was_set_back_counts_for_the_rest_of_its_hour() -> None:
    book = ledger(1000)
    book.note(SKY, NOON, 20, 8)
    book.clock_set_back(180 * MINUTE)
    assert book.spent(NOON - 121 * MINUTE) == 28
    assert book.spent(NOON - 119 * MINUTE) == 0


def test_what_is_dated_ahead_of_the_clock_keeps_nothing_out() -> None:
    book = ledger(100)
    book.note(SKY, NOON + 300 * MINUTE, 50, 50)
    book.note(SKY, NOON, 20, 8)
    assert book.spent(NOON) == 28
    assert book.spent(NOON + 61 * MINUTE) == 0
    assert book.allows(SKY, NOON)


def test_prompt_and_answer_count_and_what_is_not_known_does_not() -> None:
    book = ledger(1000)
    book.note(SKY, NOON, None, None)
    book.note(SKY, NOON, 20, None)
    assert book.spent(NOON) == 20


def test_the_most_a_probe_can_cost_must_still_fit() -> None:
    book = ledger(100)
    book.note(SKY, NOON, 20, 52)  # 72 spent; sky costs 20 and up to 8: just fits
    assert book.allows(SKY, NOON)
    book.note(SKY, NOON, 20, 0)
    assert not book.allows(SKY, NOON)
    assert book.allows(SKY, NOON + HOUR)


def test_a_probe_that_is_too_large_does_not_keep_a_small_one_out() -> None:
    book = ledger(100)
    assert not book.allows(LONG, NOON)
    assert book.allows(SKY, NOON)


def test_the_reserve_is_for_what_is_not_on_the_schedule() -> None:
    book = TokenLedger(100)
    book.note(SKY, NOON, 0, 75)
    assert not book.allows(SKY, NOON)
    assert book.allows(SKY, NOON, from_reserve=True)


def test_extra_runs_are_paid_from_the_reserve_and_take_nothing_from_the_schedule() -> None:
    book = TokenLedger(100)  # 80 for the schedule, 20 beside it
    book.note(SKY, NOON, 0, 12, extra=True)
    assert book.allows_extra(SKY, NOON)
    assert not book.allows_extra(SKY, NOON, others=[SKY])
    book.note(SKY, NOON, 0, 8, extra=True)
    assert not book.allows_extra(SKY, NOON)
    book.note(SKY, NOON, 0, 72)
    assert book.allows(SKY, NOON)
    book.note(SKY, NOON, 0, 1)
    assert not book.allows(SKY, NOON)
    assert book.allows_extra(SKY, NOON + HOUR)


def test_a_class_with_its_own_limit_keeps_something_for_the_schedule() -> None:
    book = TokenLedger(10_000, (), {"chat": 40})
    book.note(SKY, NOON, 0, 24)
    assert book.allows_extra(SKY, NOON)
    book.note(SKY, NOON, 0, 1)
    assert not book.allows_extra(SKY, NOON)
    assert book.allows(SKY, NOON)


def test_after_a_restart_what_the_schedule_could_not_have_spent_was_beside_it() -> None:
    book = TokenLedger(
        100, [(NOON, 60, "chat"), (NOON + MINUTE, 30, "chat"), (NOON + 2 * MINUTE, 5, "chat")]
    )
    assert book.spent(NOON + 3 * MINUTE, extra=True) == 30
    assert book.allows(SKY, NOON + 3 * MINUTE)


def test_a_class_has_its_own_limit_beside_the_whole() -> None:
    book = TokenLedger(10_000, (), {"chat": 30})
    book.note(SKY, NOON, 20, 5)
    assert not book.allows(SKY, NOON)
    assert book.allows(a_probe(traffic_class="batch"), NOON)


def test_a_restart_forgets_nothing() -> None:
    book = TokenLedger(100, [(NOON - 10 * MINUTE, 70, "chat"), (NOON - 70 * MINUTE, 5000, "chat")])
    assert book.spent(NOON) == 70
    assert not book.allows(a_probe(max_tokens=31), NOON, from_reserve=True)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), max_size=60))
def test_a_schedule_that_asks_first_never_spends_more_than_its_share_in_any_hour(
    asks: list[tuple[int, int]],
) -> None:
    book = TokenLedger(300)
    spent: list[tuple[int, int]] = []
    for minute, tokens in sorted(asks):
        probe = a_probe(str(tokens), max_tokens=max(1, tokens))
        now = NOON + minute * MINUTE
        if book.allows(probe, now):
            book.note(probe, now, 0, tokens)
            spent.append((minute, tokens))
        assert sum(t for m, t in spent if minute - 60 < m <= minute) <= 300 * (1 - RESERVE)


@pytest.mark.parametrize(("every_s", "cost"), [(60.0, 60 * 28), (3600.0, 28), (None, None)])
def test_the_cost_of_an_hour_is_told_where_it_is_known(
    every_s: float | None, cost: float | None
) -> None:
    probe = a_probe(max_tokens=8, every_s=every_s, cron=None if every_s else "0 * * * *")
    assert hourly_cost(probe, 20) == cost
