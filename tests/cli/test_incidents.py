"""`incidents`: list them, show one, acknowledge, close and annotate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from histories import History
from sqlalchemy import Connection

from monitor.alert import outbox
from monitor.alert.incidents import IncidentLog
from monitor.judge.identity import digest
from monitor.model import Change, FingerprintField, Kind
from monitor.store import fingerprints, record

from .conftest import Command, write_config


def now() -> datetime:
    """This moment."""
    return datetime.now(UTC)


def test_none_is_good_and_said(cli: Command, history: History) -> None:
    ran = cli("incidents", "--db", history.database)
    assert (ran.code, ran.out) == (0, "no incidents\n")


def test_the_list_has_state_kind_and_headline(cli: Command, history: History) -> None:
    incident = history.incident(now())
    ran = cli("incidents", "--db", history.database)
    headline = "local: server does not answer"
    assert all(word in ran.out for word in ("open", "page", "server_down", headline))
    found = cli("incidents", "list", "--db", history.database, "--json").json
    assert list(found) == ["incidents"]
    assert found["incidents"][0]["id"] == incident.id


def test_old_ones_are_left_out_unless_they_are_open(cli: Command, history: History) -> None:
    old = history.incident(now() - timedelta(days=9))
    closed = history.incident(now() - timedelta(days=9), kind=Kind.HUNG)
    history.do(lambda c: IncidentLog(c, now() - timedelta(days=8)).close(closed, "over"))

    def shown(*words: str) -> list[int]:
        return [
            i["id"]
            for i in cli("incidents", "--db", history.database, "--json", *words).json["incidents"]
        ]

    assert shown() == [old.id]
    assert shown("--since", "10d") == [closed.id, old.id]


def test_a_closing_without_a_configuration_says_that_no_notification_was_sent(
    cli: Command, history: History
) -> None:
    number = str(history.incident(now()).id)
    ran = cli("incidents", "close", number, "--reason", "over", "--db", history.database)
    assert ran.out == (
        f"incident {number}: closed (no notification sent: no notification channel is configured)\n"
    )


@pytest.mark.parametrize(
    "before", [True, False], ids=["options before the action", "options after the action"]
)
def test_options_may_stand_before_or_after_the_action(
    before: bool, cli: Command, history: History
) -> None:
    history.incident(now())
    options = ["--db", history.database, "--json", "--target", "elsewhere"]
    ran = cli("incidents", *options, "list") if before else cli("incidents", "list", *options)
    assert (ran.code, ran.json) == (0, {"incidents": []})


def test_show_has_the_history_of_one(cli: Command, history: History) -> None:
    incident = history.incident(
        now(), kind=Kind.CONFIG_CHANGE, changes=(Change("max_model_len", 4096, 2048),)
    )
    number = str(incident.id)
    assert cli("incidents", "ack", number, "--note", "on it", "--db", history.database).code == 0
    assert cli("incidents", "note", number, "it was the fan", "--db", history.database).code == 0
    assert (
        cli("incidents", "close", number, "--reason", "mended", "--db", history.database).code == 0
    )
    [shown] = cli("incidents", "show", number, "--db", history.database, "--json").json["incidents"]
    assert [(e["event"], e["text"]) for e in shown["events"]] == [
        ("opened", incident.summary),
        ("acknowledged", "on it"),
        ("note", "it was the fan"),
        ("resolved", "closed by hand: mended"),
    ]
    assert shown["changes"] == [{"field": "max_model_len", "before": 4096, "after": 2048}]
    printed = cli("incidents", "show", number, "--db", history.database).out
    assert "it was the fan" in printed


def test_ack_says_the_new_state(cli: Command, history: History) -> None:
    number = str(history.incident(now()).id)
    assert (
        cli("incidents", "ack", number, "--db", history.database).out
        == f"incident {number}: acknowledged\n"
    )
    [found] = cli("incidents", "ack", number, "--db", history.database, "--json").json["incidents"]
    assert found["acknowledged_at"] is not None


def test_close_needs_a_reason_and_tells_the_channels_of_the_configuration(
    cli: Command, config: Path, history: History
) -> None:
    write_config(
        config.parent,
        "http://127.0.0.1:9",
        rest="channels: [{name: ops, kind: webhook, url: 'http://127.0.0.1:9/'}]\n",
    )
    number = str(history.incident(now()).id)
    assert cli("incidents", "close", number).code == 2
    assert cli("incidents", "close", number, "--reason", "planned").code == 0
    assert [(d.channel, d.event) for d in history.do(lambda c: outbox.log(c, None))] == [
        ("ops", "resolved")
    ]


@pytest.mark.parametrize("number", ["99", "99999999999999999999999"])
@pytest.mark.parametrize(
    "action", [["show"], ["ack"], ["close", "--reason", "x"], ["note"]], ids=lambda words: words[0]
)
def test_an_incident_that_is_not_there_is_2(
    number: str, action: list[str], cli: Command, history: History
) -> None:
    words = [action[0], number, *(["x"] if action[0] == "note" else []), *action[1:]]
    ran = cli("incidents", *words, "--db", history.database)
    assert (ran.code, ran.out) == (2, "")
    assert "incident" in ran.err


def test_a_closed_one_cannot_be_closed_or_acknowledged(cli: Command, history: History) -> None:
    number = str(history.incident(now()).id)
    cli("incidents", "close", number, "--reason", "mended", "--db", history.database)
    assert (
        cli("incidents", "close", number, "--reason", "again", "--db", history.database).code == 2
    )
    assert cli("incidents", "ack", number, "--db", history.database).code == 2


def test_a_mistyped_database_is_3_and_none_is_made(cli: Command, tmp_path: Path) -> None:
    for words in (["ack", "1"], ["close", "1", "--reason", "x"], ["note", "1", "x"], ["list"]):
        assert cli("incidents", *words, "--db", "typo.db").code == 3
    assert list(tmp_path.iterdir()) == []


def test_an_incident_cannot_steer_the_terminal(cli: Command, history: History) -> None:
    evil = "\x1b[31mserved_models → evil\x07"
    number = str(history.incident(now(), evidence={"last_error": evil, evil: [evil]}).id)
    for words in ([], ["show", number]):
        assert "\x1b" not in cli("incidents", *words, "--db", history.database).out
    assert "\x1b" not in cli("status", "--db", history.database).out


def test_a_gpu_is_called_by_its_model(cli: Command, history: History) -> None:
    uuid = "GPU-a1000000-0000-0000-0000-000000000001"
    gpu = FingerprintField("gpu", "root", [{"uuid": uuid, "name": "NVIDIA H100 80GB HBM3"}])
    fields = {"gpu": gpu}

    def served(connection: Connection) -> None:
        target_id = record.ensure_target(connection, "local", "http://127.0.0.1:1", now())
        fingerprints.save(connection, target_id, digest(fields), fields, now())

    history.do(served)
    history.incident(now(), kind=Kind.GPU_FAULT, subject=uuid, evidence={"fault": "lost"})
    assert "GPU (H100, GPU-a100…01)" in cli("incidents", "--db", history.database).out
