"""Writes made while measuring: targets, probe revisions, samples, readings, skipped runs. Each
function is part of a transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, Table, delete, insert, select, update

from monitor.model import GpuEvent, Probe, Sample, ServerPage
from monitor.store import tables as t
from monitor.store.times import maybe_us, to_us
from monitor.text import one_line, whole_text


def ensure_target(connection: Connection, name: str, url: str, now: datetime) -> int:
    """The id of a target, created if missing; a changed address is stored."""
    row = connection.execute(
        select(t.target.c.id, t.target.c.url).where(t.target.c.name == name)
    ).first()
    if row is None:
        return _new_id(connection, t.target, name=name, url=url, first_seen_us=to_us(now))
    if row.url != url:
        connection.execute(update(t.target).where(t.target.c.id == row.id).values(url=url))
    return int(row.id)


def note_schedule(
    connection: Connection, target_id: int, schedule: Mapping[str, float | str | None]
) -> None:
    """Stores the schedule of a target: by probe, seconds between runs or a cron line."""
    connection.execute(
        update(t.target).where(t.target.c.id == target_id).values(probes=dict(schedule))
    )


def ensure_revision(connection: Connection, probe: Probe, now: datetime) -> int:
    """The id of a probe's current revision. A changed definition is a new revision; the history
    keeps the old one.
    """
    probe_id = connection.execute(select(t.probe.c.id).where(t.probe.c.name == probe.name)).scalar()
    if probe_id is None:
        probe_id = _new_id(connection, t.probe, name=probe.name)
    table = t.probe_revision
    found = connection.execute(
        select(table.c.id).where(table.c.probe_id == probe_id, table.c.digest == probe.revision)
    ).scalar()
    if found is not None:
        return int(found)
    values = {
        "probe_id": probe_id,
        "digest": probe.revision,
        "class": probe.traffic_class,
        "parameter_set": probe.parameter_set,
        "definition": definition(probe),
        "first_seen_us": to_us(now),
    }
    return _new_id(connection, table, **values)


def definition(probe: Probe) -> dict[str, object]:
    """A probe as JSON, as it was run."""
    return {
        k: v for k, v in asdict(probe).items() if v is not None and k not in {"name", "revision"}
    }


def ensure_output(connection: Connection, text: str) -> int:
    """The id of an answer's text; each distinct text is stored once. Characters that a database
    does not accept (monitor/text.py) become U+FFFD.
    """
    text = whole_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    found = connection.execute(select(t.output.c.id).where(t.output.c.sha256 == digest)).scalar()
    return (
        int(found) if found is not None else _new_id(connection, t.output, sha256=digest, text=text)
    )


_STORED_AS_IS = {c.name for c in t.sample.columns} & set(Sample.__dataclass_fields__) - {"id"}


def insert_sample(
    connection: Connection,
    sample: Sample,
    *,
    target_id: int,
    revision_id: int,
    process_start_id: int | None,
    fingerprint_id: int | None,
    detail: str | None,
    retry_of: int | None = None,
) -> int:
    """Stores a sample and returns its id."""
    values = {name: getattr(sample, name) for name in _STORED_AS_IS}
    values["finish_reason"] = (
        None if sample.finish_reason is None else one_line(whole_text(sample.finish_reason))
    )
    values |= {
        "phase": sample.phase.value,
        "outcome": sample.outcome.value,
        "verdict": sample.verdict.value,
    }
    return _new_id(
        connection,
        t.sample,
        **values,
        target_id=target_id,
        revision_id=revision_id,
        process_start_id=process_start_id,
        fingerprint_id=fingerprint_id,
        output_id=None if sample.output is None else ensure_output(connection, sample.output),
        started_at_us=to_us(sample.started_at),
        detail=None if detail is None else one_line(whole_text(detail)),
        retry_of=retry_of,
    )


_READING_COLUMNS = {c.name for c in t.server_reading.columns} & set(ServerPage.__dataclass_fields__)


def insert_server_reading(
    connection: Connection, target_id: int, page: ServerPage, process_start_id: int | None
) -> None:
    """Stores a reading of the metrics page; counters as read, so that nothing between two readings
    is lost.
    """
    values = {name: getattr(page, name) for name in _READING_COLUMNS}
    values |= {
        "target_id": target_id,
        "at_us": to_us(page.at),
        "process_start_id": process_start_id,
    }
    connection.execute(insert(t.server_reading).values(**values))


_GPU_COLUMNS = {c.name for c in t.gpu_reading.columns} - {"id", "gpu_uuid", "at_us"}


def insert_gpu_reading(
    connection: Connection, uuid: str, at: datetime, values: Mapping[str, object]
) -> None:
    """Stores one window of a GPU: minimum, median and maximum, and the counters at its end."""
    chosen = {name: values[name] for name in _GPU_COLUMNS if name in values}
    connection.execute(insert(t.gpu_reading).values(gpu_uuid=uuid, at_us=to_us(at), **chosen))


def insert_gpu_event(connection: Connection, event: GpuEvent) -> None:
    """Stores a fault that the driver reported; a second one with the same number is a second
    row.
    """
    connection.execute(
        insert(t.gpu_event).values(gpu_uuid=event.uuid, at_us=to_us(event.at), xid=event.xid)
    )


def insert_skipped(
    connection: Connection, target_id: int, probe: str, at: datetime, *, reason: str, count: int = 1
) -> None:
    """Counts skipped runs with the reason: a gap in the history must have an explanation."""
    connection.execute(
        insert(t.skipped_run).values(
            target_id=target_id, probe=probe, at_us=to_us(at), reason=reason, count=count
        )
    )


def start_process(
    connection: Connection,
    target_id: int,
    started_at: datetime | None,
    seen_at: datetime,
    source: str,
) -> int:
    """Stores a new start of the server's process, and makes it the current one."""
    row_id = _new_id(
        connection,
        t.process_start,
        target_id=target_id,
        started_at_us=maybe_us(started_at),
        seen_at_us=to_us(seen_at),
        source=source,
    )
    connection.execute(
        update(t.target).where(t.target.c.id == target_id).values(process_start_id=row_id)
    )
    return row_id


def note_first_answer(connection: Connection, process_start_id: int, at: datetime) -> None:
    """Stores the time of a start's first OK answer; later answers change nothing."""
    table = t.process_start
    connection.execute(
        update(table)
        .where(table.c.id == process_start_id, table.c.first_answer_at_us.is_(None))
        .values(first_answer_at_us=to_us(at))
    )


def take_lease(
    connection: Connection,
    name: str,
    holder: str,
    now: datetime,
    until: datetime,
    is_dead: Callable[[str], bool] = lambda _holder: False,
) -> bool:
    """Takes or renews a lease; False while another holder has it that is not known to be dead."""
    row = connection.execute(
        select(t.lease.c.holder, t.lease.c.expires_at_us).where(t.lease.c.name == name)
    ).first()
    if (
        row is not None
        and row.holder != holder
        and row.expires_at_us > to_us(now)
        and not is_dead(row.holder)
    ):
        return False
    if row is None:
        connection.execute(
            insert(t.lease).values(name=name, holder=holder, expires_at_us=to_us(until))
        )
    else:
        connection.execute(
            update(t.lease)
            .where(t.lease.c.name == name)
            .values(holder=holder, expires_at_us=to_us(until))
        )
    return True


def release_lease(connection: Connection, name: str, holder: str) -> None:
    """Releases a lease, unless another holder has it."""
    connection.execute(delete(t.lease).where(t.lease.c.name == name, t.lease.c.holder == holder))


def _new_id(connection: Connection, table: Table, **values: object) -> int:
    key = connection.execute(insert(table).values(**values)).inserted_primary_key
    if key is None:
        raise RuntimeError(f"the database returned no id for a row of {table.name}")
    return int(key[0])
