"""The daemon as a process, against a server and a webhook that are processes or threads of their
own.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nvml import StubNvml, build
from processes import ChildStandIn, DaemonProcess, get, wait_for
from webhooks import Receiver

pytestmark = pytest.mark.timeout(150)  # on a busy machine a process takes seconds to start
PROBE = """\
class: chat
every: 500ms
messages:
  - role: user
    content: Is the sky blue? Answer yes or no.
max_tokens: 8
expect:
  - contains: "Yes"
"""
Started = Callable[..., DaemonProcess]
#: The outbox is looked into once an hour: news that arrives all the same was told to the dispatcher
#: as soon as it was stored.
ONLY_WHEN_WOKEN = {"monitor.daemon.service.OUTBOX_EVERY_S": 3600.0}


@pytest.fixture
def started(tmp_path: Path, child_standin: ChildStandIn, receiver: Receiver) -> Iterator[Started]:
    """Starts a daemon for the stand-in with a webhook; `target` and `rest` are more lines of its
    configuration.
    """
    running: list[DaemonProcess] = []

    def start(
        target: str = "    gpus: none\n",
        rest: str = "",
        environment: dict[str, str] | None = None,
        **periods: float,
    ) -> DaemonProcess:
        config = tmp_path / "config.yaml"
        if not config.exists():
            hook = (
                "channels: [{name: ops, kind: webhook, url_env: CANARY_TEST_HOOK, timeout: 2s}]\n"
            )
            budget = "    token_budget_per_hour: 10000000\n"
            config.write_text(
                f"listen: 127.0.0.1:0\n{rest}{hook}targets:\n  - name: local\n    url: "
                f"{child_standin.url}\n{budget}{target}"
            )
            (tmp_path / "probes").mkdir()
            (tmp_path / "probes" / "sky.yaml").write_text(PROBE)
        environment = {"CANARY_TEST_HOOK": receiver.url, **(environment or {})}
        running.append(DaemonProcess(config, environment, f"daemon-{len(running)}.log", **periods))
        return running[-1]

    yield start
    for daemon in running:
        daemon.kill()


def rows(tmp_path: Path, query: str, name: str = "history.db") -> list[tuple[Any, ...]]:
    """What the history says, read as anybody would; nothing while there is none."""
    try:
        with closing(sqlite3.connect(f"file:{tmp_path / name}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []


def good(tmp_path: Path, count: int) -> bool:
    """Whether so many good samples are there."""
    return len(rows(tmp_path, "SELECT id FROM samples WHERE outcome = 'ok'")) >= count


def identified(tmp_path: Path) -> bool:
    """Whether the identity is known and what follows from an answer is learnt, so that a change can
    be told.
    """
    return good(tmp_path, 2) and bool(rows(tmp_path, "SELECT id FROM fingerprint"))


def test_samples_arrive_pages_answer_and_it_ends_on_sigterm(
    started: Started, tmp_path: Path
) -> None:
    daemon = started()
    wait_for(lambda: good(tmp_path, 3), "three good samples")
    assert get(f"{daemon.web}/healthz") == (200, '{"status":"good","problems":[]}')
    assert get(f"{daemon.web}/readyz")[0] == 200
    status, metrics = get(f"{daemon.web}/metrics")
    assert status == 200
    assert (
        'vllm_canary_samples_total{class="chat",outcome="ok",phase="cold",probe="sky",'
        'target="local",verdict="pass"} 1.0'
    ) in metrics
    assert 'vllm_canary_metrics_page_up{target="local"} 1.0' in metrics
    phases = [phase for (phase,) in rows(tmp_path, "SELECT phase FROM samples ORDER BY id")]
    assert phases[:3] == ["cold", "warm", "warm"]
    assert rows(tmp_path, "SELECT count(*) FROM server_reading WHERE state = 'ok'") >= [(2,)]
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began < 8
    assert "Traceback" not in daemon.log
    assert [p.name for p in tmp_path.glob("history.db*")] == [
        "history.db"
    ]  # nothing is left for a reader to trip over
    assert rows(tmp_path, "SELECT * FROM lease") == []


def test_a_canary_that_is_out_does_not_delay_the_end(
    started: Started, child_standin: ChildStandIn, tmp_path: Path
) -> None:
    daemon = started()
    wait_for(lambda: good(tmp_path, 1), "a good sample")
    child_standin.set(frozen=True)
    time.sleep(1.5)
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began < 8
    assert rows(tmp_path, "SELECT outcome FROM samples ORDER BY id DESC LIMIT 1") == [
        ("cancelled",)
    ]


def test_a_server_that_is_down_at_the_start_is_said_and_taken_up_when_it_comes(
    started: Started, child_standin: ChildStandIn, receiver: Receiver, tmp_path: Path
) -> None:
    child_standin.stop()
    daemon = started(**ONLY_WHEN_WOKEN)
    wait_for(lambda: receiver.opened("server_down"), "server_down is told")
    child_standin.start()
    wait_for(lambda: good(tmp_path, 2), "good samples")
    wait_for(
        lambda: [d for d in receiver.deliveries if d["event"] == "resolved"], "the end is told"
    )
    assert len(receiver.opened("server_down")) == 1
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.log


def test_a_database_that_cannot_be_opened_is_said_and_taken_up_when_it_can(
    started: Started, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    daemon = started(rest="database: data/history.db\n")
    web = daemon.web
    wait_for(lambda: "retrying every" in daemon.log, "it says what is missing")
    assert get(f"{web}/healthz")[0] == 200
    status, text = get(f"{web}/readyz")
    assert (status, "is not open" in text) == (503, True)
    assert str(tmp_path / "data" / "history.db") in daemon.log
    (tmp_path / "data").unlink()
    wait_for(lambda: rows(tmp_path, "SELECT id FROM samples", "data/history.db"), "samples")
    wait_for(lambda: get(f"{web}/readyz")[0] == 200, "it is ready")
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.log


def test_it_ends_on_sigterm_while_it_waits_for_the_database(
    started: Started, tmp_path: Path
) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    daemon = started(
        rest="database: data/history.db\n", **{"monitor.daemon.service.DATABASE_RETRY_S": 60.0}
    )
    wait_for(lambda: "retrying every" in daemon.log, "it says what is missing")
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began < 5


def test_a_locked_database_loses_no_sample(started: Started, tmp_path: Path) -> None:
    daemon = started(**{"monitor.store.database.BUSY_TIMEOUT_S": 0.1})
    wait_for(lambda: good(tmp_path, 2), "good samples")
    with sqlite3.connect(tmp_path / "history.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        wait_for(lambda: get(f"{daemon.web}/readyz")[0] == 503, "it says that it cannot write")
        other.execute("ROLLBACK")
    other.close()
    before = len(rows(tmp_path, "SELECT id FROM samples"))
    wait_for(lambda: good(tmp_path, before + 2), "samples go on")
    wait_for(lambda: get(f"{daemon.web}/readyz")[0] == 200, "it is ready again")
    assert daemon.terminate() == 0


def test_a_history_that_is_deleted_while_it_is_open_ends_the_daemon_with_the_reason(
    started: Started, tmp_path: Path
) -> None:
    daemon = started(**{"monitor.daemon.loops.FILE_EVERY_S": 0.1})
    wait_for(lambda: good(tmp_path, 1), "a good sample")
    (tmp_path / "history.db").unlink()
    wait_for(
        lambda: "was moved, replaced or deleted while it was open" in daemon.log,
        "it says what happened",
    )
    assert daemon.process.wait(20) == 3
    assert "Traceback" not in daemon.log


def test_a_changed_context_length_is_told_once_with_before_and_after(
    started: Started, child_standin: ChildStandIn, receiver: Receiver, tmp_path: Path
) -> None:
    started(**ONLY_WHEN_WOKEN)
    wait_for(lambda: identified(tmp_path), "the identity is known")
    child_standin.restart(max_model_len=2048, system_fingerprint="vllm-0.32.0-0badcafe")
    [incident] = wait_for(lambda: receiver.opened("config_change"), "the change is told")
    changes = {
        change["field"]: (change["before"], change["after"]) for change in incident["changes"]
    }
    assert changes == {"max_model_len": (4096, 2048)}
    assert (incident["target"], incident["subject"], incident["cause"]) == (
        "local",
        "max_model_len",
        "config_change",
    )
    wait_for(
        lambda: [d for d in receiver.deliveries if d["event"] == "resolved"],
        "the warm round closes it",
    )
    time.sleep(1.0)
    assert [
        d["event"] for d in receiver.deliveries if d["incident"]["kind"] == "config_change"
    ] == ["opened", "resolved"]
    digests = rows(
        tmp_path, "SELECT DISTINCT fingerprint FROM samples WHERE fingerprint IS NOT NULL"
    )
    assert len(digests) >= 2


def test_a_plain_restart_of_the_server_is_noticed_and_told_to_nobody(
    started: Started, child_standin: ChildStandIn, receiver: Receiver, tmp_path: Path
) -> None:
    started()
    wait_for(lambda: identified(tmp_path), "the identity is known")
    child_standin.restart()
    wait_for(
        lambda: rows(tmp_path, "SELECT count(*) FROM process_start") == [(2,)],
        "the start is noticed",
    )
    after = "SELECT id FROM samples WHERE process_start = (SELECT max(process_start) FROM samples)"
    wait_for(lambda: len(rows(tmp_path, after)) >= 3, "samples after it")
    assert receiver.deliveries == []


def test_a_changed_driver_is_told_once_and_names_it(
    started: Started, receiver: Receiver, tmp_path: Path
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed; it builds the stub of libnvidia-ml.so.1")
    library = build(tmp_path / "lib")
    stub = StubNvml(tmp_path)
    started(
        "    gpus: auto\n",
        environment={"LD_LIBRARY_PATH": str(library.parent), "NVMLSTUB_STATE": str(stub.state)},
    )
    known = (
        "SELECT json_extract(fields, '$.driver_version.value') FROM fingerprint WHERE id = "
        "(SELECT fingerprint_id FROM target)"
    )
    wait_for(
        lambda: rows(tmp_path, known) == [("580.126.09",)] and good(tmp_path, 2),
        "the driver is known",
    )
    stub.set({"driver_version": "590.48.01"})
    [incident] = wait_for(lambda: receiver.opened("config_change"), "the change is told")
    changes = {
        change["field"]: (change["before"], change["after"]) for change in incident["changes"]
    }
    assert changes["driver_version"] == ("580.126.09", "590.48.01")
    assert len(receiver.opened("config_change")) == 1
    wait_for(
        lambda: rows(tmp_path, "SELECT id FROM samples WHERE gpu_temp_c = 61"),
        "samples carry the GPU's temperature",
    )


def test_a_message_that_was_on_its_way_when_the_daemon_was_killed_arrives_once(
    started: Started, child_standin: ChildStandIn, receiver: Receiver, tmp_path: Path
) -> None:
    daemon = started()
    wait_for(lambda: identified(tmp_path), "the identity is known")
    receiver.stop()
    child_standin.restart(max_model_len=2048)
    waits = "SELECT id FROM delivery WHERE event = 'opened' AND attempts > 0 AND state = 'pending'"
    wait_for(lambda: rows(tmp_path, waits), "an attempt has failed")
    daemon.kill()
    receiver.start()
    [(delivery_id,)] = rows(tmp_path, waits)
    daemon.start()
    wait_for(lambda: receiver.opened("config_change"), "the message arrives")
    time.sleep(1.5)
    opened = [
        d
        for d in receiver.deliveries
        if d["event"] == "opened" and d["incident"]["kind"] == "config_change"
    ]
    assert [d["id"] for d in opened] == [delivery_id]
    assert "T0KEN" not in daemon.log


def test_two_daemons_on_one_history_do_not_measure_at_the_same_time(
    started: Started, tmp_path: Path
) -> None:
    first = started()
    wait_for(lambda: good(tmp_path, 2), "samples of the first")
    second = started()
    wait_for(lambda: get(f"{second.web}/readyz")[0] == 200, "the second runs")
    time.sleep(1.5)
    assert (first.terminate(), second.terminate()) == (0, 0)
    spans = rows(
        tmp_path,
        (
            "SELECT started_at_us, started_at_us + e2e_ms * 1000 FROM sample WHERE outcome = 'ok' "
            "ORDER BY started_at_us"
        ),
    )
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert "Traceback" not in first.log


def test_a_key_of_the_server_is_in_no_log_and_in_no_byte_of_the_history(
    started: Started, child_standin: ChildStandIn, tmp_path: Path
) -> None:
    key = "sk-d0-n0t-sh0w"
    (tmp_path / "key").write_text(key)
    child_standin.set(api_key=key)
    daemon = started("    gpus: none\n    api_key_file: key\n")
    wait_for(lambda: good(tmp_path, 2), "good samples")
    child_standin.set(api_key="another")
    wait_for(
        lambda: rows(tmp_path, "SELECT id FROM samples WHERE outcome = 'http_error'"),
        "a refused canary",
    )
    assert (tmp_path / "history.db-wal").exists()
    holders = [p.name for p in tmp_path.iterdir() if p.is_file() and key.encode() in p.read_bytes()]
    assert holders == ["key"]
    daemon.terminate()
    holders = [p.name for p in tmp_path.iterdir() if p.is_file() and key.encode() in p.read_bytes()]
    assert holders == ["key"]


def test_runs_that_a_stopped_process_missed_are_counted_and_no_silence_is_held_against_the_server(
    started: Started, receiver: Receiver, tmp_path: Path
) -> None:
    daemon = started()
    wait_for(lambda: good(tmp_path, 2), "good samples")
    assert daemon.process is not None
    stopped = time.monotonic()
    daemon.process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    daemon.process.send_signal(signal.SIGCONT)
    missed = wait_for(
        lambda: rows(tmp_path, "SELECT sum(count) FROM skipped_run WHERE reason = 'pause'")[0][0],
        "missed runs are counted",
    )
    assert 2 <= missed <= (time.monotonic() - stopped) / 0.5
    assert receiver.deliveries == []


def test_a_webhook_that_is_gone_stops_nothing_else(
    started: Started, child_standin: ChildStandIn, receiver: Receiver, tmp_path: Path
) -> None:
    receiver.stop()
    daemon = started()
    wait_for(lambda: identified(tmp_path), "the identity is known")
    child_standin.restart(max_model_len=2048)
    wait_for(lambda: "not delivered" in daemon.log, "the failure is said")
    before = len(rows(tmp_path, "SELECT id FROM samples"))
    wait_for(lambda: good(tmp_path, before + 2), "samples go on")
    assert "T0KEN" not in daemon.log
    assert daemon.terminate() == 0


def test_a_supervisor_is_told_ready_status_and_stopping(started: Started, tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        address = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"canary-notify-{os.getpid()}")  # noqa: PTH118 - a short path
        supervisor.bind(address)
        try:
            daemon = started(environment={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"})
            wait_for(lambda: good(tmp_path, 1), "a good sample")
            time.sleep(1.2)
            assert daemon.terminate() == 0
            supervisor.setblocking(False)
            told = []
            while True:
                try:
                    told.append(supervisor.recv(4096).decode())
                except BlockingIOError:
                    break
        finally:
            os.unlink(address)  # noqa: PTH108
    assert told[0].startswith("READY=1")
    assert sum("WATCHDOG=1" in text for text in told) >= 3
    assert any("STATUS=watching" in text for text in told)
    assert told[-1] == "STOPPING=1"


def test_drift_is_found_once_through_a_kill_and_a_restart_and_resolved_after_it(
    started: Started, child_standin: ChildStandIn, receiver: Receiver, tmp_path: Path
) -> None:
    quick = {
        "monitor.judge.drift.speed.levels.TOGETHER_US": 100_000,
        "monitor.judge.drift.speed.levels.LEAST_SPAN_US": 1_000_000,
    }
    daemon = started(rest="classes:\n  chat:\n    max_wait: 20s\n    ttft: 400ms\n", **quick)
    wait_for(lambda: good(tmp_path, 5), "good samples")
    child_standin.set(ttft_s=0.9)
    [incident] = wait_for(
        lambda: receiver.opened("service_level"), "the level that is missed is told"
    )
    assert (incident["target"], incident["subject"]) == ("local", "chat")
    seen = len(rows(tmp_path, "SELECT id FROM sample"))
    wait_for(
        lambda: rows(tmp_path, "SELECT sample_id FROM detector_state WHERE sample_id > 0"),
        "what detection knows is stored",
    )
    daemon.kill()
    daemon.start()
    wait_for(lambda: len(rows(tmp_path, "SELECT id FROM sample")) > seen + 3, "samples go on")
    child_standin.set(ttft_s=0.01)
    wait_for(lambda: [d for d in receiver.deliveries if d["event"] == "resolved"], "it is over")
    told = [
        (d["event"], d["incident"]["id"])
        for d in receiver.deliveries
        if d["incident"]["kind"] == "service_level"
    ]
    assert [event for event, _ in told if event != "updated"] == ["opened", "resolved"]
    assert len({number for _, number in told}) == 1
    assert "Traceback" not in daemon.log
