"""Is the answer what the probe expects? Where there is no answer it is never a pass."""

from __future__ import annotations

import pytest

from monitor.judge.quality.expect import Judgement, judge_answer
from monitor.model import Expectation, Outcome, Probe, Verdict

PARIS, FRANCE = Expectation(contains="Paris"), Expectation(contains="France")


def probe(*expect: Expectation) -> Probe:
    return Probe("p", "chat", "chat", (), None, 8, {}, 60.0, None, 2.0, 30.0, expect=expect)


def verdict(output: str | None, *expect: Expectation, outcome: Outcome = Outcome.OK) -> Verdict:
    return judge_answer(probe(*expect), outcome, output).verdict


def test_an_answer_that_contains_what_is_expected_passes() -> None:
    assert judge_answer(probe(PARIS), Outcome.OK, "The capital is Paris.") == Judgement(
        Verdict.PASS
    )


def test_one_condition_that_does_not_hold_fails_the_whole_and_is_named() -> None:
    judged = judge_answer(probe(PARIS, FRANCE), Outcome.OK, "It is Paris.")
    assert judged == Judgement(Verdict.FAIL, "expected 'France' in the answer, got 'It is Paris.'")


def test_letters_count_as_they_are() -> None:
    assert verdict("paris", PARIS) is Verdict.FAIL


def test_white_space_at_the_ends_of_a_whole_answer_does_not_count() -> None:
    whole = Expectation(equals="Guten Morgen\n")
    assert verdict("  Guten Morgen", whole) is Verdict.PASS
    assert verdict("Guten  Morgen", whole) is Verdict.FAIL
    assert verdict("Guten Morgen!", whole) is Verdict.FAIL


@pytest.mark.parametrize("output", [None, "", "   "])
def test_no_text_is_no_pass(output: str | None) -> None:
    assert verdict(output, PARIS) is Verdict.FAIL


@pytest.mark.parametrize("expect", [(), (PARIS,)])
def test_an_empty_answer_fails_also_where_nothing_is_expected(
    expect: tuple[Expectation, ...],
) -> None:
    assert verdict(None, *expect, outcome=Outcome.EMPTY) is Verdict.FAIL


@pytest.mark.parametrize("outcome", sorted({*Outcome} - {Outcome.OK, Outcome.EMPTY}))
def test_an_answer_that_did_not_end_well_is_unknown_whatever_it_said(outcome: Outcome) -> None:
    judged = judge_answer(probe(PARIS), outcome, "Paris")
    assert judged.verdict is Verdict.UNKNOWN
    assert outcome.value in (judged.reason or "")


def test_without_conditions_a_good_answer_is_unpinned_and_not_a_pass() -> None:
    assert verdict("Paris") is Verdict.UNPINNED


def test_a_long_answer_is_told_shortened() -> None:
    assert len(judge_answer(probe(PARIS), Outcome.OK, "x" * 10_000).reason or "") < 200
