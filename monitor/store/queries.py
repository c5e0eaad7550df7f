"""Queries of the history. Each takes a connection and plain values and returns plain values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from monitor.model import GpuEvent, Outcome, Sample
from monitor.store import tables as t
from monitor.store.sample_rows import sample_of, sample_select
from monitor.store.times import from_us, to_us


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Which samples; None matches every value."""

    since: datetime | None = None
    until: datetime | None = None
    target: str | None = None
    probe: str | None = None
    traffic_class: str | None = None
    outcome: str | None = None


def _filtered(query: Select[Any], wanted: SampleFilter) -> Select[Any]:
    if wanted.since is not None:
        query = query.where(t.sample.c.started_at_us >= to_us(wanted.since))
    if wanted.until is not None:
        query = query.where(t.sample.c.started_at_us < to_us(wanted.until))
    for column, value in (
        (t.target.c.name, wanted.target),
        (t.probe.c.name, wanted.probe),
        (t.probe_revision.c["class"], wanted.traffic_class),
        (t.sample.c.outcome, wanted.outcome),
    ):
        if value is not None:
            query = query.where(column == value)
    return query


def samples(connection: Connection, wanted: SampleFilter, limit: int | None = None) -> list[Sample]:
    """Samples in the order of their start; with a limit, the newest ones."""
    query = (
        _filtered(sample_select(), wanted)
        .order_by(t.sample.c.started_at_us.desc(), t.sample.c.id.desc())
        .limit(limit)
    )
    return [sample_of(row) for row in reversed(connection.execute(query).all())]


def detail(connection: Connection, target_id: int, probe: str, started_at: datetime) -> str | None:
    """Returns the stored sentence about one sample's failure."""
    query = (
        select(t.sample.c.detail)
        .join(t.probe_revision, t.probe_revision.c.id == t.sample.c.revision_id)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .where(
            t.sample.c.target_id == target_id,
            t.sample.c.started_at_us == to_us(started_at),
            t.probe.c.name == probe,
        )
        .order_by(t.sample.c.id.desc())
    )
    found = connection.execute(query).scalar()
    return None if found is None else str(found)


def sample(connection: Connection, sample_id: int) -> tuple[Sample, str | None] | None:
    """A sample with the sentence about its failure, if it has one."""
    row = connection.execute(
        sample_select().add_columns(t.sample.c.detail).where(t.sample.c.id == sample_id)
    ).first()
    return None if row is None else (sample_of(row), row.detail)


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A target as stored. `schedule`: by probe, seconds between runs or a cron line."""

    id: int
    name: str
    url: str
    schedule: dict[str, float | str | None]
    fingerprint_id: int | None
    process_start_id: int | None
    first_seen: datetime


def targets(connection: Connection) -> list[TargetRow]:
    """All targets, by name."""
    rows = connection.execute(select(t.target).order_by(t.target.c.name)).all()
    return [
        TargetRow(
            id=row.id,
            name=row.name,
            url=row.url,
            schedule=dict(row.probes or {}),
            fingerprint_id=row.fingerprint_id,
            process_start_id=row.process_start_id,
            first_seen=from_us(row.first_seen_us),
        )
        for row in rows
    ]


def target(connection: Connection, name: str) -> TargetRow | None:
    """One target by name."""
    return next((row for row in targets(connection) if row.name == name), None)


def is_watched(connection: Connection, target_id: int) -> bool:
    """Whether a daemon watches a target, or ever did: it stores its schedule there."""
    return bool(
        connection.execute(select(t.target.c.probes).where(t.target.c.id == target_id)).scalar()
    )


def known_names(connection: Connection, what: str) -> list[str]:
    """All names of a kind in the history: target, probe or class."""
    column = {
        "target": t.target.c.name,
        "probe": t.probe.c.name,
        "class": t.probe_revision.c["class"],
    }[what]
    return [
        str(name)
        for name in connection.execute(select(column).distinct().order_by(column)).scalars()
    ]


def unread_since(connection: Connection, since: datetime) -> list[str]:
    """Targets whose metrics page was not read since a moment: no daemon watches them."""
    table = t.server_reading
    watched = select(table.c.target_id).where(table.c.at_us >= to_us(since)).distinct()
    query = select(t.target.c.name).where(t.target.c.id.not_in(watched)).order_by(t.target.c.name)
    return [str(name) for name in connection.execute(query).scalars()]


def last_sample_of_each_probe(connection: Connection, target_name: str) -> list[Sample]:
    """The newest sample of every probe of a target, without cancelled ones."""
    newest = (
        select(func.max(t.sample.c.id).label("id"))
        .join(t.target, t.target.c.id == t.sample.c.target_id)
        .join(t.probe_revision, t.probe_revision.c.id == t.sample.c.revision_id)
        .where(t.target.c.name == target_name, t.sample.c.outcome != Outcome.CANCELLED.value)
        .group_by(t.probe_revision.c.probe_id)
        .subquery()
    )
    rows = connection.execute(sample_select().join(newest, newest.c.id == t.sample.c.id)).all()
    return sorted((sample_of(row) for row in rows), key=lambda s: s.probe)


def revision_id(connection: Connection, probe: str, digest: str) -> int | None:
    """The row of one revision of a probe."""
    query = (
        select(t.probe_revision.c.id)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .where(t.probe.c.name == probe, t.probe_revision.c.digest == digest)
    )
    found = connection.execute(query).scalar()
    return None if found is None else int(found)


def warmed_parameter_sets(
    connection: Connection, target_id: int, process_start_id: int
) -> set[str]:
    """Parameter sets that this start of the server has already answered with OK: their next canary
    is not cold.
    """
    query = (
        select(t.probe_revision.c.parameter_set)
        .join(t.sample, t.sample.c.revision_id == t.probe_revision.c.id)
        .where(
            t.sample.c.target_id == target_id,
            t.sample.c.process_start_id == process_start_id,
            t.sample.c.outcome == Outcome.OK.value,
        )
        .distinct()
    )
    return {str(name) for name in connection.execute(query).scalars()}


def tokens_between(
    connection: Connection, target_id: int, since: datetime, until: datetime
) -> list[tuple[datetime, int, str]]:
    """The prompt and answer tokens of each canary in that time, with its traffic class."""
    query = (
        select(
            t.sample.c.started_at_us,
            t.sample.c.prompt_tokens,
            t.sample.c.completion_tokens,
            t.probe_revision.c["class"],
        )
        .join(t.probe_revision, t.probe_revision.c.id == t.sample.c.revision_id)
        .where(
            t.sample.c.target_id == target_id,
            t.sample.c.started_at_us.between(to_us(since), to_us(until)),
        )
    )
    return [
        (from_us(r[0]), (r[1] or 0) + (r[2] or 0), str(r[3])) for r in connection.execute(query)
    ]


def process_start(connection: Connection, row_id: int) -> Row[Any] | None:
    """One start of a server's process."""
    return connection.execute(select(t.process_start).where(t.process_start.c.id == row_id)).first()


def last_counters(connection: Connection, target_id: int) -> Row[Any] | None:
    """The newest successful reading of a target's metrics page."""
    table = t.server_reading
    query = (
        select(table)
        .where(table.c.target_id == target_id, table.c.state == "ok")
        .order_by(table.c.at_us.desc())
        .limit(1)
    )
    return connection.execute(query).first()


def readings(connection: Connection, target_id: int, since: datetime) -> Sequence[Row[Any]]:
    """Readings of the metrics page since a moment, oldest first."""
    table = t.server_reading
    query = select(table).where(table.c.target_id == target_id, table.c.at_us >= to_us(since))
    return connection.execute(query.order_by(table.c.at_us)).all()


def gpu_events(connection: Connection, uuids: Collection[str], since: datetime) -> list[GpuEvent]:
    """Faults that the driver reported for these GPUs since a moment, oldest first."""
    table = t.gpu_event
    query = select(table).where(table.c.gpu_uuid.in_(sorted(uuids)), table.c.at_us >= to_us(since))
    return [
        GpuEvent(row.gpu_uuid, from_us(row.at_us), row.xid)
        for row in connection.execute(query.order_by(table.c.at_us, table.c.id))
    ]


def skipped(connection: Connection, target_id: int, since: datetime) -> dict[str, int]:
    """Skipped runs since a moment, by reason."""
    table = t.skipped_run
    query = select(table.c.reason, func.sum(table.c.count)).where(
        table.c.target_id == target_id, table.c.at_us >= to_us(since)
    )
    return {str(r[0]): int(r[1]) for r in connection.execute(query.group_by(table.c.reason))}
