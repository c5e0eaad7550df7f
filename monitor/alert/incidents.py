"""Incidents in the database: opened, updated and resolved together with their deliveries, in the
transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from monitor.alert import outbox
from monitor.alert.lifecycle import (
    Opened,
    Refreshed,
    Resolved,
    Transition,
    Updated,
    reconcile,
    transition,
)
from monitor.errors import USAGE, UserError
from monitor.judge.evaluator.assessment import Assessment
from monitor.model import Cause, Change, Finding, Incident, Kind, Severity
from monitor.show.findings import paragraph
from monitor.store import tables as t
from monitor.store.times import from_us, maybe_from_us, to_us

#: Why an incident was closed when it is no longer found.
RESOLVED = {
    Kind.SERVER_DOWN: "the server answers again",
    Kind.HUNG: "the engine makes progress again, or its process has ended",
    Kind.NO_SAMPLES: "the probe measures again",
    Kind.UNKNOWN_LASTING: "the probe's answers are usable and judged again",
    Kind.QUALITY: "the answers are correct again",
    Kind.NEAR_TIES: "near ties are rare again",
    Kind.PIN_EXPIRED: "the pin was renewed or retired",
    Kind.GPU_FAULT: "the GPU responds and has reported no recent fault",
    Kind.TELEMETRY_BLIND: "the GPU can be read again",
    Kind.DRIVER_MISMATCH: "driver and library versions match again",
    Kind.SPEED: "speed is back at the baseline",
    Kind.THERMAL: "the GPU is no longer thermally throttled, or was removed",
    Kind.POWER: "the GPU is no longer power-throttled, or was removed",
    Kind.SERVICE_LEVEL: "the time to first token is within its limit again",
    Kind.SLOW_START: "the process was restarted, or its speed is back at the baseline",
    Kind.WORKLOAD_SHIFT: (
        "prompt lengths are back at the baseline, or the baseline now includes them"
    ),
    Kind.MONITOR: "the monitor works again",
}
NO_LONGER_FOUND = "the problem is no longer detected"


class IncidentError(UserError):
    """A request that an incident does not allow."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class IncidentLog:
    """The incidents of one transaction: every change is stored at `now` and queued for `channels`.

    `target`: the incidents of this target only; None: of all. `text` makes the summary of a
    finding.
    """

    connection: Connection
    now: datetime
    channels: Sequence[str] = ()
    target: str | None = None
    text: Callable[[Finding], str] = paragraph

    def open(self, kinds: Iterable[Kind] | None = None) -> list[Incident]:
        """Returns the open incidents, the oldest first."""
        return open_incidents(self.connection, self.target, kinds)

    def reconcile(self, assessment: Assessment) -> None:
        """Makes the open incidents of the assessment's kinds agree with it."""
        for step in reconcile(self.open(assessment.kinds), assessment):
            self._apply(step)

    def report(self, finding: Finding) -> Incident:
        """Opens the incident of a finding, or updates it. Never opens a second one for a key."""
        step = transition(_open_by_key(self.connection, finding.key), finding, may_close=False)
        if step is not None:
            self._apply(step)
        incident = _open_by_key(self.connection, finding.key)
        if incident is None:
            raise RuntimeError(f"the incident {finding.key} is not open after it was reported")
        return incident

    def close(self, incident: Incident, reason: str) -> None:
        """Closes an incident with a reason; closing a closed one does nothing."""
        done = self.connection.execute(
            update(t.incident)
            .where(t.incident.c.id == incident.id, t.incident.c.closed_at_us.is_(None))
            .values(closed_at_us=to_us(self.now), close_reason=reason)
        )
        if done.rowcount == 1:
            self._announce(get(self.connection, incident.id), "resolved", reason)

    def note(self, incident: Incident, evidence: Mapping[str, Any]) -> None:
        """Adds evidence to an open incident without a message."""
        self._set(incident.id, {"evidence": {**incident.evidence, **evidence}})

    def extend(
        self, incident: Incident, summary: str, severity: Severity, evidence: Mapping[str, Any]
    ) -> None:
        """Adds to an open incident what another judge found about it, with a message."""
        values = {
            "summary": summary,
            "severity": severity.value,
            "evidence": {**incident.evidence, **evidence},
        }
        self._set(incident.id, values)
        self._announce(get(self.connection, incident.id), "updated")

    def acknowledge(self, incident_id: int, note: str | None) -> Incident:
        """Marks an incident as seen. Raises IncidentError for an unknown or closed one."""
        incident = get(self.connection, incident_id)
        if incident.closed_at is not None:
            raise IncidentError(
                f"incident {incident_id} is closed ({incident.close_reason}) and cannot be "
                "acknowledged"
            )
        if incident.acknowledged_at is None:
            self._set(incident_id, {"acknowledged_at_us": to_us(self.now)})
        self._record(incident_id, "acknowledged", note)
        return get(self.connection, incident_id)

    def close_by_hand(self, incident_id: int, reason: str) -> Incident:
        """Closes an incident at a person's request; it opens again if it is still found. Raises
        IncidentError.
        """
        incident = get(self.connection, incident_id)
        if incident.closed_at is not None:
            raise IncidentError(
                f"incident {incident_id} is already closed ({incident.close_reason})"
            )
        self.close(incident, reason)
        return get(self.connection, incident_id)

    def add_note(self, incident_id: int, text: str) -> Incident:
        """Records a remark on an incident, open or closed. Raises IncidentError for an unknown
        one.
        """
        incident = get(self.connection, incident_id)
        self._record(incident_id, "note", text)
        return incident

    def _apply(self, step: Transition[Incident]) -> None:
        match step:
            case Opened(finding):
                self._open(finding)
            case Updated(incident, finding):
                self._set(incident.id, self._values(finding))
                self._record_finding(incident.id, finding)
                self._announce(get(self.connection, incident.id), "updated")
            case Refreshed(incident, finding) if finding.evidence != incident.evidence:
                self._set(incident.id, self._values(finding))
            case Refreshed():
                pass
            case Resolved(incident):
                self.close(incident, RESOLVED.get(incident.kind, NO_LONGER_FOUND))

    def _open(self, finding: Finding) -> None:
        fixed = {
            "kind": finding.kind.value,
            "target": finding.target,
            "subject": finding.subject,
            "opened_at_us": to_us(self.now),
        }
        query = insert(t.incident).values(**fixed, **self._values(finding))
        key = self.connection.execute(query).inserted_primary_key
        incident = get(self.connection, int(key[0]) if key is not None else 0)
        self._record_finding(incident.id, finding)
        self._announce(incident, "opened")

    def _values(self, finding: Finding) -> dict[str, Any]:
        return {
            "severity": finding.severity.value,
            "cause": finding.cause.value if finding.cause else None,
            "summary": self.text(finding),
            "changes": [asdict(change) for change in finding.changes],
            "evidence": dict(finding.evidence),
        }

    def _set(self, incident_id: int, values: Mapping[str, Any]) -> None:
        query = update(t.incident).where(t.incident.c.id == incident_id)
        self.connection.execute(query.values(**values))

    def _announce(self, incident: Incident, event: str, text: str | None = None) -> None:
        self._record(incident.id, event, text or incident.summary)
        outbox.enqueue(self.connection, incident, event, self.now, self.channels)

    def _record(self, incident_id: int, event: str, text: str | None) -> None:
        self.connection.execute(
            insert(t.incident_event).values(
                incident_id=incident_id, at_us=to_us(self.now), event=event, text=text
            )
        )

    def _record_finding(self, incident_id: int, finding: Finding) -> None:
        self.connection.execute(
            insert(t.finding).values(
                incident_id=incident_id,
                at_us=to_us(self.now),
                since_us=to_us(finding.since),
                severity=finding.severity.value,
                cause=finding.cause.value if finding.cause else None,
                summary=self.text(finding),
                evidence=dict(finding.evidence),
            )
        )


def open_incidents(
    connection: Connection, target: str | None = None, kinds: Iterable[Kind] | None = None
) -> list[Incident]:
    """Returns the open incidents, the oldest first."""
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
    """Returns the incidents opened since a moment, and all open ones, the newest first."""
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
    """Returns one incident. Raises IncidentError when there is none with that number."""
    row = connection.execute(select(t.incident).where(t.incident.c.id == incident_id)).first()
    if row is None:
        raise IncidentError(
            f"there is no incident {incident_id}; `vllm-canary incidents` lists them"
        )
    return _incident(row)


def events(connection: Connection, incident_id: int) -> list[dict[str, Any]]:
    """Returns the events of an incident, in order."""
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
