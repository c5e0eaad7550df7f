"""The one writing thread: in order, patient, and nothing lost."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from histories import NOON
from sqlalchemy import Connection

from monitor.errors import UserError
from monitor.store import database, queries, record, writer
from monitor.store.database import DatabaseError, open_writer
from monitor.store.writer import Writer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits for a locked database."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(writer, "RETRY_S", (0.05,))


@pytest.fixture
def store(quick: None, tmp_path: Path) -> Iterator[Writer]:
    """A patient writer, as the daemon's."""
    made = Writer(open_writer(str(tmp_path / "history.db")))
    yield made
    made.close(patience_s=2)


@pytest.fixture
def locked(store: Writer, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else holds the database, until `rollback`."""
    other = sqlite3.connect(tmp_path / "history.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    yield other
    other.close()


def target(name: str) -> Any:
    """Work that writes a target."""
    return lambda connection: record.ensure_target(connection, name, "http://127.0.0.1:8000", NOON)


def names(connection: Connection) -> list[str]:
    """The targets in the order they were written."""
    return [row.name for row in sorted(queries.targets(connection), key=lambda row: row.id)]


def finished(futures: list[Future[Any]], timeout_s: float = 5.0) -> None:
    """Wait for all of them."""
    for future in futures:
        future.result(timeout_s)


def test_work_is_done_in_the_order_it_was_handed_over(store: Writer) -> None:
    wanted = [f"t{number}" for number in range(50)]
    futures = [store.submit(target(name)) for name in wanted]
    finished(futures)
    assert store.do(names) == wanted


def test_all_work_is_done_on_one_thread_that_is_not_the_callers(store: Writer) -> None:
    threads = {store.do(lambda _: threading.get_ident()) for _ in range(5)}
    assert len(threads) == 1
    assert threads.isdisjoint({threading.get_ident()})


def test_a_locked_database_loses_nothing_and_keeps_the_order(
    store: Writer, locked: sqlite3.Connection
) -> None:
    wanted = [f"t{number}" for number in range(20)]
    futures = [store.submit(target(name)) for name in wanted]
    time.sleep(0.4)
    assert not any(future.done() for future in futures)
    locked.execute("ROLLBACK")
    finished(futures)
    assert store.do(names) == wanted


def test_it_says_since_when_it_cannot_write_and_takes_it_back(
    store: Writer, locked: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    future = store.submit(target("a"))
    time.sleep(0.4)
    assert store.failing_since is not None
    assert [r.getMessage() for r in caplog.records if "database is locked" in r.getMessage()] != []
    assert len(caplog.records) == 1  # once, and not at every attempt
    locked.execute("ROLLBACK")
    finished([future])
    assert store.failing_since is None


def test_an_impatient_writer_fails_with_a_database_error_and_does_the_next_work(
    quick: None, tmp_path: Path
) -> None:
    path = tmp_path / "history.db"
    impatient = Writer(open_writer(str(path)), patient=False)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseError, match=r"cannot be written: database is locked") as told:
            impatient.do(target("a"))
        assert told.value.exit_code == 3
        other.execute("ROLLBACK")
    assert impatient.do(target("b"))
    impatient.close()
    other.close()


def test_a_full_queue_refuses_new_work_and_keeps_what_it_has(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "QUEUE_LIMIT", 3)
    store = Writer(open_writer(str(tmp_path / "history.db")))
    going, started = threading.Event(), threading.Event()
    first = store.submit(lambda _: (started.set(), going.wait(5)))
    started.wait(5)
    kept = [store.submit(target(name)) for name in ("a", "b", "c")]
    with pytest.raises(DatabaseError, match="3 writes wait"):
        store.submit(target("d")).result(1)
    going.set()
    finished([first, *kept])
    assert store.do(names) == ["a", "b", "c"]
    store.close()


def test_the_callers_own_error_comes_back_to_the_caller_and_leaves_nothing_half_written(
    store: Writer,
) -> None:
    def work(connection: Connection) -> None:
        target("half")(connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.do(work)
    assert store.do(names) == []


def test_a_row_that_the_database_refuses_is_a_database_error(store: Writer) -> None:
    def work(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO target (id, url) VALUES (1, 'x')")

    with pytest.raises(DatabaseError, match=r"rejected a row: NOT NULL"):
        store.do(work)


def test_work_that_fails_with_nobody_waiting_for_it_is_in_the_log(
    store: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    def work(connection: Connection) -> None:
        raise ZeroDivisionError("on purpose")

    store.submit(work)
    store.do(names)
    assert "on purpose" in caplog.text


def test_a_told_error_is_the_callers_to_tell_and_not_in_the_log(
    store: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    def work(connection: Connection) -> None:
        raise UserError("there is no incident 7")

    with pytest.raises(UserError):
        store.do(work)
    assert caplog.records == []


def test_closing_finishes_what_is_queued(quick: None, tmp_path: Path) -> None:
    store = Writer(open_writer(str(tmp_path / "history.db")))
    futures = [store.submit(target(f"t{number}")) for number in range(200)]
    store.close()
    assert all(future.done() for future in futures)


def test_closing_before_a_locked_database_ends_in_the_time_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 2.0)
    monkeypatch.setattr(writer, "QUEUE_LIMIT", 3)
    store = Writer(open_writer(str(tmp_path / "history.db")))
    with sqlite3.connect(tmp_path / "history.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        for number in range(6):
            store.submit(target(f"t{number}"))
            time.sleep(0.05)  # the first is at work, the queue is full
        began = time.monotonic()
        store.close(patience_s=0.3)
        assert time.monotonic() - began < 1.0
        other.execute("ROLLBACK")
    other.close()


def test_work_handed_over_after_the_close_fails_at_once_and_waits_for_nobody(store: Writer) -> None:
    store.close()
    with pytest.raises(DatabaseError, match="closed"):
        store.submit(target("late")).result(1)
