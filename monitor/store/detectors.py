"""The state of drift detection by target, kept between two starts of the daemon, as text that only
the detector reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from monitor.store import tables as t
from monitor.store.points import Cursor


@dataclass(frozen=True, slots=True)
class StoredDetector:
    """One target's detector. `armed`: {what, armed, detail} of each part; `note`: why it rebuilt
    its baselines, if it did.
    """

    at_us: int
    version: str
    state: str
    armed: tuple[Mapping[str, Any], ...]
    cursor: Cursor
    pin: int  # the newest pin that it has read
    note: str | None = None


def stamp(connection: Connection, target_id: int) -> int | None:
    """When the state was written; None where there is none."""
    found = connection.execute(
        select(t.detector_state.c.at_us).where(t.detector_state.c.target_id == target_id)
    ).scalar()
    return None if found is None else int(found)


def load(connection: Connection, target_id: int) -> StoredDetector | None:
    """The stored detector of a target."""
    row = connection.execute(
        select(t.detector_state).where(t.detector_state.c.target_id == target_id)
    ).first()
    if row is None:
        return None
    cursor = Cursor(row.sample_id, row.server_reading_id, row.gpu_reading_id)
    return StoredDetector(
        at_us=row.at_us,
        version=row.version,
        state=row.state,
        armed=tuple(row.armed),
        cursor=cursor,
        pin=row.pin_id,
        note=row.note,
    )


def save(connection: Connection, target_id: int, stored: StoredDetector) -> None:
    """Stores a target's detector in place of the previous one."""
    values: dict[str, object] = {
        "at_us": stored.at_us,
        "version": stored.version,
        "state": stored.state,
        "armed": [dict(part) for part in stored.armed],
        "note": stored.note,
        "sample_id": stored.cursor.sample,
        "server_reading_id": stored.cursor.server_reading,
        "gpu_reading_id": stored.cursor.gpu_reading,
        "pin_id": stored.pin,
    }
    table = t.detector_state
    done = connection.execute(update(table).where(table.c.target_id == target_id).values(**values))
    if done.rowcount == 0:
        connection.execute(insert(table).values(target_id=target_id, **values))


@dataclass(frozen=True, slots=True)
class DetectorSummary:
    """Which parts of a target's detection are armed, without the state itself."""

    armed: tuple[Mapping[str, Any], ...]
    note: str | None


def summaries(connection: Connection) -> dict[int, DetectorSummary]:
    """The summary of each target's detector."""
    table = t.detector_state
    rows = connection.execute(select(table.c.target_id, table.c.armed, table.c.note))
    return {int(row.target_id): DetectorSummary(tuple(row.armed), row.note) for row in rows}


def note_gpus(connection: Connection, target_id: int, uuids: Sequence[str]) -> None:
    """Notes GPUs that serve a target, so that a replay can assign their readings."""
    known = (
        connection.execute(select(t.target.c.gpus).where(t.target.c.id == target_id)).scalar() or []
    )
    both = sorted({*known, *uuids})
    if both != sorted(known):
        connection.execute(update(t.target).where(t.target.c.id == target_id).values(gpus=both))
