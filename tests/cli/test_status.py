"""`status`: good, bad or unknown, and silence is never good."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from histories import History

from monitor.alert import outbox
from monitor.alert.incidents import IncidentLog
from monitor.model import Kind, Outcome, Severity, Verdict
from monitor.store import detectors
from monitor.store.detectors import StoredDetector
from monitor.store.points import Cursor

from .conftest import Command

MINUTE = timedelta(minutes=1)


def now() -> datetime:
    """This moment."""
    return datetime.now(UTC)


def watched(
    history: History, name: str = "local", every_s: float = 60.0, since: timedelta = MINUTE
) -> None:
    """A target whose daemon runs `sky`."""
    history.target(name, now() - since, {"sky": every_s})


def test_a_recent_good_sample_and_nothing_open_is_good_and_0(
    cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now())
    ran = cli("status", "--db", history.database, "--json")
    assert (ran.code, ran.json["status"]) == (0, "good")
    assert {"status", "targets", "incidents"} <= set(ran.json)
    [target] = ran.json["targets"]
    assert (target["name"], target["status"], target["overdue"]) == ("local", "good", [])


@pytest.mark.parametrize("severity", [Severity.WARNING, Severity.PAGE])
def test_an_open_warning_or_page_is_bad_and_1(
    severity: Severity, cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now())
    incident = history.incident(now(), severity=severity)
    ran = cli("status", "--db", history.database, "--json")
    assert (ran.code, ran.json["status"], ran.json["incidents"][0]["id"]) == (1, "bad", incident.id)
    assert incident.summary in cli("status", "--db", history.database).out


def test_an_acknowledged_incident_is_still_bad(cli: Command, history: History) -> None:
    watched(history)
    history.sample(started_at=now())
    incident = history.incident(now())
    history.do(lambda c: IncidentLog(c, now()).acknowledge(incident.id, None))
    assert cli("status", "--db", history.database).code == 1


def test_an_open_info_and_a_closed_page_are_good(cli: Command, history: History) -> None:
    watched(history)
    history.sample(started_at=now())
    history.incident(now(), severity=Severity.INFO)
    closed = history.incident(now(), kind=Kind.HUNG)
    history.do(lambda c: IncidentLog(c, now()).close(closed, "over"))
    assert cli("status", "--db", history.database).code == 0


def test_no_sample_for_three_intervals_is_unknown_and_3(cli: Command, history: History) -> None:
    watched(history, since=timedelta(hours=1))
    history.sample(started_at=now() - 3 * MINUTE + timedelta(seconds=10))
    assert cli("status", "--db", history.database).code == 0
    history.do(
        lambda c: c.exec_driver_sql("UPDATE sample SET started_at_us = started_at_us - 30000000")
    )
    ran = cli("status", "--db", history.database, "--json")
    assert (ran.code, ran.json["targets"][0]["overdue"]) == (3, ["sky"])
    assert "overdue" in cli("status", "--db", history.database).out


def test_a_target_that_has_measured_nothing_yet_is_unknown(cli: Command, history: History) -> None:
    watched(history)
    assert cli("status", "--db", history.database).code == 3


def test_nothing_watched_is_unknown(cli: Command, history: History) -> None:
    ran = cli("status", "--db", history.database)
    assert ran.code == 3
    assert "unknown  no target is monitored yet; start `vllm-canary run`" in ran.out


def test_a_canary_that_failed_just_now_is_unknown_and_not_good(
    cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now(), outcome=Outcome.REFUSED)
    assert cli("status", "--db", history.database).code == 3


def test_a_wrong_answer_is_not_good_although_it_came_in_time(
    cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now(), verdict=Verdict.FAIL)
    assert cli("status", "--db", history.database).code == 3


def test_bad_beats_unknown_and_unknown_beats_good_over_targets(
    cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now())
    watched(history, "silent", since=timedelta(hours=1))
    assert cli("status", "--db", history.database).code == 3
    watched(history, "broken")
    history.sample(started_at=now(), target="broken")
    history.incident(now(), target="broken", subject="broken")
    ran = cli("status", "--db", history.database, "--json")
    assert ran.code == 1
    assert {t["name"]: t["status"] for t in ran.json["targets"]} == {
        "local": "good",
        "silent": "unknown",
        "broken": "bad",
    }


def test_a_probe_that_is_no_longer_run_does_not_make_it_unknown(
    cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now())
    history.sample(started_at=now() - timedelta(days=9), probe="old", outcome=Outcome.HUNG)
    assert cli("status", "--db", history.database).code == 0


def test_messages_that_did_not_arrive_are_said(cli: Command, history: History) -> None:
    watched(history)
    history.sample(started_at=now())
    history.incident(now(), ("ops",), severity=Severity.INFO)
    [delivery] = history.do(lambda c: outbox.log(c, None))
    history.do(lambda c: outbox.mark_failed(c, delivery, now(), "answered HTTP 404", True))
    assert cli("status", "--db", history.database, "--json").json["undelivered"] == 1
    assert "alerts log" in cli("status", "--db", history.database).out


def test_without_a_database_it_is_3(cli: Command) -> None:
    assert cli("status").code == 3


def test_a_probe_by_a_cron_line_is_overdue_after_three_of_its_runs_and_shown_until_then(
    cli: Command, history: History
) -> None:
    history.target("local", now() - timedelta(hours=1), {"sky": "*/5 * * * *"})
    history.sample(started_at=now() - 4 * MINUTE)
    ran = cli("status", "--db", history.database, "--json")
    assert (ran.code, [s["probe"] for s in ran.json["targets"][0]["last_samples"]]) == (0, ["sky"])
    history.do(
        lambda c: c.exec_driver_sql("UPDATE sample SET started_at_us = started_at_us - 1200000000")
    )
    ran = cli("status", "--db", history.database, "--json")
    assert (ran.code, ran.json["targets"][0]["overdue"]) == (3, ["sky"])


def test_messages_that_were_given_up_long_ago_are_not_said_for_ever(
    cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now())
    history.incident(now() - timedelta(hours=25), ("ops",), severity=Severity.INFO)
    [delivery] = history.do(lambda c: outbox.log(c, None))
    history.do(lambda c: outbox.mark_failed(c, delivery, now(), "answered HTTP 404", True))
    assert cli("status", "--db", history.database, "--json").json["undelivered"] == 0


def test_what_of_detection_works_and_what_still_learns_is_said(
    cli: Command, history: History
) -> None:
    watched(history)
    history.sample(started_at=now())
    assert cli("status", "--db", history.database, "--json").json["targets"][0]["detection"] == []
    armed = (
        {"what": "throttle time of GPU GPU-1", "armed": True, "detail": "needs no learning"},
        {"what": "decode rate", "armed": False, "detail": "3 of 12 h"},
    )
    kept = StoredDetector(
        1, "v", "{}", armed, Cursor(), 0, "what is normal is learnt anew since noon"
    )
    history.do(lambda c: detectors.save(c, 1, kept))
    assert cli("status", "--db", history.database, "--json").json["targets"][0][
        "detection"
    ] == list(armed)
    told = cli("status", "--db", history.database).out
    assert "armed: throttle time of GPU GPU-1" in told
    assert "decode rate: not armed (3 of 12 h)" in told
    assert "learnt anew since noon" in told
