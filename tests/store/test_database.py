"""Opening the history: who may write, who may read beside it, and how every failure is said."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from histories import History

from monitor.store import database
from monitor.store.database import DatabaseError, open_reader, open_writer, reading
from monitor.store.queries import SampleFilter, samples

#: Counts the samples of a history, or says why it cannot; as another user where one is given.
READ_AS = """
import json, os, sys
from monitor.store.database import DatabaseError, reading
from monitor.store.queries import SampleFilter, samples
path, user = sys.argv[1], int(sys.argv[2])
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
try:
    with reading(path) as connection:
        print(json.dumps(len(samples(connection, SampleFilter()))))
except DatabaseError as error:
    print(json.dumps(str(error)))
"""
WRITE_AS = """
import os, sys
from monitor.store import record
from monitor.store.database import open_writer
from histories import NOON
path, user = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(user); os.setuid(user)
with open_writer(path).begin() as connection:
    record.ensure_target(connection, "written", "http://127.0.0.1:1", NOON)
print("written")
"""
DAEMON, SOMEBODY = 65534, 12345
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can be another user for a while"
)


def program(text: str, path: Path, user: int) -> str:
    """What a program says that does something with a history as another user."""
    tests = str(Path(__file__).parent.parent)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([tests, str(Path(tests).parent)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", text, str(path), str(user)]
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=30, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Iterator[History]:
    """A history with one sample in a folder that other users may enter; pytest's own are closed to
    them.
    """
    folder = Path(tempfile.mkdtemp(prefix="vllm-canary-test-"))
    folder.chmod(0o755)
    made = History(folder / "history.db")
    made.sample()
    yield made
    made.close()
    shutil.rmtree(folder)


def given_to(history: History, user: int) -> None:
    """The daemon's user owns folder and files."""
    for path in [history.path.parent, *history.path.parent.iterdir()]:
        os.chown(path, user, user)


def test_a_folder_in_its_place_is_one_sentence_and_3(tmp_path: Path) -> None:
    for opening in (open_writer, open_reader):
        with pytest.raises(DatabaseError, match=rf"{tmp_path} cannot be (opened|read)") as told:
            opening(str(tmp_path))
        assert told.value.exit_code == 3


def test_a_text_file_in_its_place_is_one_sentence_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, and no database at all\n" * 50)
    before = path.read_bytes()
    for opening in (open_writer, open_reader):
        with pytest.raises(DatabaseError, match="file is not a database"):
            opening(str(path))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_place_under_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="cannot be opened"):
        open_writer(str(tmp_path / "file" / "history.db"))
    with pytest.raises(DatabaseError, match="no database at"):
        open_reader(str(tmp_path / "file" / "history.db"))


def test_missing_folders_are_made_by_a_writer_and_by_no_reader(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "history.db"
    with pytest.raises(DatabaseError, match=r"no database at .*creates one"):
        open_reader(str(path))
    assert not (tmp_path / "a").exists()
    open_writer(str(path)).dispose()
    assert path.exists()


@pytest.mark.parametrize("name", ["my history.db", "100%.db", "what?.db", "a#b.db", "ünï.db"])
def test_a_file_name_may_hold_any_character(name: str, tmp_path: Path) -> None:
    made = History(tmp_path / name)
    made.sample()
    made.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]
    with reading(str(tmp_path / name)) as connection:
        assert len(samples(connection, SampleFilter())) == 1


def test_an_sqlite_url_is_the_same_as_its_path(history: History) -> None:
    history.sample()
    with reading(f"sqlite:///{history.path}") as connection:
        assert len(samples(connection, SampleFilter())) == 1


@pytest.mark.parametrize(
    "url",
    [
        "://",
        "nonsense://x",
        "postgresql://me:s3cret@host:port/x",
        "postgresql+nodriver://me:s3cret@h/x",
        "sqlite://",
    ],
)
def test_an_address_that_is_none_is_one_sentence_without_its_password(url: str) -> None:
    for opening in (open_writer, open_reader):
        with pytest.raises(DatabaseError) as told:
            opening(url)
        assert "s3cret" not in str(told.value)
        assert "\n" not in str(told.value)


def test_an_empty_file_has_no_history_yet_and_becomes_one(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.touch()
    with pytest.raises(DatabaseError, match="no history yet"):
        open_reader(str(path))
    open_writer(str(path)).dispose()
    open_reader(str(path)).dispose()


def test_opening_a_history_writes_nothing_and_a_refused_one_is_let_go_at_once(
    history: History,
) -> None:
    history.sample()
    history.close()
    before = history.path.read_bytes()
    open_writer(history.database).dispose()
    assert history.path.read_bytes() == before
    with sqlite3.connect(history.path) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    newer.close()
    with pytest.raises(DatabaseError):
        open_writer(history.database)
    assert [p.name for p in history.path.parent.iterdir()] == [history.path.name]


def test_a_newer_history_is_the_users_to_mend_and_is_not_touched(history: History) -> None:
    history.sample()
    history.do(lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    history.close()
    before = history.path.read_bytes()
    for opening in (open_writer, open_reader):
        with pytest.raises(
            DatabaseError, match=r"newer vllm-canary \(schema 9999.*upgrade vllm-canary"
        ) as told:
            opening(history.database)
        assert told.value.exit_code == 2
    assert history.path.read_bytes() == before


def test_a_database_of_somebody_else_is_refused_whole_and_nothing_of_ours_stays_in_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE sample (colour TEXT)")
    with pytest.raises(DatabaseError, match="cannot be opened"):
        open_writer(str(path))
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("sample",)]


def test_a_damaged_history_is_one_sentence(history: History) -> None:
    for _ in range(30):
        history.sample(output="x" * 3000)
    history.close()
    content = bytearray(history.path.read_bytes())
    content[5000:60_000] = b"\xff" * 55_000
    history.path.write_bytes(content)
    with (
        pytest.raises(DatabaseError, match="cannot be read"),
        reading(history.database) as connection,
    ):
        samples(connection, SampleFilter())


def test_the_writer_keeps_what_it_promised_through_a_power_cut_and_can_shrink_later(
    history: History,
) -> None:
    with history.engine.connect() as connection:
        names = ("journal_mode", "synchronous", "auto_vacuum", "foreign_keys")
        pragmas = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2, "foreign_keys": 1}


def test_a_reader_cannot_write(history: History) -> None:
    history.sample()
    with pytest.raises(DatabaseError, match="readonly"), reading(history.database) as connection:
        connection.exec_driver_sql("DELETE FROM sample")
    assert history.rows("SELECT count(*) AS n FROM sample") == [{"n": 1}]


def test_a_reader_works_beside_a_writer_and_sees_what_was_just_committed(history: History) -> None:
    history.sample()
    with history.engine.begin() as busy:
        # a transaction that has not ended
        busy.exec_driver_sql("UPDATE target SET name = 'renamed'")
        with reading(history.database) as connection:
            assert [s.target for s in samples(connection, SampleFilter())] == ["local"]
    with reading(history.database) as connection:
        assert [s.target for s in samples(connection, SampleFilter())] == ["renamed"]


def test_a_writer_works_beside_a_reader(history: History) -> None:
    history.sample()
    with reading(history.database) as connection:
        assert len(samples(connection, SampleFilter())) == 1
        history.sample()


def test_a_second_writer_waits_its_turn_and_then_says_that_the_database_is_locked(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)
    with history.engine.begin(), pytest.raises(DatabaseError, match="database is locked"):
        open_writer(history.database)


@needs_root
def test_another_user_reads_while_the_daemon_has_it_open(shared: History) -> None:
    given_to(shared, DAEMON)
    assert shared.path.with_name("history.db-wal").exists()
    assert json.loads(program(READ_AS, shared.path, SOMEBODY)) == 1


@needs_root
def test_another_user_reads_when_the_daemon_was_stopped(shared: History) -> None:
    shared.close()
    given_to(shared, DAEMON)
    assert [p.name for p in shared.path.parent.iterdir()] == ["history.db"]
    assert json.loads(program(READ_AS, shared.path, SOMEBODY)) == 1
    assert [p.name for p in shared.path.parent.iterdir()] == ["history.db"]


@needs_root
def test_another_user_reads_what_a_killed_daemon_left(shared: History) -> None:
    left = shared.path.with_name("killed.db")
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{shared.path}{suffix}", f"{left}{suffix}")
    given_to(shared, DAEMON)
    assert json.loads(program(READ_AS, left, SOMEBODY)) == 1


@needs_root
def test_a_file_that_one_may_not_read_is_one_sentence(shared: History) -> None:
    shared.close()
    shared.path.chmod(0o600)
    told = json.loads(program(READ_AS, shared.path, SOMEBODY))
    assert str(shared.path) in told
    assert "cannot be read" in told


@needs_root
def test_a_folder_that_one_may_not_enter_is_one_sentence(shared: History) -> None:
    shared.path.parent.chmod(0o700)
    told = json.loads(program(READ_AS, shared.path, SOMEBODY))
    assert str(shared.path) in told


@needs_root
@pytest.mark.parametrize("reader", [0, SOMEBODY], ids=["root", "somebody"])
def test_what_a_reader_leaves_behind_does_not_stop_the_daemon_of_another_user(
    reader: int, shared: History
) -> None:
    shared.close()
    given_to(shared, DAEMON)
    shared.path.parent.chmod(0o777)  # the worst case: the reader may make files beside it
    assert json.loads(program(READ_AS, shared.path, reader)) == 1
    assert program(WRITE_AS, shared.path, DAEMON) == "written"
