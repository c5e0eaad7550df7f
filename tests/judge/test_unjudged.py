"""Answers that came and that nobody could judge are a finding when it lasts."""

from __future__ import annotations

from datetime import timedelta

from histories import NOON, a_probe, a_sample

from monitor.judge.availability import judge_unmeasured
from monitor.judge.quality.unjudged import judge_unjudged
from monitor.model import Finding, Kind, Outcome, Probe, Sample, Severity, Verdict

PINNED, PLAIN = a_probe(pinned=True), a_probe()


def runs(*said: Verdict | Outcome) -> list[Sample]:
    """One run a minute: a finished answer with this verdict, or a run without an answer."""
    made = []
    for minute, one in enumerate(said):
        how = (
            {"verdict": one}
            if isinstance(one, Verdict)
            else {"outcome": one, "verdict": Verdict.UNKNOWN, "output": None}
        )
        made.append(a_sample(started_at=NOON + timedelta(minutes=minute), **how))
    return made


def found(probe: Probe, *said: Verdict | Outcome) -> list[Finding]:
    return judge_unjudged(
        "local", [probe], runs(*said), lambda _: "the answer could not be judged (TypeError: …)"
    )


def test_a_probe_that_says_pinned_and_has_no_pin_is_a_finding_since_its_first_unpinned_run() -> (
    None
):
    (finding,) = found(PINNED, Verdict.PASS, *[Verdict.UNPINNED] * 3)
    assert (finding.kind, finding.subject, finding.severity) == (
        Kind.UNKNOWN_LASTING,
        "sky",
        Severity.WARNING,
    )
    assert finding.since == NOON + timedelta(minutes=1)
    assert (finding.evidence["verdict"], finding.evidence["runs"]) == ("unpinned", 3)


def test_answers_that_no_judge_can_read_are_told_with_the_reason_also_where_nothing_is_pinned() -> (
    None
):
    (finding,) = found(PLAIN, *[Verdict.UNKNOWN] * 3)
    assert finding.evidence["verdict"] == "unknown"
    assert finding.evidence["detail"] == "the answer could not be judged (TypeError: …)"


def test_two_are_not_lasting_and_one_that_is_judged_ends_it() -> None:
    assert found(PINNED, *[Verdict.UNPINNED] * 2) == []
    assert found(PINNED, *[Verdict.UNPINNED] * 5, Verdict.FAIL) == []


def test_a_probe_that_asks_for_no_pin_may_stay_unpinned() -> None:
    assert found(PLAIN, *[Verdict.UNPINNED] * 9) == []


def test_a_queue_changes_nothing_and_missing_answers_are_found_by_another_judge() -> None:
    (finding,) = found(
        PINNED,
        Verdict.UNPINNED,
        Outcome.QUEUE_CAP,
        Verdict.UNPINNED,
        Outcome.CANCELLED,
        Verdict.UNPINNED,
    )
    assert finding.evidence["runs"] == 3
    no_answer = runs(*[Verdict.UNPINNED] * 3, *[Outcome.HTTP_ERROR] * 3)
    assert judge_unjudged("local", [PINNED], no_answer, lambda _: None) == []
    assert len(judge_unmeasured("local", no_answer, {})) == 1
