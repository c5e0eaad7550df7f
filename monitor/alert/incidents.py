"""The life of an incident: opened, updated, closed, each together with its deliveries in the
transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from monitor.alert import outbox
from monitor.errors import USAGE, UserError
from monitor.model import Cause, Change, Finding, Incident, Kind, Severity
from monitor.show.findings import paragraph
from monitor.store import tables as t
from monitor.store.times import from_us, maybe_from_us, to_us

OVER = {
    Kind.SERVER_DOWN: "the server answers again",
    Kind.HUNG: "the engine moves again",
    Kind.NO_SAMPLES: "the probe measures again",
    Kind.UNKNOWN_LASTING: "the probe is answered, and its answers are judged again",
    Kind.QUALITY: "the answers are right again",
    Kind.NEAR_TIES: "near ties are rare again",
    Kind.PIN_EXPIRED: "it was pinned anew, or judges no more",
    Kind.GPU_FAULT: "the GPU answers and has reported no fault of late",
    Kind.TELEMETRY_BLIND: "the GPU can be read again",
    Kind.DRIVER_MISMATCH: "driver and library agree again",
    Kind.SPEED: "it is as fast as before",
    Kind.THERMAL: "the GPU is no longer held back by heat, or was taken out",
    Kind.POWER: "the GPU is no longer held back by its power, or was taken out",
    Kind.SERVICE_LEVEL: "the first token comes in time again",
    Kind.SLOW_START: "the process was started anew, or is as fast as before",
    Kind.WORKLOAD_SHIFT: (
        "the prompts are again as long as they were, or that length is now what is usual"
    ),
    Kind.MONITOR: "the monitor works again",
}


class IncidentError(UserError):
    """Something that cannot be done with an incident."""

    exit_code = USAGE


def report(
    connection: Connection, finding: Finding, now: datetime, channels: Sequence[str]
) -> Incident:
    """A finding that holds now: its incident is opened, or updated where the finding says something
    new. Never a second one for a key.
    """
    existing = _open_by_key(connection, finding.key)
    if existing is None:
        return _open(connection, finding, now, channels)
    return _update(connection, existing, finding, now, channels)


def reconcile(
    connection: Connection,
    target: str,
    kinds: Iterable[Kind],
    findings: Sequence[Finding],
    now: datetime,
    channels: Sequence[str],
    is_over: Callable[[Incident], bool] = lambda _incident: True,
) -> None:
    """Make the open incidents of these kinds agree with what was judged just now: each finding
    reported, the rest closed as over.

    `is_over` keeps one open although nothing was found: after a restart of ours there may be no
    evidence yet, of either.
    """
    for finding in findings:
        report(connection, finding, now, channels)
    keys = {finding.key for finding in findings}
    for incident in open_incidents(connection, target, kinds):
        if incident.key not in keys and is_over(incident):
            close(connection, incident, now, OVER.get(incident.kind, "it is over"), channels)


def _open(
    connection: Connection, finding: Finding, now: datetime, channels: Sequence[str]
) -> Incident:
    values = {
        "kind": finding.kind.value,
        "target": finding.target,
        "subject": finding.subject,
        "severity": finding.severity.value,
        "cause": finding.cause.value if finding.cause else None,
        "summary": paragraph(finding),
        "changes": [asdict(change) for change in finding.changes],
        "evidence": dict(finding.evidence),
        "opened_at_us": to_us(now),
    }
    key = connection.execute(insert(t.incident).values(**values)).inserted_primary_key
    incident = get(connection, int(key[0]) if key is not None else 0)
    _note_finding(connection, incident.id, finding, now)
    _event(connection, incident, now, "opened", channels)
    return incident


def _update(
    connection: Connection,
    existing: Incident,
    finding: Finding,
    now: datetime,
    channels: Sequence[str],
) -> Incident:
    """A new severity, cause or change is news for people; moving figures are kept without a
    word.
    """
    changes = _chained(existing.changes, finding.changes)
    news = (finding.severity, finding.cause, changes) != (
        existing.severity,
        existing.cause,
        existing.changes,
    )
    if not news and dict(finding.evidence) == dict(existing.evidence):
        return existing
    # What it was before the first change stays the place to roll back to.
    evidence = {
        **finding.evidence,
        **{
            k: v
            for k, v in existing.evidence.items()
            if k in {"digest_before", "fingerprint_before"}
        },
    }
    values = {
        "severity": finding.severity.value,
        "cause": finding.cause.value if finding.cause else None,
        "summary": paragraph(finding),
        "changes": [asdict(change) for change in changes],
        "evidence": evidence,
    }
    connection.execute(update(t.incident).where(t.incident.c.id == existing.id).values(**values))
    incident = get(connection, existing.id)
    if news:
        _note_finding(connection, incident.id, finding, now)
        _event(connection, incident, now, "updated", channels)
    return incident


def set_evidence(connection: Connection, incident: Incident, values: Mapping[str, Any]) -> None:
    """Keep a figure of an open incident true, without a word to anybody."""
    connection.execute(
        update(t.incident)
        .where(t.incident.c.id == incident.id)
        .values(evidence={**incident.evidence, **values})
    )


def tell_more(
    connection: Connection,
    incident: Incident,
    summary: str,
    severity: Severity,
    evidence: Mapping[str, Any],
    now: datetime,
    channels: Sequence[str],
) -> None:
    """Something new about an open incident that came from elsewhere than its own judge; people are
    told.
    """
    values = {
        "summary": summary,
        "severity": severity.value,
        "evidence": {**incident.evidence, **evidence},
    }
    connection.execute(update(t.incident).where(t.incident.c.id == incident.id).values(**values))
    _event(connection, get(connection, incident.id), now, "updated", channels)


def _chained(earlier: Sequence[Change], later: Sequence[Change]) -> tuple[Change, ...]:
    """Changes of the same fields one after the other as one: from what it was at first to what it
    is now.
    """
    first = {change.field: change.before for change in earlier}
    return tuple(Change(c.field, first.get(c.field, c.before), c.after) for c in later)


def close(
    connection: Connection, incident: Incident, now: datetime, reason: str, channels: Sequence[str]
) -> None:
    """Close an incident with the reason and tell it; closing a closed one does nothing."""
    done = connection.execute(
        update(t.incident)
        .where(t.incident.c.id == incident.id, t.incident.c.closed_at_us.is_(None))
        .values(closed_at_us=to_us(now), close_reason=reason)
    )
    if done.rowcount == 1:
        _event(connection, get(connection, incident.id), now, "resolved", channels, reason)


def acknowledge(
    connection: Connection, incident_id: int, now: datetime, note: str | None
) -> Incident:
    """Somebody has seen it. Raises IncidentError for an unknown or closed one."""
    incident = get(connection, incident_id)
    if incident.closed_at is not None:
        raise IncidentError(
            f"incident {incident_id} is closed ({incident.close_reason}); there is nothing to "
            "acknowledge"
        )
    connection.execute(
        update(t.incident)
        .where(t.incident.c.id == incident_id, t.incident.c.acknowledged_at_us.is_(None))
        .values(acknowledged_at_us=to_us(now))
    )
    _log_event(connection, incident_id, now, "acknowledged", note)
    return get(connection, incident_id)


def close_by_hand(
    connection: Connection, incident_id: int, now: datetime, reason: str, channels: Sequence[str]
) -> Incident:
    """A person closes it; if what was found still holds, it opens anew. Raises IncidentError."""
    incident = get(connection, incident_id)
    if incident.closed_at is not None:
        raise IncidentError(f"incident {incident_id} is already closed ({incident.close_reason})")
    close(connection, incident, now, reason, channels)
    return get(connection, incident_id)


def add_note(connection: Connection, incident_id: int, now: datetime, text: str) -> Incident:
    """Keep a remark with an incident, open or closed. Raises IncidentError for an unknown one."""
    incident = get(connection, incident_id)
    _log_event(connection, incident_id, now, "note", text)
    return incident


def open_incidents(
    connection: Connection, target: str | None = None, kinds: Iterable[Kind] | None = None
) -> list[Incident]:
    """What is open, the oldest first."""
    query = select(t.incident).where(t.incident.c.closed_at_us.is_(None))
    if target is not None:
        query = query.where(t.incident.c.target == target)
    if kinds is not None:
        query = query.where(t.incident.c.kind.in_([kind.value for kind in kinds]))
    return [
        _incident(row)
        for row in connection.execute(query.order_by(t.incident.c.opened_at_us, t.incident.c.id))
    ]


def recent(
    connection: Connection, since: datetime | None, target: str | None, limit: int | None
) -> list[Incident]:
    """Incidents opened since a moment, and all that are open, the newest first."""
    query = select(t.incident)
    if since is not None:
        query = query.where(
            (t.incident.c.opened_at_us >= to_us(since)) | t.incident.c.closed_at_us.is_(None)
        )
    if target is not None:
        query = query.where(t.incident.c.target == target)
    query = query.order_by(t.incident.c.opened_at_us.desc(), t.incident.c.id.desc()).limit(limit)
    return [_incident(row) for row in connection.execute(query)]


def get(connection: Connection, incident_id: int) -> Incident:
    """One incident. Raises IncidentError when there is none of that number."""
    row = connection.execute(select(t.incident).where(t.incident.c.id == incident_id)).first()
    if row is None:
        raise IncidentError(
            f"there is no incident {incident_id}; `vllm-canary incidents` lists them"
        )
    return _incident(row)


def events(connection: Connection, incident_id: int) -> list[dict[str, Any]]:
    """What happened to an incident, in order."""
    table = t.incident_event
    rows = connection.execute(
        select(table).where(table.c.incident_id == incident_id).order_by(table.c.id)
    )
    return [{"at": from_us(row.at_us), "event": row.event, "text": row.text} for row in rows]


def _open_by_key(connection: Connection, key: tuple[str, str, str]) -> Incident | None:
    kind, target, subject = key
    query = select(t.incident).where(
        t.incident.c.kind == kind,
        t.incident.c.target == target,
        t.incident.c.subject == subject,
        t.incident.c.closed_at_us.is_(None),
    )
    row = connection.execute(query).first()
    return None if row is None else _incident(row)


def _event(
    connection: Connection,
    incident: Incident,
    now: datetime,
    event: str,
    channels: Sequence[str],
    text: str | None = None,
) -> None:
    _log_event(connection, incident.id, now, event, text or incident.summary)
    outbox.enqueue(connection, incident, event, now, channels)


def _log_event(
    connection: Connection, incident_id: int, now: datetime, event: str, text: str | None
) -> None:
    connection.execute(
        insert(t.incident_event).values(
            incident_id=incident_id, at_us=to_us(now), event=event, text=text
        )
    )


def _note_finding(
    connection: Connection, incident_id: int, finding: Finding, now: datetime
) -> None:
    connection.execute(
        insert(t.finding).values(
            incident_id=incident_id,
            at_us=to_us(now),
            since_us=to_us(finding.since),
            severity=finding.severity.value,
            cause=finding.cause.value if finding.cause else None,
            summary=paragraph(finding),
            evidence=dict(finding.evidence),
        )
    )


def _incident(row: Row[Any]) -> Incident:
    return Incident(
        id=row.id,
        kind=Kind(row.kind),
        target=row.target,
        subject=row.subject,
        severity=Severity(row.severity),
        summary=row.summary,
        opened_at=from_us(row.opened_at_us),
        cause=None if row.cause is None else Cause(row.cause),
        acknowledged_at=maybe_from_us(row.acknowledged_at_us),
        closed_at=maybe_from_us(row.closed_at_us),
        close_reason=row.close_reason,
        changes=tuple(Change(c["field"], c["before"], c["after"]) for c in row.changes),
        evidence=row.evidence,
    )
