"""The life of an incident: one open for each key, news only when there is some, everything in the
caller's transaction.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from histories import NOON, History, a_finding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from monitor.alert import incidents, outbox
from monitor.alert.incidents import IncidentError, IncidentLog
from monitor.judge.evaluator.assessment import Assessment
from monitor.model import Cause, Change, Finding, Incident, Kind, Severity
from monitor.show.findings import paragraph

MINUTE = timedelta(minutes=1)


def config_change(before: int, after: int, **evidence: Any) -> Finding:
    """max_model_len changed."""
    return a_finding(
        kind=Kind.CONFIG_CHANGE,
        subject="max_model_len",
        severity=Severity.WARNING,
        cause=Cause.CONFIG_CHANGE,
        changes=(Change("max_model_len", before, after),),
        evidence=evidence,
    )


def report(
    history: History, finding: Finding, minutes: int = 0, channels: tuple[str, ...] = ("ops",)
) -> Incident:
    """A finding that holds some minutes after noon."""
    return history.do(lambda c: IncidentLog(c, NOON + minutes * MINUTE, channels).report(finding))


def told(history: History) -> list[str]:
    """The events that the outbox holds, in order."""
    return [d.event for d in reversed(history.do(lambda c: outbox.log(c, None)))]


def get(history: History, incident: Incident) -> Incident:
    """The incident as it is now."""
    return history.do(lambda c: incidents.get(c, incident.id))


def close(history: History, incident: Incident, minutes: int = 1) -> None:
    """It is over."""
    history.do(
        lambda c: IncidentLog(c, NOON + minutes * MINUTE, ("ops",)).close(
            incident, "the server answers again"
        )
    )


def test_a_finding_opens_an_incident_and_tells_each_channel_once(history: History) -> None:
    incident = report(history, a_finding(), channels=("ops", "boss"))
    assert (incident.kind, incident.opened_at, incident.closed_at) == (Kind.SERVER_DOWN, NOON, None)
    deliveries = history.do(lambda c: outbox.log(c, None))
    sent = sorted((d.channel, d.event, d.incident_id) for d in deliveries)
    assert sent == [("boss", "opened", incident.id), ("ops", "opened", incident.id)]
    assert len({d.id for d in deliveries}) == 2


def test_the_same_finding_again_is_the_same_incident_and_no_news(history: History) -> None:
    first = report(history, a_finding())
    again = report(history, a_finding(), 1)
    assert again.id == first.id
    assert again.opened_at == NOON
    assert told(history) == ["opened"]


def test_moving_figures_are_kept_without_a_word(history: History) -> None:
    report(history, a_finding(evidence={"failed_contacts": 2}))
    longer = a_finding(evidence={"failed_contacts": 3})
    incident = report(history, longer, 1)
    assert (incident.evidence, incident.summary) == ({"failed_contacts": 3}, paragraph(longer))
    assert told(history) == ["opened"]


@pytest.mark.parametrize(
    "news", [{"severity": Severity.WARNING}, {"cause": Cause.HEAT}], ids=["severity", "cause"]
)
def test_another_severity_or_cause_is_news(news: dict[str, Any], history: History) -> None:
    report(history, a_finding())
    report(history, a_finding(**news), 1)
    report(history, a_finding(**news), 2)
    assert told(history) == ["opened", "updated"]


def test_another_subject_kind_or_target_is_another_incident(history: History) -> None:
    ids = {
        report(history, a_finding(**other)).id
        for other in ({}, {"subject": "chat"}, {"kind": Kind.HUNG}, {"target": "remote"})
    }
    assert len(ids) == 4


def test_the_database_itself_refuses_a_second_open_incident_of_a_key(history: History) -> None:
    incident = report(history, a_finding())
    copy = (
        "INSERT INTO incident (kind, target, subject, severity, summary, changes, evidence, "
        "opened_at_us) "
        "SELECT kind, target, subject, severity, summary, changes, evidence, opened_at_us FROM "
        "incident"
    )
    with pytest.raises(IntegrityError, match="UNIQUE"):
        history.do(lambda c: c.exec_driver_sql(copy))
    close(history, incident)
    history.do(lambda c: c.exec_driver_sql(copy))  # beside a closed one it may stand


def test_after_a_close_the_same_finding_opens_a_new_incident(history: History) -> None:
    first = report(history, a_finding())
    close(history, first)
    second = report(history, a_finding(), 2)
    assert second.id != first.id
    assert get(history, first).closed_at == NOON + MINUTE
    assert told(history) == ["opened", "resolved", "opened"]


def test_a_chain_of_changes_keeps_what_it_was_at_first(history: History) -> None:
    report(history, config_change(4096, 2048))
    incident = report(history, config_change(2048, 1024), 1)
    assert incident.changes == (Change("max_model_len", 4096, 1024),)
    assert told(history) == ["opened", "updated"]


def test_a_chain_of_changes_keeps_the_place_to_roll_back_to(history: History) -> None:
    report(
        history,
        config_change(4096, 2048, digest_before="aaa", digest_after="bbb", fingerprint_before=1),
    )
    incident = report(
        history,
        config_change(2048, 1024, digest_before="bbb", digest_after="ccc", fingerprint_before=2),
        1,
    )
    assert incident.evidence == {
        "digest_before": "aaa",
        "digest_after": "ccc",
        "fingerprint_before": 1,
    }


def test_the_message_of_a_change_names_before_and_after(history: History) -> None:
    incident = report(history, config_change(4096, 2048, digest_after="b"))
    [delivery] = history.do(lambda c: outbox.log(c, None))
    assert delivery.payload == {
        "version": 1,
        "id": delivery.id,
        "event": "opened",
        "incident": {
            "id": incident.id,
            "kind": "config_change",
            "target": "local",
            "subject": "max_model_len",
            "severity": "warning",
            "cause": "config_change",
            "opened_at": "2026-03-01T12:00:00.000000Z",
            "closed_at": None,
            "close_reason": None,
            "summary": "local: the configuration changed at 2026-03-01 12:00 UTC: max_model_len "
            "4096 → 2048. If this was not intended, compare `vllm-canary fingerprint` with the "
            "deployment.",
            "changes": [{"field": "max_model_len", "before": 4096, "after": 2048}],
            "evidence": {"digest_after": "b"},
        },
    }


def test_a_message_stays_as_it_was_when_it_happened(history: History) -> None:
    incident = report(history, a_finding())
    report(history, a_finding(severity=Severity.WARNING), 1)
    close(history, incident, 2)
    bodies = [d.payload["incident"] for d in reversed(history.do(lambda c: outbox.log(c, None)))]
    assert [(b["severity"], b["closed_at"] is None) for b in bodies] == [
        ("page", True),
        ("warning", True),
        ("warning", False),
    ]


def test_closing_twice_is_told_once(history: History) -> None:
    incident = report(history, a_finding())
    close(history, incident)
    close(history, incident, 2)
    assert told(history) == ["opened", "resolved"]
    assert get(history, incident).closed_at == NOON + MINUTE


def test_a_transaction_that_fails_leaves_neither_incident_nor_message(history: History) -> None:
    def work(c: Any) -> None:
        IncidentLog(c, NOON, ("ops",)).report(a_finding())
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        history.do(work)
    counts = [
        history.rows(f"SELECT count(*) AS n FROM {name}")[0]["n"]
        for name in ("incident", "incident_event", "finding", "delivery")
    ]
    assert counts == [0, 0, 0, 0]


def test_reconciling_opens_what_is_found_and_closes_what_is_over(history: History) -> None:
    over, stays = (
        report(history, a_finding()),
        report(history, a_finding(kind=Kind.NO_SAMPLES, subject="sky")),
    )
    other_kind = report(history, config_change(1, 2))
    other_target = report(history, a_finding(target="remote"))
    found = [a_finding(kind=Kind.NO_SAMPLES, subject="sky"), a_finding(kind=Kind.HUNG)]
    judged = (Kind.SERVER_DOWN, Kind.NO_SAMPLES, Kind.HUNG)
    history.do(
        lambda c: IncidentLog(c, NOON + MINUTE, ("ops",), "local").reconcile(
            Assessment(judged, found)
        )
    )
    still = {i.key for i in history.do(incidents.open_incidents)}
    assert still == {stays.key, other_kind.key, other_target.key, ("hung", "local", "local")}
    assert get(history, over).close_reason is not None


def test_acknowledging_is_kept_with_its_note_and_sends_nothing(history: History) -> None:
    incident = report(history, a_finding())
    history.do(lambda c: IncidentLog(c, NOON + MINUTE).acknowledge(incident.id, "on it"))
    history.do(lambda c: IncidentLog(c, NOON + 2 * MINUTE).acknowledge(incident.id, "again"))
    assert get(history, incident).acknowledged_at == NOON + MINUTE
    events = history.do(lambda c: incidents.events(c, incident.id))
    assert [(e["event"], e["text"]) for e in events][1:] == [
        ("acknowledged", "on it"),
        ("acknowledged", "again"),
    ]
    assert told(history) == ["opened"]


def test_a_note_may_be_added_after_the_end(history: History) -> None:
    incident = report(history, a_finding())
    close(history, incident)
    history.do(lambda c: IncidentLog(c, NOON + 2 * MINUTE).add_note(incident.id, "it was the fan"))
    last = history.do(lambda c: incidents.events(c, incident.id))[-1]
    assert last == {"at": NOON + 2 * MINUTE, "event": "note", "text": "it was the fan"}


def test_closing_by_hand_keeps_the_reason_and_tells_it(history: History) -> None:
    incident = report(history, a_finding())
    history.do(
        lambda c: IncidentLog(c, NOON + MINUTE, ("ops",)).close_by_hand(
            incident.id, "closed by hand: planned work"
        )
    )
    assert get(history, incident).close_reason == "closed by hand: planned work"
    assert told(history) == ["opened", "resolved"]


def test_what_cannot_be_done_with_an_incident_is_a_sentence_and_2(history: History) -> None:
    incident = report(history, a_finding())
    close(history, incident)
    attempts = {
        "is closed": lambda c: IncidentLog(c, NOON).acknowledge(incident.id, None),
        "already closed": lambda c: IncidentLog(c, NOON).close_by_hand(incident.id, "x"),
        "no incident 99": lambda c: IncidentLog(c, NOON).add_note(99, "x"),
    }
    for sentence, attempt in attempts.items():
        with pytest.raises(IncidentError, match=sentence) as error:
            history.do(attempt)
        assert error.value.exit_code == 2


def test_the_list_has_what_is_open_however_old_and_the_newest_first(history: History) -> None:
    old_open = report(history, a_finding())
    old_closed = report(history, a_finding(kind=Kind.HUNG))
    close(history, old_closed)
    new = report(history, a_finding(target="remote"), 60)
    found = history.do(lambda c: incidents.recent(c, NOON + 30 * MINUTE, None, None))
    assert [i.id for i in found] == [new.id, old_open.id]


KEYS = [a_finding(), a_finding(kind=Kind.HUNG), a_finding(kind=Kind.NO_SAMPLES, subject="sky")]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None
)
@given(st.lists(st.sets(st.sampled_from(range(3))), max_size=12))
def test_whatever_is_found_in_whatever_order_no_key_is_open_twice_and_openings_and_ends_take_turns(
    history: History, rounds: list[set[int]]
) -> None:
    history.do(
        lambda c: [
            c.exec_driver_sql(f"DELETE FROM {t}")
            for t in ("delivery", "incident_event", "finding", "incident")
        ]
    )
    kinds = [finding.kind for finding in KEYS]
    for minute, found in enumerate(rounds):
        findings = [KEYS[index] for index in sorted(found)]
        now = NOON + minute * MINUTE
        history.do(
            lambda c, f=findings, n=now: IncidentLog(c, n, ("ops",), "local").reconcile(
                Assessment(kinds, f)
            )
        )
        assert {i.key for i in history.do(incidents.open_incidents)} == {f.key for f in findings}
    for finding in KEYS:
        rows = history.rows(
            (
                "SELECT e.event FROM incident_event e JOIN incident i ON i.id = e.incident_id "
                "WHERE i.kind = :kind ORDER BY e.id"
            ),
            kind=finding.kind.value,
        )
        events = [row["event"] for row in rows]
        assert events == (["opened", "resolved"] * len(events))[: len(events)]


def test_a_finding_is_kept_with_the_numbers_it_rests_on(history: History) -> None:
    report(history, a_finding(evidence={"failed_contacts": 2}))
    report(history, replace(a_finding(evidence={"failed_contacts": 9}), severity=Severity.INFO), 1)
    rows = history.rows(
        "SELECT severity, json_extract(evidence, '$.failed_contacts') AS n FROM finding ORDER BY id"
    )
    assert rows == [{"severity": "page", "n": 2}, {"severity": "info", "n": 9}]
