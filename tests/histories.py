"""A history for tests: created by the migrations, filled by the daemon's own functions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from monitor.alert.incidents import IncidentLog
from monitor.model import Finding, Incident, Kind, Outcome, Phase, Probe, Sample, Severity, Verdict
from monitor.store import record
from monitor.store.database import open_writer

T = TypeVar("T")
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def a_probe(name: str = "sky", **changes: Any) -> Probe:
    """A short chat probe, once a minute."""
    values: dict[str, Any] = {
        "name": name,
        "traffic_class": "chat",
        "endpoint": "chat",
        "messages": ({"role": "user", "content": "Is the sky blue? Answer yes or no."},),
        "prompt": None,
        "max_tokens": 8,
        "sampling": {"temperature": 0.0, "seed": 0},
        "every_s": 60.0,
        "cron": None,
        "max_wait_s": 2.0,
        "timeout_s": 30.0,
        "revision": "first",
    }
    return Probe(**values | changes)


def a_sample(**changes: Any) -> Sample:
    """A good warm sample of `sky` on `local` at noon."""
    values: dict[str, Any] = {
        "target": "local",
        "probe": "sky",
        "traffic_class": "chat",
        "started_at": NOON,
        "phase": Phase.WARM,
        "outcome": Outcome.OK,
        "verdict": Verdict.PASS,
        "ttft_ms": 40.0,
        "e2e_ms": 90.0,
        "output": "Yes",
    }
    return Sample(**values | changes)


def a_finding(**changes: Any) -> Finding:
    """A finding: the server does not answer."""
    values: dict[str, Any] = {
        "kind": Kind.SERVER_DOWN,
        "target": "local",
        "subject": "local",
        "severity": Severity.PAGE,
        "since": NOON,
    }
    return Finding(**values | changes)


@cache
def _empty() -> bytes:
    """The file of an empty history; the migrations run once for all tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        open_writer(str(path)).dispose()
        return path.read_bytes()


class History:
    """A database file with short methods to fill it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = str(path)
        path.write_bytes(_empty())
        self.engine = open_writer(self.database)

    def close(self) -> None:
        """Closes the database, as after the end of a daemon."""
        self.engine.dispose()

    def do(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in one transaction."""
        with self.engine.begin() as connection:
            return work(connection)

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """The rows of a query."""
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(text(query), values).mappings()]

    def target(
        self,
        name: str = "local",
        at: datetime = NOON,
        schedule: Mapping[str, float | str | None] | None = None,
    ) -> int:
        """Adds a target; returns its id."""

        def work(connection: Connection) -> int:
            target_id = record.ensure_target(connection, name, "http://127.0.0.1:8000", at)
            if schedule is not None:
                record.note_schedule(connection, target_id, schedule)
            return target_id

        return self.do(work)

    def sample(self, detail: str | None = None, **changes: Any) -> int:
        """Adds a sample, its target and its probe; returns its id."""
        return self.samples([a_sample(**changes)], detail)[0]

    def samples(self, samples: Sequence[Sample], detail: str | None = None) -> list[int]:
        """Adds samples in one transaction; returns their ids."""

        def work(connection: Connection) -> list[int]:
            ids = []
            for sample in samples:
                target_id = record.ensure_target(
                    connection, sample.target, "http://127.0.0.1:8000", sample.started_at
                )
                probe = a_probe(sample.probe, traffic_class=sample.traffic_class)
                revision_id = record.ensure_revision(connection, probe, sample.started_at)
                ids.append(
                    record.insert_sample(
                        connection,
                        replace(sample, fingerprint=None),
                        target_id=target_id,
                        revision_id=revision_id,
                        process_start_id=None,
                        fingerprint_id=None,
                        detail=detail,
                    )
                )
            return ids

        return self.do(work)

    def incident(
        self, now: datetime = NOON, channels: Sequence[str] = (), **changes: Any
    ) -> Incident:
        """Opens an incident."""
        return self.do(
            lambda connection: IncidentLog(connection, now, channels).report(a_finding(**changes))
        )
