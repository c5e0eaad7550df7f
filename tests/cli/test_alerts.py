"""`alerts`: try the channels, and list what was delivered and what was not."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from histories import History
from processes import clean_environment
from webhooks import Receiver

from monitor.alert import outbox

from .conftest import Command, write_config


def with_channels(folder: Path, **urls: str) -> Path:
    """A configuration with these webhooks."""
    channels = "".join(
        f"  - {{name: {name}, kind: webhook, url: '{url}'}}\n" for name, url in urls.items()
    )
    return write_config(folder, "http://127.0.0.1:9", rest=f"channels:\n{channels}" if urls else "")


def test_a_test_arrives_in_the_shape_of_the_real_thing(
    cli: Command, receiver: Receiver, tmp_path: Path
) -> None:
    with_channels(tmp_path, ops=receiver.url)
    ran = cli("alerts", "test")
    assert (ran.code, ran.out) == (0, "ops: delivered\n")
    [body] = receiver.deliveries
    assert (
        body["version"],
        body["event"],
        body["incident"]["kind"],
        body["incident"]["severity"],
    ) == (1, "opened", "monitor", "info")
    assert "test" in body["incident"]["summary"]
    assert receiver.headers[0]["idempotency-key"] == body["id"]


def test_a_channel_that_fails_is_3_and_the_others_are_still_tried(
    cli: Command, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.statuses = [404]
    with_channels(tmp_path, ops=receiver.url, gone="http://127.0.0.1:9/T0KEN", boss=receiver.url)
    ran = cli("alerts", "test", "--json")
    assert ran.code == 3
    found = {c["name"]: (c["delivered"], c["error"]) for c in ran.json["channels"]}
    assert found["ops"] == (False, "answered HTTP 404")
    assert found["gone"][0] is False
    assert found["boss"] == (True, None)
    assert "T0KEN" not in ran.out + ran.err


def test_only_the_named_channel_is_tried(cli: Command, receiver: Receiver, tmp_path: Path) -> None:
    with_channels(tmp_path, ops=receiver.url, gone="http://127.0.0.1:9/")
    assert cli("alerts", "test", "ops").code == 0
    assert cli("alerts", "test", "--channel", "ops").code == 0
    assert len(receiver.deliveries) == 2


def test_an_unknown_channel_and_none_at_all_are_2(
    cli: Command, receiver: Receiver, tmp_path: Path
) -> None:
    with_channels(tmp_path, ops=receiver.url)
    told = cli("alerts", "test", "boss").err
    assert told == "there is no channel 'boss'; configured channels: ops\n"
    with_channels(tmp_path)
    ran = cli("alerts", "test")
    assert ran.code == 2
    assert "channels:" in ran.err


def test_a_channel_without_its_address_is_said(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY_TEST_HOOK", raising=False)
    write_config(
        tmp_path,
        "http://127.0.0.1:9",
        rest="channels: [{name: ops, kind: webhook, url_env: CANARY_TEST_HOOK}]\n",
    )
    ran = cli("alerts", "test")
    assert ran.code == 2
    assert "CANARY_TEST_HOOK is not set" in ran.out + ran.err


def test_a_secret_address_is_printed_by_no_process_even_when_it_fails(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.statuses = [204, 500, 404]
    config = write_config(
        tmp_path,
        "http://127.0.0.1:9",
        rest="channels: [{name: ops, kind: webhook, url_env: CANARY_TEST_HOOK}]\n",
    )
    environment = clean_environment(CANARY_TEST_HOOK=receiver.url)
    command = [sys.executable, "-m", "monitor.cli", "alerts", "test", "-c", str(config)]
    runs = [
        subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=30, check=False
        )
        for _ in range(2)
    ]
    receiver.stop()
    runs.append(
        subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=30, check=False
        )
    )
    assert [run.returncode for run in runs] == [0, 3, 3]
    assert not any("T0KEN" in run.stdout + run.stderr for run in runs)


def test_the_log_has_what_was_sent_and_what_was_not_the_newest_first(
    cli: Command, history: History
) -> None:
    now = datetime.now(UTC)
    incident = history.incident(now, ("ops", "boss"))
    sent, failed = history.do(lambda c: outbox.log(c, None))
    history.do(lambda c: outbox.mark_sent(c, sent, now))
    history.do(lambda c: outbox.mark_failed(c, failed, now, "answered HTTP 404", True))
    ran = cli("alerts", "log", "--db", history.database, "--json")
    assert ran.code == 0
    found = {
        d["channel"]: (d["state"], d["attempts"], d["last_error"], d["incident_id"])
        for d in ran.json["deliveries"]
    }
    assert found == {
        sent.channel: ("sent", 1, None, incident.id),
        failed.channel: ("failed", 1, "answered HTTP 404", incident.id),
    }
    assert "answered HTTP 404" in cli("alerts", "log", "--db", history.database).out
    [one] = cli(
        "alerts", "log", "--db", history.database, "--json", "--channel", sent.channel
    ).json["deliveries"]
    assert one["channel"] == sent.channel


def test_an_empty_log_is_good(cli: Command, history: History) -> None:
    ran = cli("alerts", "log", "--db", history.database)
    assert (ran.code, ran.out) == (0, "no deliveries\n")
