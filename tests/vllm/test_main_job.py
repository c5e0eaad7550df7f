"""The main job against a real server: correct answers, a cold start, a batch job, a hang, and a
crash. One server start.

The tests run in order and share the server; each restarts the daemon with its own probes, on the
same history.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median

import pytest
from vllm_bed import (
    Bed,
    Canary,
    Json,
    VllmServer,
    batch_load,
    chat_probe,
    say,
    started_at,
    wait_for,
)

# The time-outs apply to the test functions only; an install or a start has its own limit. All are
# several times what two idle cores need, so that other work on the machine does not fail a test.
pytestmark = pytest.mark.vllm

CAP_MS = 800.0
EVERY_S = {"chat-short": 2.0, "chat-truewait": 5.0}


LONG_STREAM: Json = {
    "class": "batch",
    "every": "2s",
    "endpoint": "completions",
    "prompt": "Count from one to thirty in words.",
    "max_tokens": 900,
    "sampling": {"ignore_eos": True, "min_tokens": 900},
}


def chat_probes() -> dict[str, Json]:
    """The shipped chat probes at a shorter interval: one capped by its class, one without a cap."""
    prompt, answer = "Is the sky blue? Answer yes or no.", "Yes"
    return {
        "chat-short": chat_probe(prompt, answer, "chat", "2s"),
        "chat-truewait": chat_probe(prompt, answer, "chat", "5s", max_wait="none"),
    }


def summaries(bed: Bed, traffic_class: str) -> dict[str, Json]:
    """The output of `summary --json` for one class, by phase."""
    rows = bed.canary.json("summary")["summaries"]
    return {row["phase"]: row for row in rows if row["class"] == traffic_class}


@pytest.mark.timeout(240, func_only=True)
def test_the_twelve_sure_prompts_are_answered_correctly(
    bed: Bed, server: VllmServer, sure: Sequence[tuple[str, str]]
) -> None:
    assert len(sure) == 12
    probes = {
        f"sure-{number:02}": chat_probe(prompt, answer, "sure", "5s", max_tokens=300)
        for number, (prompt, answer) in enumerate(sure, start=1)
    }
    bed.watch(probes)

    def every_probe_twice() -> list[Json] | None:
        bed.canary.check_running()
        rows = bed.canary.samples()
        counts = [sum(row["probe"] == probe for row in rows) for probe in probes]
        return rows if min(counts) >= 2 else None

    rows = wait_for(
        "two answers to each of twelve prompts",
        every_probe_twice,
        200.0,
        bed.canary.state_report,
    )
    wrong = [row for row in rows if (row["outcome"], row["verdict"]) != ("ok", "pass")]
    assert not wrong, f"{len(wrong)} of {len(rows)} samples are not correct answers: {wrong[:2]}"
    say(f"{len(rows)} correct answers")


@pytest.mark.timeout(30, func_only=True)
def test_the_first_answer_with_log_probabilities_is_slow_and_recorded_as_cold(
    bed: Bed, server: VllmServer
) -> None:
    rows = [row for row in bed.canary.samples() if row["class"] == "sure"]
    cold, rest = rows[0], rows[1:]
    usual_ms = median(row["ttft_ms"] for row in rest)
    bed.figures["cold first token"] = f"{cold['ttft_ms']:.0f} ms; then {usual_ms:.1f} ms"

    assert cold["phase"] == "cold"
    assert {row["phase"] for row in rest} <= {"idle", "warm"}, (
        "only the first answer of a process is cold"
    )
    assert cold["ttft_ms"] > 1000.0
    assert cold["ttft_ms"] > 10 * usual_ms
    by_phase = summaries(bed, "sure")
    assert by_phase["cold"]["count"] == 1
    assert by_phase["cold"]["ttft_ms"]["p50"]["value"] == pytest.approx(cold["ttft_ms"], rel=0.01)
    warm_p95_ms = by_phase["warm"]["ttft_ms"]["p95"]["value"]
    assert warm_p95_ms < cold["ttft_ms"] / 2, "the cold answer is in no other phase"


def assert_is_the_true_wait(waited: Json) -> None:
    assert (waited["outcome"], waited["verdict"]) == ("ok", "pass")
    assert waited["ttft_ms"] >= 10 * CAP_MS
    assert waited["server_timing"] == "response"
    assert waited["queue_ms"] > 0.95 * waited["ttft_ms"]


def assert_all_are_capped(bed: Bed, capped: Sequence[Json]) -> None:
    assert len(capped) >= 4
    assert {row["ttft_ms"] for row in capped} == {None}, (
        "a sample without a first token has no time to first token"
    )
    meanwhile = bed.canary.samples(capped[0]["id"], probe="chat-short")
    assert {row["outcome"] for row in meanwhile if row["id"] <= capped[-1]["id"]} == {"queue_cap"}
    p95 = summaries(bed, "chat")["warm"]["ttft_ms"]["p95"]
    assert p95["value"] is None, "the p95 lies among the censored waits"
    assert p95["at_least"] >= CAP_MS
    shown = re.findall(r"> ([\d,]+)", bed.canary.run("summary", "--class", "chat"))
    assert shown, "the table shows that the p95 is above the cap"
    assert all(float(figure.replace(",", "")) >= CAP_MS for figure in shown)


@pytest.mark.timeout(420, func_only=True)
def test_behind_a_batch_job_the_capped_probe_says_queue_cap_and_the_uncapped_one_the_true_wait(
    bed: Bed, server: VllmServer
) -> None:
    bed.watch(chat_probes())
    before = bed.canary.wait_for_samples(
        "quiet answers of chat-short", 3, 30.0, probe="chat-short", outcome="ok"
    )
    before += bed.canary.wait_for_samples(
        "a quiet answer of chat-truewait", 1, 30.0, probe="chat-truewait", outcome="ok"
    )
    assert "cold" not in {row["phase"] for row in before}, (
        "a restart of the daemon does not make the server cold again"
    )
    quiet = bed.canary.last_id()

    with batch_load(server.url) as load:
        say("24 batch requests of 900 tokens are running")

        def true_wait() -> Json | None:
            bed.canary.check_running()
            rows = bed.canary.samples(quiet, probe="chat-truewait")
            return next(
                (row for row in rows if row["outcome"] != "ok" or row["ttft_ms"] > 10 * CAP_MS),
                None,
            )

        waited = wait_for("the uncapped probe's answer", true_wait, 300.0, bed.canary.state_report)
        load.wait(120.0)
    capped = bed.canary.samples(quiet, probe="chat-short", outcome="queue_cap")
    bed.figures["true wait behind the batch job"] = (
        f"{waited['ttft_ms']:.0f} ms, queue {waited['queue_ms']:.0f} ms"
    )
    bed.figures["batch job"] = f"{load.took_s:.0f} s; {len(capped)} queue_cap samples"

    assert_is_the_true_wait(waited)
    assert_all_are_capped(bed, capped)


@pytest.mark.timeout(300, func_only=True)
def test_a_stopped_engine_is_hung_while_health_answers_200_and_recovers_afterwards(
    bed: Bed, server: VllmServer
) -> None:
    canary = bed.canary
    daemon = canary.daemon
    calm = canary.last_id()
    for probe in chat_probes():  # what the batch job left in the queue is served
        canary.wait_for_samples(
            f"a calm answer of {probe}", 1, 60.0, after=calm, probe=probe, outcome="ok"
        )
    frozen, began = canary.last_id(), datetime.now(UTC)
    server.freeze_engine()
    try:
        say("the engine is stopped")
        assert_hangs(bed, server, frozen)
    finally:
        server.thaw_engine()
    say("the engine continues")
    assert_recovers(canary, canary.last_id())
    assert canary.daemon is daemon, "the daemon was not restarted"
    assert_no_run_is_missing(canary, frozen, began)


def assert_hangs(bed: Bed, server: VllmServer, frozen: int) -> None:
    """Both probes report a hang and an incident opens, while /health answers 200."""
    canary, frozen_at = bed.canary, time.monotonic()
    health: list[int | None] = []

    def hung() -> list[Json] | None:
        health.append(server.health())
        rows = [
            row
            for probe in chat_probes()
            for row in canary.samples(frozen, probe=probe, outcome="hung")
        ]
        return rows if {row["probe"] for row in rows} == set(chat_probes()) else None

    rows = wait_for("both probes to report hung", hung, 60.0, canary.state_report)
    bed.figures["hang"] = f"reported after {time.monotonic() - frozen_at:.0f} s"
    assert set(health) == {200}, "the server's own health page reports nothing"
    assert {row["ttft_ms"] for row in rows} == {None}
    wait_for("an open incident", lambda: canary.open_incidents("hung"), 30.0, canary.state_report)
    bed.figures["hang"] += f", an incident after {time.monotonic() - frozen_at:.0f} s"
    assert canary.json("status", codes=(1,))["status"] == "bad"


def assert_recovers(canary: Canary, thawed: int) -> None:
    """The probes pass again, the incident closes, the status is good."""
    for probe in chat_probes():
        what = f"a correct answer of {probe}"
        passed = {"probe": probe, "outcome": "ok", "verdict": "pass"}
        canary.wait_for_samples(what, 2, 60.0, after=thawed, **passed)
    wait_for(
        "the incident's end",
        lambda: not canary.open_incidents("hung"),
        60.0,
        canary.state_report,
    )
    wait_for(
        "a good status",
        lambda: canary.json("status", codes=(0, 1))["status"] == "good",
        30.0,
        canary.state_report,
    )


def assert_no_run_is_missing(canary: Canary, after: int, began: datetime) -> None:
    """Every due run is a sample or a skipped run."""
    ended = datetime.now(UTC)
    for probe, every_s in EVERY_S.items():
        rows = canary.samples(after, probe=probe)
        runs = [row for row in rows if began <= started_at(row) <= ended]
        recorded = len(runs) + canary.skipped(probe, began, ended)
        due = (ended - began).total_seconds() / every_s
        assert recorded >= due - 2, f"{probe}: {due:.0f} runs were due, {recorded} are recorded"


def wait_for_more_tokens(server: VllmServer, count: int, canary: Canary) -> None:
    before = server.tokens_generated()
    wait_for(
        "a running stream",
        lambda: server.tokens_generated() >= before + count,
        60.0,
        canary.state_report,
    )


@pytest.mark.timeout(240, func_only=True)
def test_a_killed_engine_ends_the_stream_in_flight_with_an_error(
    bed: Bed, server: VllmServer
) -> None:
    canary = bed.canary
    bed.watch({"decode-long": LONG_STREAM})
    healthy = canary.wait_for_samples(
        "two long streams", 2, 90.0, probe="decode-long", outcome="ok"
    )[-1]
    bed.figures["long stream"] = (
        f"{healthy['completion_tokens']} tokens in {healthy['e2e_ms']:.0f} ms, "
        f"{healthy['decode_tok_s']:.0f} tok/s"
    )
    assert healthy["completion_tokens"] == 900
    canary.wait_for_samples(
        "the end of another one", 1, 60.0, after=healthy["id"], probe="decode-long"
    )
    # between two streams, or early in the next: 50 tokens later it still has most of its 900 left
    wait_for_more_tokens(server, 50, canary)
    server.freeze_engine()  # so that the stream cannot end before the kill
    killed = canary.last_id()
    server.kill_engine()
    say("the engine is killed")
    row = canary.wait_for_samples(
        "the end of the stream", 1, 60.0, after=killed, probe="decode-long"
    )[0]
    bed.figures["kill"] = f"{row['outcome']} after {row['e2e_ms'] or 0:.0f} ms"
    assert row["outcome"] in {"stream_error", "truncated"}
    assert row["ttft_ms"] is not None, "what was measured before the error is kept"
    down = wait_for(
        "an alert that the server is down",
        lambda: bed.receiver.opened("server_down"),
        60.0,
        canary.state_report,
    )
    assert len(down) == 1
    assert canary.json("status", codes=(1,))["status"] == "bad"
    bed.stop_server()
