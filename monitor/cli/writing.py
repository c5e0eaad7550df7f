"""One change to the history, made by a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from monitor.store.database import open_writer
from monitor.store.writer import Writer

T = TypeVar("T")


def write_once(database: str, work: Callable[[Connection], T]) -> T:
    """Runs one transaction and closes the database. Raises DatabaseError."""
    writer = Writer(open_writer(database), patient=False)
    try:
        return writer.do(work)
    finally:
        writer.close()
