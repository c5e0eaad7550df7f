"""Failures over all probes against what flips by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from monitor.judge.quality.answers import LastAnswers
from monitor.judge.quality.flips import ALARM_NAT, MOST_NAT, SEVERAL, Flips
from monitor.judge.quality.verdicts import too_few_passes
from monitor.model import Cause, Finding, Kind, Outcome, Phase, Probe, Sample, Severity, Verdict

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
NAMES = [f"p{n}" for n in range(12)]


def after(*failed: str, passes_between: int = 0) -> Flips:
    """The state after these probes failed one after the other."""
    state = Flips()
    for name in failed:
        state = state.failed(name).passed(passes_between) if passes_between else state.failed(name)
    return state


def test_a_failure_now_and_then_is_forgotten() -> None:
    state = Flips()
    for name in NAMES:
        state = state.failed(name).passed(60)
    assert state == Flips()


def test_failures_that_crowd_on_three_probes_are_an_alarm() -> None:
    state = after(*("a", "b", "c") * 3)
    assert state.alarmed
    assert state.failed_twice == ("a", "b", "c")


def test_no_one_and_no_two_probes_can_make_the_alarm() -> None:
    assert not after(*["a"] * 50).alarmed
    assert not after(*("a", "b") * 50).alarmed


def test_a_flip_here_and_there_does_not_join_two_broken_probes() -> None:
    assert not after(*("a", "b") * 20, "c").alarmed
    assert after(*("a", "b") * 20, "c", "c").alarmed


def test_failures_that_are_spread_thin_are_no_alarm() -> None:
    assert not after(*NAMES * 4, passes_between=40).alarmed  # one in forty: what flips by itself
    assert after(*NAMES * 4, passes_between=5).alarmed


def test_an_alarm_lasts_until_the_evidence_is_gone_and_that_is_a_dozen_rounds() -> None:
    state = after(*NAMES * 3)
    assert state.evidence_nat == MOST_NAT
    assert state.passed(12 * 12).alarmed
    assert state.passed(12 * 14) == Flips()


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 20))
def test_many_passes_at_once_are_as_many_passes_one_by_one(
    failures: list[bool], passes: int
) -> None:
    state = Flips()
    for failed in failures:
        state = state.failed("a") if failed else state.passed()
    one_by_one = state
    for _ in range(passes):
        one_by_one = one_by_one.passed()
    together = state.passed(passes)
    assert abs(together.evidence_nat - one_by_one.evidence_nat) < 1e-9 or 0 in (
        together.evidence_nat,
        one_by_one.evidence_nat,
    )
    assert 0 <= together.evidence_nat <= MOST_NAT


def test_the_alarm_lies_below_what_is_remembered() -> None:
    assert ALARM_NAT < MOST_NAT


# ---- as a finding


def probe(name: str) -> Probe:
    return Probe(
        name, "chat", "chat", (), None, 8, {}, 60.0, None, 2.0, 300.0, repeats=5, require=1
    )


def runs(*failing: str, stale: bool = False) -> list[Sample]:
    """Six rounds in which these probes fail in every second one."""
    return [
        Sample(
            "t",
            name,
            "chat",
            NOON + timedelta(minutes=number, seconds=place),
            Phase.WARM,
            Outcome.OK,
            verdict=Verdict.FAIL if name in failing and number % 2 == 0 else Verdict.PASS,
            stale=stale,
            pin=1,
        )
        for number in range(6)
        for place, name in enumerate(NAMES)
    ]


def found(probes: Sequence[Probe], samples: Sequence[Sample]) -> list[Finding]:
    """What is found after these runs."""
    answers: LastAnswers[Sample] = LastAnswers("t", {each.name: each for each in probes}.get)
    for one in samples:
        answers.add(one)
    return answers.findings(lambda one: one, {}, lambda _: None)


def test_probes_that_each_keep_their_own_rule_are_found_together() -> None:
    [several] = found([probe(n) for n in NAMES], runs(*NAMES[:6]))
    assert (several.kind, several.subject, several.severity) == (
        Kind.QUALITY,
        SEVERAL,
        Severity.PAGE,
    )
    assert (several.cause, several.since) == (Cause.ANSWERS_CHANGED, NOON)
    assert several.evidence["failed"] == 18
    assert several.evidence["failed_twice"] == NAMES[:6]
    assert several.evidence["of"] == 72


def test_a_run_from_before_the_fully_known_period_counts_for_its_own_probe_only() -> None:
    answers: LastAnswers[Sample] = LastAnswers("t", {n: probe(n) for n in NAMES}.get)
    for one in runs(*NAMES[:6]):
        answers.add(one, earlier=True)
    assert answers.findings(lambda one: one, {}, lambda _: None) == []


def test_two_of_them_are_not() -> None:
    assert found([probe(n) for n in NAMES], runs(*NAMES[:2])) == []


def test_stale_verdicts_and_probes_that_are_configured_no_more_do_not_count() -> None:
    assert found([probe(n) for n in NAMES], runs(*NAMES[:6], stale=True)) == []
    assert found([probe("p11")], runs(*NAMES[:6])) == []


def test_a_run_that_is_still_to_come_is_not_held_against_a_probe() -> None:
    assert not too_few_passes([True], 3, 2)
    assert too_few_passes([True, True], 3, 2)
    assert not too_few_passes([True, True, False, False], 3, 2)
