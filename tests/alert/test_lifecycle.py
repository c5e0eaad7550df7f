"""The life of an incident as a pure state machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from histories import NOON, a_finding

from monitor.alert.lifecycle import Opened, Refreshed, Resolved, Updated, transition
from monitor.model import Incident, Severity

FOUND = a_finding()
OPEN = Incident(
    id=1,
    kind=FOUND.kind,
    target=FOUND.target,
    subject=FOUND.subject,
    severity=FOUND.severity,
    summary="",
    opened_at=NOON,
    cause=FOUND.cause,
    changes=FOUND.changes,
    evidence=FOUND.evidence,
)


def test_a_finding_without_an_incident_opens_one() -> None:
    assert transition(None, FOUND, may_close=False) == Opened(FOUND)


def test_nothing_found_closes_an_incident_only_where_its_judge_may_close_it() -> None:
    assert transition(OPEN, None, may_close=True) == Resolved(OPEN)
    assert transition(OPEN, None, may_close=False) is None


def test_the_same_finding_refreshes_and_another_severity_updates() -> None:
    assert isinstance(transition(OPEN, FOUND, may_close=False), Refreshed)
    other = Severity.INFO if FOUND.severity is not Severity.INFO else Severity.PAGE
    louder = replace(FOUND, severity=other)
    assert isinstance(transition(OPEN, louder, may_close=False), Updated)


def test_an_onset_is_never_later_than_the_opening() -> None:
    later = replace(FOUND, since=NOON + timedelta(minutes=5))
    step = transition(OPEN, later, may_close=False)
    assert isinstance(step, Refreshed)
    assert step.finding.since == NOON
