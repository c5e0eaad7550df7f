"""The one thread of a process that writes. Work is a function of a connection; each runs in its own
transaction.

A database that is busy, full or unavailable for a while loses nothing: the work at the head of the
queue is retried until it succeeds, while up to QUEUE_LIMIT pieces of work wait behind it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError, OperationalError

from monitor.errors import UserError
from monitor.store.database import DatabaseError, reason

T = TypeVar("T")
log = logging.getLogger(__name__)
#: About three hours of a target with one canary and one reading every few seconds.
QUEUE_LIMIT = 20_000
RETRY_S = (0.5, 1.0, 2.0, 5.0)


class Writer:
    """Runs pieces of work one after the other. `patient`: retries without end (the daemon);
    otherwise fails after the first attempt.
    """

    def __init__(self, engine: Engine, patient: bool = True) -> None:
        self._engine = engine
        self._patient = patient
        self._work: queue.SimpleQueue[tuple[Callable[[Connection], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # nothing is queued after the end
        #: time.monotonic() since when the head of the queue cannot be written
        self.failing_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Queues one transaction. The future raises DatabaseError if the queue is full or the work
        fails.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._stopping.is_set():
                future.set_exception(
                    DatabaseError("the database is closed; no further writes are possible")
                )
            elif self._work.qsize() >= QUEUE_LIMIT:
                future.set_exception(
                    DatabaseError(f"{QUEUE_LIMIT} writes wait for the database; this one is lost")
                )
            else:
                self._work.put((work, future))
        return future

    def do(self, work: Callable[[Connection], T]) -> T:
        """Queues one transaction and waits for it."""
        return self.submit(work).result()

    def close(self, patience_s: float = 10.0) -> None:
        """Finishes the queue, then stops and closes the database. Returns after `patience_s` at the
        latest.
        """
        with self._lock:
            self._stopping.set()
            self._work.put(None)
        self._thread.join(patience_s)
        self._engine.dispose()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            if future.set_running_or_notify_cancel():
                self._attempt(work, future)

    def _attempt(self, work: Callable[[Connection], Any], future: Future[Any]) -> None:
        for attempt in range(1_000_000):
            try:
                with self._engine.begin() as connection:
                    result = work(connection)
            except OperationalError as error:  # busy, full, unavailable: may be temporary
                if not self._wait(attempt, error):
                    future.set_exception(
                        DatabaseError(f"the database cannot be written: {reason(error)}")
                    )
                    return
            except IntegrityError as error:
                log.error("a write is lost: the database rejected a row: %s", reason(error))
                future.set_exception(DatabaseError(f"the database rejected a row: {reason(error)}"))
                return
            # Any error of the work belongs to its caller, not to this thread.
            except Exception as error:
                # Where no caller waits, it must not be lost.
                if not isinstance(error, UserError):
                    log.exception("a write failed and is lost")
                future.set_exception(error)
                return
            else:
                self.failing_since = None
                future.set_result(result)
                return

    def _wait(self, attempt: int, error: OperationalError) -> bool:
        if self.failing_since is None:
            self.failing_since = time.monotonic()
            log.warning("the database cannot be written, retrying: %s", reason(error))
        return self._patient and not self._stopping.wait(RETRY_S[min(attempt, len(RETRY_S) - 1)])
