"""Each change of the server gives one alert that names it: a plain restart (none), another context
length, other weights. Three server starts.

Runs after test_main_job.py, which leaves a history and a dead server; alone it creates both with a
fourth start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from vllm_bed import Bed, Delivery, Json, chat_probe, say, wait_for

pytestmark = pytest.mark.vllm

PROBES: Mapping[str, Json] = {
    "chat-short": chat_probe("Is the sky blue? Answer yes or no.", "Yes", "chat", "2s")
}
SETTLED_S = 10.0  # a second alert for the same change would arrive within this time


@pytest.fixture(scope="module")
def watched(bed: Bed) -> Bed:
    """A monitored server that has died and has an open incident, from test_main_job.py or created
    here.
    """
    if not bed.canary.samples(outcome="ok"):
        bed.start_server()
        bed.watch(PROBES)
        bed.canary.wait_for_samples("first answers", 5, 90.0, outcome="ok")
    bed.stop_server()
    wait_for(
        "the incident",
        lambda: bed.canary.open_incidents("server_down"),
        60.0,
        bed.canary.state_report,
    )
    wait_for("its alert", lambda: bed.receiver.opened("server_down"), 10.0, bed.canary.state_report)
    return bed


def changes(delivery: Delivery) -> dict[str, tuple[object, object]]:
    """The changes in an alert: before and after, by field."""
    return {
        change["field"]: (change["before"], change["after"])
        for change in delivery.incident["changes"]
    }


def answers_of_the_new_server(bed: Bed, after: int) -> list[Json]:
    """Waits until the new server has answered a few times."""
    rows = bed.canary.wait_for_samples(
        "answers of the new server", 4, 90.0, after=after, outcome="ok"
    )
    assert [row["phase"] for row in rows].count("cold") == 1, "a new process starts cold, once"
    assert {row["verdict"] for row in rows} == {"pass"}
    return rows


def wait_for_an_alert(watched: Bed, began: float) -> None:
    """Waits for the alert about a changed configuration."""
    wait_for(
        "the alert",
        lambda: watched.receiver.opened("config_change", since=began),
        90.0,
        watched.canary.state_report,
    )


def the_only_alert(watched: Bed, began: float) -> Delivery:
    """The alert about a changed configuration, after the time for a second one."""
    time.sleep(SETTLED_S)
    sent = watched.receiver.opened("config_change", since=began)
    assert len(sent) == 1, f"{len(sent)} deliveries: {[d.body for d in sent]}"
    return sent[0]


@pytest.mark.timeout(90, func_only=True)
def test_a_daemon_restarted_while_the_server_is_down_does_not_resolve_the_incident(
    watched: Bed,
) -> None:
    canary, receiver = watched.canary, watched.receiver
    [before], began, last = canary.open_incidents("server_down"), time.monotonic(), canary.last_id()
    watched.watch(PROBES)
    canary.wait_for_samples("refused canaries", 4, 60.0, after=last, outcome="refused")

    assert [d.event for d in receiver.deliveries if d.at >= began and d.kind == "server_down"] == []
    assert [row["id"] for row in canary.open_incidents("server_down")] == [before["id"]], (
        "the incident stays the same"
    )


@pytest.mark.timeout(420, func_only=True)
def test_a_plain_restart_is_no_configuration_change(watched: Bed) -> None:
    canary, began = watched.canary, time.monotonic()
    last, last_incident = canary.last_id(), canary.last_incident()
    old = next(row["process_start"] for row in reversed(canary.samples(outcome="ok")))
    watched.start_server()
    rows = answers_of_the_new_server(watched, last)
    time.sleep(SETTLED_S)

    assert {row["process_start"] for row in rows} != {old}, "the restart is recorded"
    assert not watched.receiver.opened("config_change", since=began)
    assert not canary.incidents("config_change", after=last_incident)
    wait_for(
        "the end of server_down",
        lambda: not canary.open_incidents("server_down"),
        60.0,
        canary.state_report,
    )


def change_the_context_length_and_kill_the_daemon(watched: Bed) -> None:
    """Kills the daemon after it has opened the incident, while the receiver is down."""
    canary, last_incident = watched.canary, watched.canary.last_incident()
    watched.receiver.down()
    try:
        watched.start_server(max_model_len=768)
        started = time.monotonic()
        wait_for(
            "the incident",
            lambda: canary.incidents("config_change", after=last_incident),
            90.0,
            canary.state_report,
        )
        watched.figures["context length changed"] = (
            f"an incident {time.monotonic() - started:.1f} s after /health"
        )
        canary.kill()
        say("the daemon is killed before the delivery")
    finally:
        watched.receiver.up()


@pytest.mark.timeout(420, func_only=True)
def test_another_context_length_is_reported_once_although_the_daemon_is_killed_before_the_delivery(
    watched: Bed,
) -> None:
    canary, receiver, began = watched.canary, watched.receiver, time.monotonic()
    last = canary.last_id()
    change_the_context_length_and_kill_the_daemon(watched)
    assert not receiver.opened("config_change", since=began)
    restarted = time.monotonic()
    canary.start()

    wait_for_an_alert(watched, began)
    watched.figures["delivery after kill -9"] = (
        f"{time.monotonic() - restarted:.1f} s after the daemon's restart"
    )
    answers_of_the_new_server(watched, last)
    alert = the_only_alert(watched, began)
    assert changes(alert) == {"max_model_len": (1024, 768)}
    listed = [
        row
        for row in canary.json("incidents", codes=(0, 1))["incidents"]
        if row["id"] == alert.incident["id"]
    ]
    assert [(row["kind"], row["subject"]) for row in listed] == [("config_change", "max_model_len")]


@pytest.mark.timeout(420, func_only=True)
def test_weights_replaced_at_the_same_path_are_reported_by_the_model_hash(watched: Bed) -> None:
    began, last = time.monotonic(), watched.canary.last_id()
    watched.stop_server()
    watched.replace_weights("int4")
    watched.start_server(max_model_len=768)
    started = time.monotonic()

    wait_for_an_alert(watched, began)
    watched.figures["weights replaced"] = (
        f"reported {time.monotonic() - started:.1f} s after /health"
    )
    answers_of_the_new_server(watched, last)
    alert = the_only_alert(watched, began)
    changed = changes(alert)
    assert set(changed) == {"model_hash"}
    before, after = changed["model_hash"]
    assert before
    assert after
    assert before != after
