"""Identities in the history: one row for each identity of a target, and which one is current."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from monitor.model import FingerprintField
from monitor.store import tables as t
from monitor.store.times import from_us, to_us

Fields = Mapping[str, FingerprintField]


@dataclass(frozen=True, slots=True)
class StoredFingerprint:
    """One identity of a target. `earlier`: its digests while fewer of its fields were known."""

    id: int
    digest: str
    earlier: tuple[str, ...]
    fields: dict[str, FingerprintField]
    first_seen: datetime
    last_seen: datetime


def current(connection: Connection, target_id: int) -> StoredFingerprint | None:
    """The identity of the target at its last reading."""
    query = (
        select(t.fingerprint)
        .join(t.target, t.target.c.fingerprint_id == t.fingerprint.c.id)
        .where(t.target.c.id == target_id)
    )
    row = connection.execute(query).first()
    return None if row is None else _stored(row)


def all_of(connection: Connection, target_id: int) -> list[StoredFingerprint]:
    """Every identity of a target, the newest first."""
    query = (
        select(t.fingerprint)
        .where(t.fingerprint.c.target_id == target_id)
        .order_by(t.fingerprint.c.last_seen_us.desc())
    )
    return [_stored(row) for row in connection.execute(query)]


def named(connection: Connection, target_id: int, digest: str) -> StoredFingerprint | None:
    """The identity that has this digest, or had it while fewer of its fields were known."""
    known = all_of(connection, target_id)
    return next((one for one in known if one.digest == digest), None) or next(
        (one for one in known if digest in one.earlier), None
    )


def save(
    connection: Connection,
    target_id: int,
    digest: str,
    fields: Fields,
    now: datetime,
    row_id: int | None = None,
) -> int:
    """Stores an identity and makes it current: in the row `row_id` (the same one, with more fields
    known), or as a new one. Returns its row.
    """
    values: dict[str, object] = {
        "digest": digest,
        "fields": _as_json(fields),
        "last_seen_us": to_us(now),
    }
    if row_id is None:
        key = connection.execute(
            insert(t.fingerprint).values(target_id=target_id, first_seen_us=to_us(now), **values)
        ).inserted_primary_key
        row_id = int(key[0]) if key is not None else 0
    else:
        values["earlier"] = _earlier(connection, row_id, digest)
        connection.execute(
            update(t.fingerprint).where(t.fingerprint.c.id == row_id).values(**values)
        )
    connection.execute(
        update(t.target).where(t.target.c.id == target_id).values(fingerprint_id=row_id)
    )
    return row_id


def _earlier(connection: Connection, row_id: int, digest: str) -> list[str]:
    """The earlier digests of an identity that gets this digest now."""
    row = connection.execute(
        select(t.fingerprint.c.digest, t.fingerprint.c.earlier).where(t.fingerprint.c.id == row_id)
    ).one()
    return [known for known in dict.fromkeys([*row.earlier, row.digest]) if known != digest]


def _as_json(fields: Fields) -> dict[str, dict[str, object]]:
    return {
        name: {k: v for k, v in asdict(field).items() if k != "name" and v is not None}
        for name, field in fields.items()
    }


def _stored(row: Row[Any]) -> StoredFingerprint:
    fields = {
        name: FingerprintField(name, f["role"], f.get("value"), f.get("source"), f.get("reason"))
        for name, f in row.fields.items()
    }
    return StoredFingerprint(
        id=row.id,
        digest=row.digest,
        earlier=tuple(row.earlier),
        fields=fields,
        first_seen=from_us(row.first_seen_us),
        last_seen=from_us(row.last_seen_us),
    )


def gpu_models(connection: Connection) -> dict[str, str]:
    """The models of all GPUs of the identities that are served now, by UUID."""
    query = select(t.fingerprint).join(t.target, t.target.c.fingerprint_id == t.fingerprint.c.id)
    served = [_stored(row).fields.get("gpu") for row in connection.execute(query)]
    gpus = [gpu for one in served if one is not None for gpu in one.value or ()]
    return {gpu["uuid"]: gpu["name"] for gpu in gpus if gpu.get("name")}
