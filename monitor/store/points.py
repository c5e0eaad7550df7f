"""The history as points for detection: the rows after a cursor, or a range of rows from beginning
to end.

Rows are read in the order in which they were stored, which is the order in which they became known,
and in pages, so that a year fits into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    String,
    Table,
    cast,
    func,
    select,
)

from monitor.model import CanaryPoint, GpuPoint, Outcome, ServerPoint, Verdict
from monitor.store import tables as t
from monitor.store.times import to_us

PAGE = 5_000
FOR_EVER_US = 1 << 62
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last rows that were processed, by their ids."""

    sample: int = 0
    server_reading: int = 0
    gpu_reading: int = 0


def _known_us(started_us: int, e2e_ms: float | None) -> int:
    """When a canary's result was known: at the end of its answer. One without a duration failed
    immediately.
    """
    return started_us + int((e2e_ms or 0.0) * 1000)


def _canary_select(target_id: int) -> Select[Any]:
    named = {
        "at_us": t.sample.c.started_at_us,
        "known_us": t.sample.c.started_at_us,  # plus e2e_ms, below
        "probe": t.probe.c.name,
        "traffic_class": t.probe_revision.c["class"],
        # not the digest, which changes as more fields of an identity become known
        "fingerprint": cast(t.sample.c.fingerprint_id, String),
        "process_start_us": func.coalesce(
            t.process_start.c.started_at_us, t.process_start.c.seen_at_us
        ),
    }
    columns = [named.get(name, t.sample.c.get(name)) for name in CanaryPoint._fields]
    return (
        select(t.sample.c.id, *columns)
        .join(t.probe_revision, t.probe_revision.c.id == t.sample.c.revision_id)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .outerjoin(t.process_start, t.process_start.c.id == t.sample.c.process_start_id)
        .where(_by_id(t.sample.c.target_id) == target_id)
    )


def _by_id(column: Column[Any]) -> ColumnElement[Any]:
    """A column as an expression that no index matches: new rows are few and last, and are found by
    their ids. With the index SQLite would read and sort every row of a target.
    """
    return func.coalesce(column, None)


_E2E = CanaryPoint._fields.index("e2e_ms") + 1
_STALE = CanaryPoint._fields.index("stale") + 1


def _canary(row: Row[Any]) -> CanaryPoint:
    values = list(row)
    values[2] = _known_us(values[1], values[_E2E])
    values[_STALE] = None if values[_STALE] is None else bool(values[_STALE])
    return CanaryPoint._make(values[1:])


def canaries_after(
    connection: Connection,
    target_id: int,
    after: int,
    limit: int = PAGE,
    until_us: int = FOR_EVER_US,
) -> list[tuple[int, CanaryPoint]]:
    """Samples of a target with greater ids, each with its id. Rows dated after `until_us` are left
    out: a clock was wrong there.
    """
    query = _canary_select(target_id).where(
        t.sample.c.id > after, t.sample.c.started_at_us <= until_us
    )
    query = query.order_by(t.sample.c.id).limit(limit)
    return [(row[0], _canary(row)) for row in connection.execute(query)]


def newest_canaries(
    connection: Connection, target_id: int, since: datetime, limit: int
) -> list[tuple[int, CanaryPoint]]:
    """Returns the newest samples of a target since a moment, in the order in which they were
    stored, each with its id.
    """
    newest = select(t.sample.c.id).where(t.sample.c.started_at_us >= to_us(since))
    return _newest(connection, target_id, newest, limit)


def last_runs(
    connection: Connection,
    target_id: int,
    probe: str,
    before: datetime,
    limit: int,
    verdicts: Collection[Verdict] = (),
) -> list[tuple[int, CanaryPoint]]:
    """Returns the newest samples of a probe from before a moment, however long ago they were; only
    those with one of the verdicts, if any is given.
    """
    revisions = (
        select(t.probe_revision.c.id)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .where(t.probe.c.name == probe)
    )
    newest = select(t.sample.c.id).where(
        t.sample.c.revision_id.in_(revisions), t.sample.c.started_at_us < to_us(before)
    )
    if verdicts:
        newest = newest.where(t.sample.c.verdict.in_(sorted(verdicts)))
    return _newest(connection, target_id, newest, limit)


def _newest(
    connection: Connection, target_id: int, ids: Select[tuple[int]], limit: int
) -> list[tuple[int, CanaryPoint]]:
    own = ids.where(t.sample.c.target_id == target_id)
    newest = own.order_by(t.sample.c.started_at_us.desc()).limit(limit)
    wanted = list(connection.execute(newest).scalars())
    query = _canary_select(target_id).where(t.sample.c.id.in_(wanted)).order_by(t.sample.c.id)
    return [(row[0], _canary(row)) for row in connection.execute(query)]


def last_starts(connection: Connection, target_id: int) -> dict[str, int]:
    """Returns the start of each probe's newest sample, cancelled ones left out."""
    newest = (
        select(func.max(t.sample.c.id))
        .join(t.probe_revision, t.probe_revision.c.id == t.sample.c.revision_id)
        .where(t.sample.c.target_id == target_id, t.sample.c.outcome != Outcome.CANCELLED.value)
        .group_by(t.probe_revision.c.probe_id)
    )
    query = (
        select(t.probe.c.name, t.sample.c.started_at_us)
        .join(t.probe_revision, t.probe_revision.c.id == t.sample.c.revision_id)
        .join(t.probe, t.probe.c.id == t.probe_revision.c.probe_id)
        .where(t.sample.c.id.in_(newest))
    )
    return {str(name): int(us) for name, us in connection.execute(query)}


def servers_after(
    connection: Connection,
    target_id: int,
    after: int,
    limit: int = PAGE,
    until_us: int = FOR_EVER_US,
) -> list[tuple[int, ServerPoint]]:
    """Readings of a target's metrics page with greater ids, as `canaries_after`."""
    table = t.server_reading
    columns = [table.c[name] for name in ServerPoint._fields]
    query = select(table.c.id, *columns).where(
        _by_id(table.c.target_id) == target_id, table.c.id > after, table.c.at_us <= until_us
    )
    return [
        (row[0], ServerPoint._make(row[1:]))
        for row in connection.execute(query.order_by(table.c.id).limit(limit))
    ]


#: Of the figures stored as minimum, median and maximum, detection uses the median: it is robust
#: against a single bad reading (docs/detection.md).
_MEDIANS = {"temp_c", "sm_clock_mhz", "power_w", "util"}


def gpus_after(
    connection: Connection,
    uuids: Collection[str],
    after: int,
    limit: int = PAGE,
    until_us: int = FOR_EVER_US,
) -> list[tuple[int, GpuPoint]]:
    """Readings of these GPUs with greater ids, as `canaries_after`."""
    table = t.gpu_reading
    names = {"uuid": "gpu_uuid"} | {name: f"{name}_median" for name in _MEDIANS}
    columns = [table.c[names.get(name, name)] for name in GpuPoint._fields]
    own = _by_id(table.c.gpu_uuid).in_(sorted(uuids))
    query = select(table.c.id, *columns).where(own, table.c.id > after, table.c.at_us <= until_us)
    return [
        (row[0], GpuPoint._make(row[1:]))
        for row in connection.execute(query.order_by(table.c.id).limit(limit))
    ]


def newest(connection: Connection) -> Cursor:
    """The last rows of all targets: the rows before them need not be searched again."""
    ids = (
        select(func.max(table.c.id)).scalar_subquery()
        for table in (t.sample, t.server_reading, t.gpu_reading)
    )
    return Cursor(*(int(found or 0) for found in connection.execute(select(*ids)).one()))


def cursor_at(
    connection: Connection, target_id: int, uuids: Collection[str], moment: datetime | None
) -> Cursor:
    """The last rows before a moment; None: the last rows of all."""

    def last(table: Table, at: Column[Any], own: ColumnElement[bool]) -> int:
        before = () if moment is None else (at < to_us(moment),)
        query = select(func.max(table.c.id)).where(own, *before)
        return int(connection.execute(query).scalar() or 0)

    return Cursor(
        last(t.sample, t.sample.c.started_at_us, t.sample.c.target_id == target_id),
        last(t.server_reading, t.server_reading.c.at_us, t.server_reading.c.target_id == target_id),
        last(t.gpu_reading, t.gpu_reading.c.at_us, t.gpu_reading.c.gpu_uuid.in_(sorted(uuids))),
    )


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """A range of one target's history as three streams: the rows after `begin`, up to and including
    those of `end`.
    """

    connection: Connection
    target_id: int
    uuids: Sequence[str]
    begin: Cursor
    end: Cursor
    until_us: int = FOR_EVER_US

    def canaries(self) -> Iterator[CanaryPoint]:
        """Samples in the order in which they were stored."""
        read = partial(canaries_after, self.connection, self.target_id, until_us=self.until_us)
        return _paged(read, self.begin.sample, self.end.sample)

    def servers(self) -> Iterator[ServerPoint]:
        """Readings of the metrics page."""
        read = partial(servers_after, self.connection, self.target_id, until_us=self.until_us)
        return _paged(read, self.begin.server_reading, self.end.server_reading)

    def gpus(self) -> Iterator[GpuPoint]:
        """Readings of all GPUs."""
        read = partial(gpus_after, self.connection, self.uuids, until_us=self.until_us)
        return _paged(read, self.begin.gpu_reading, self.end.gpu_reading)


def _paged(page: Callable[[int], list[tuple[int, P]]], after: int, end: int) -> Iterator[P]:
    while after < end and (rows := page(after)):
        for row_id, point in rows:
            if row_id > end:
                return
            yield point
        after = rows[-1][0]


def noted_gpus(connection: Connection, target_id: int) -> list[str]:
    """The GPUs of a target that the daemon has noted."""
    return list(
        connection.execute(select(t.target.c.gpus).where(t.target.c.id == target_id)).scalar() or []
    )


def gpus_of(connection: Connection, target_id: int) -> list[str]:
    """The GPUs of a target: those that the daemon has noted, and those named in its samples."""
    noted = noted_gpus(connection, target_id)
    named = (
        select(t.sample.c.gpu_uuid)
        .where(t.sample.c.target_id == target_id, t.sample.c.gpu_uuid.is_not(None))
        .distinct()
    )
    return sorted({*noted, *connection.execute(named).scalars()})


def classes_of(connection: Connection) -> set[str]:
    """The traffic classes of all probes that were ever measured."""
    return set(connection.execute(select(t.probe_revision.c["class"]).distinct()).scalars())
