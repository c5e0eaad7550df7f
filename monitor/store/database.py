"""Opens the history: a writer that migrates, readers that never write, and every failure as one
sentence.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError as UrlError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from monitor.errors import UNMEASURED, USAGE, UserError

#: The newest migration this program knows; a test compares it with the folder.
HEAD = "0001"
KNOWN_REVISIONS = ("0001",)
BUSY_TIMEOUT_S = 10.0
INCREMENTAL = 2  # sqlite.org/pragma.html#pragma_auto_vacuum


class DatabaseError(UserError):
    """The history cannot be used. `usage` is true for an error of the user (exit 2), false where
    the database cannot be reached (exit 3).
    """

    def __init__(self, text: str, usage: bool = False) -> None:
        self.usage = usage
        self.exit_code = USAGE if usage else UNMEASURED
        super().__init__(text)


def is_sqlite(database: str) -> bool:
    """Whether the setting is a file, and not a database server."""
    return "://" not in database or database.startswith("sqlite://")


def sqlite_path(database: str) -> Path:
    """The file of an SQLite setting, given as a path or as a sqlite:/// URL."""
    return Path(_url(database).database or "") if "://" in database else Path(database)


def shown(database: str) -> str:
    """The setting with passwords masked, for display. Raises DatabaseError for an invalid URL."""
    return _url(database).render_as_string(hide_password=True) if "://" in database else database


def _url(database: str) -> URL:
    try:
        return make_url(database)
    # Neither the setting nor the reason is shown: a misplaced part of it may be the password.
    except (UrlError, ValueError):
        mend = (
            "it must be a path, or a URL such as postgresql://USER@HOST/NAME with every : / @ in "
            "its password written as %3A %2F %40"
        )
        raise DatabaseError(f"the database setting is not valid; {mend}", usage=True) from None


def open_writer(database: str) -> Engine:
    """Opens an engine that may write, with the schema up to date. Raises DatabaseError."""
    try:
        engine = (
            _sqlite_writer(sqlite_path(database))
            if is_sqlite(database)
            else create_engine(_url(database), pool_pre_ping=True)
        )
        with _disposed_on_failure(engine):
            _migrate(engine, database)
    except (SQLAlchemyError, sqlite3.Error, OSError, ImportError) as error:
        raise DatabaseError(
            f"the database {shown(database)} cannot be opened: {reason(error)}"
        ) from None
    return engine


def file_of(database: str) -> tuple[int, int] | None:
    """The file at this path now (device and inode); None where there is none, or the database is
    not a file.
    """
    if not is_sqlite(database):
        return None
    try:
        found = sqlite_path(database).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_reader(database: str) -> Engine:
    """Opens an engine that only reads, even while a daemon runs and without write permission.
    Raises DatabaseError.
    """
    try:
        engine = (
            _sqlite_reader(sqlite_path(database))
            if is_sqlite(database)
            else create_engine(_url(database), poolclass=NullPool)
        )
        with engine.connect() as connection:
            revision = _revision(connection)
    except (SQLAlchemyError, sqlite3.Error, OSError, ImportError) as error:
        raise DatabaseError(
            f"the database {shown(database)} cannot be read: {reason(error)}"
        ) from None
    _refuse_newer(revision, database)
    if revision != HEAD:
        raise DatabaseError(
            f"the database {shown(database)} has no history yet; `vllm-canary run` or `probe` "
            "creates one"
        )
    return engine


@contextmanager
def reading(database: str) -> Iterator[Connection]:
    """Opens a connection for reading; database errors inside become DatabaseError."""
    engine = open_reader(database)
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        raise DatabaseError(
            f"the database {shown(database)} cannot be read: {reason(error)}"
        ) from None
    finally:
        engine.dispose()


@contextmanager
def _disposed_on_failure(engine: Engine) -> Iterator[None]:
    """Closes a refused database at once, and not at the next garbage collection."""
    try:
        yield
    except BaseException:
        engine.dispose()
        raise


def _sqlite_writer(path: Path) -> Engine:
    path.parent.mkdir(parents=True, exist_ok=True)
    url = URL.create("sqlite", database=str(path))  # from parts: a ? in the name is not a query
    engine = create_engine(
        url, connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def _settings(connection: sqlite3.Connection, _record: object) -> None:
        # Setting it again would write; it takes effect only before the first table.
        if connection.execute("PRAGMA auto_vacuum").fetchone() != (INCREMENTAL,):
            connection.execute(f"PRAGMA auto_vacuum={INCREMENTAL}")
        connection.execute("PRAGMA journal_mode=WAL")
        # A power failure must not lose an incident that was acted on.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # Takes the write lock first: waiting is better than failing half-way.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _sqlite_reader(path: Path) -> Engine:
    if not path.exists():
        raise DatabaseError(
            f"there is no database at {path}; `vllm-canary run` or `probe` creates one"
        )

    def connect() -> sqlite3.Connection:
        uri = f"file:{quote(str(path))}?mode=ro"
        if not os.access(path, os.W_OK) and not Path(f"{path}-wal").exists():
            # No process has it open. SQLite would create a -wal file of ours next to it, which its
            # owner could not write.
            return _readable(f"{uri}&immutable=1")
        try:
            return _readable(uri)
        except sqlite3.OperationalError:
            # A user who may not create the -shm file can still read a database that no process has
            # open.
            if Path(f"{path}-wal").exists():
                mend = (
                    "a daemon that was killed left writes in its -wal file; start it again, "
                    "or read as a user who may write to that folder"
                )
                raise DatabaseError(f"the database {path} cannot be read: {mend}") from None
            return _readable(f"{uri}&immutable=1")

    return create_engine("sqlite://", creator=connect, poolclass=NullPool)


def _readable(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _revision(connection: Connection) -> str | None:
    """The schema's version; None for an empty database."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    row = connection.execute(text("SELECT version_num FROM alembic_version")).fetchone()
    return None if row is None else str(row[0])


def _refuse_newer(revision: str | None, database: str) -> None:
    if revision is not None and revision not in KNOWN_REVISIONS:
        raise DatabaseError(
            f"the database {shown(database)} was written by a newer vllm-canary (schema "
            f"{revision}, this version supports {HEAD}); upgrade vllm-canary or use "
            "another database",
            usage=True,
        )


def _migrate(engine: Engine, database: str) -> None:
    with engine.connect() as connection:
        revision = _revision(connection)
    _refuse_newer(revision, database)
    if revision == HEAD:
        return
    from monitor.store.migrate import upgrade  # noqa: PLC0415 - Alembic: 0.1 s, once per version

    upgrade(engine)


def reason(error: BaseException) -> str:
    """The database's own message, without SQL and addresses."""
    original = getattr(error, "orig", None) or error
    return " ".join(str(original).split()) or type(error).__name__
