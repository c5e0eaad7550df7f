"""Deliveries in the database: queued with the incident, retried with back-off, given up after a
day.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Row, exists, func, insert, select, update
from sqlalchemy.event import listen

from monitor.model import Incident
from monitor.show.records import iso
from monitor.store import tables as t
from monitor.store.times import from_us, maybe_from_us, to_us

PAYLOAD_VERSION = 1
#: Pauses after failed attempts; the last one repeats.
BACK_OFF = tuple(timedelta(seconds=s) for s in (2, 10, 30, 120, 600, 1800))
GIVE_UP_AFTER = timedelta(hours=24)
_NEWS = "outbox_news"  # set on a connection until its transaction is committed


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification to one channel. `id` is the same for all attempts."""

    id: str
    incident_id: int | None
    channel: str
    event: str
    payload: dict[str, Any]
    created_at: datetime
    state: str  # pending | sent | failed
    attempts: int
    next_attempt_at: datetime | None = None
    sent_at: datetime | None = None
    last_error: str | None = None


def payload(delivery_id: str, event: str, incident: Incident) -> dict[str, Any]:
    """Returns the JSON object that a channel delivers, as of the event (docs/alerts.md)."""
    return {
        "version": PAYLOAD_VERSION,
        "id": delivery_id,
        "event": event,
        "incident": {
            "id": incident.id,
            "kind": incident.kind.value,
            "target": incident.target,
            "subject": incident.subject,
            "severity": incident.severity.value,
            "cause": incident.cause.value if incident.cause else None,
            "opened_at": iso(incident.opened_at),
            "closed_at": iso(incident.closed_at),
            "close_reason": incident.close_reason,
            "summary": incident.summary,
            "changes": [asdict(change) for change in incident.changes],
            "evidence": dict(incident.evidence),
        },
    }


def enqueue(
    connection: Connection, incident: Incident, event: str, now: datetime, channels: Sequence[str]
) -> None:
    """Queues one delivery per channel in the caller's transaction: an incident and its deliveries
    are stored together or not at all.
    """
    for channel in channels:
        delivery_id = str(uuid.uuid4())
        add(
            connection,
            delivery_id,
            channel,
            event,
            payload(delivery_id, event, incident),
            now,
            incident_id=incident.id,
        )


def add(
    connection: Connection,
    delivery_id: str,
    channel: str,
    event: str,
    body: dict[str, Any],
    now: datetime,
    *,
    incident_id: int | None = None,
) -> None:
    """Queues one delivery, due at once."""
    connection.info[_NEWS] = True
    connection.execute(
        insert(t.delivery).values(
            id=delivery_id,
            incident_id=incident_id,
            channel=channel,
            event=event,
            payload=body,
            created_at_us=to_us(now),
            state="pending",
            attempts=0,
            next_attempt_at_us=to_us(now),
        )
    )


def on_news(engine: Engine, notify: Callable[[], object]) -> Callable[[], None]:
    """Calls `notify`, on the writing thread, after each transaction that has queued something.
    Returns a function that stops this.
    """

    listeners = [notify]

    def committed(connection: Connection) -> None:
        if connection.info.pop(_NEWS, False):
            for each in listeners:
                each()

    listen(engine, "commit", committed)
    # the listener itself stays: removing it is not safe while another thread may be inside it
    return listeners.clear


def due(
    connection: Connection, now: datetime, limit: int = 20, busy: Collection[str] = ()
) -> list[Delivery]:
    """Returns what is due now, oldest first; of an incident and channel only the oldest, so that
    messages arrive in order. Nothing for `busy` channels.
    """
    table, earlier = t.delivery, t.delivery.alias()
    waits = exists().where(
        earlier.c.state == "pending",
        earlier.c.channel == table.c.channel,
        earlier.c.incident_id == table.c.incident_id,
        earlier.c.created_at_us < table.c.created_at_us,
    )
    query = (
        select(table)
        .where(
            table.c.state == "pending",
            table.c.next_attempt_at_us <= to_us(now),
            table.c.channel.not_in(busy),
            ~waits,
        )
        .order_by(table.c.created_at_us)
        .limit(limit)
    )
    return [_delivery(row) for row in connection.execute(query)]


def mark_sent(connection: Connection, delivery: Delivery, now: datetime) -> None:
    """Records a success."""
    values = {
        "state": "sent",
        "attempts": delivery.attempts + 1,
        "sent_at_us": to_us(now),
        "next_attempt_at_us": None,
        "last_error": None,
    }
    connection.execute(update(t.delivery).where(t.delivery.c.id == delivery.id).values(**values))


def next_attempt(connection: Connection, now: datetime) -> datetime | None:
    """Returns when the next retry after `now` is due; None without one."""
    table = t.delivery
    query = select(func.min(table.c.next_attempt_at_us)).where(
        table.c.state == "pending", table.c.next_attempt_at_us > to_us(now)
    )
    return maybe_from_us(connection.execute(query).scalar())


def mark_failed(
    connection: Connection,
    delivery: Delivery,
    now: datetime,
    error: str,
    permanent: bool,
    at_most: int | None = None,
) -> None:
    """Records a failure: retried later, or given up if it is permanent, after `at_most` attempts or
    after a day.
    """
    attempts = delivery.attempts + 1
    used_up = at_most is not None and attempts >= at_most
    final = permanent or used_up or now - delivery.created_at > GIVE_UP_AFTER
    pause = BACK_OFF[min(attempts, len(BACK_OFF)) - 1]
    values = {
        "state": "failed" if final else "pending",
        "attempts": attempts,
        "next_attempt_at_us": None if final else to_us(now + pause),
        "last_error": error,
    }
    connection.execute(update(t.delivery).where(t.delivery.c.id == delivery.id).values(**values))


def log(connection: Connection, limit: int | None, channel: str | None = None) -> list[Delivery]:
    """Returns deliveries, the newest first."""
    query = select(t.delivery).order_by(t.delivery.c.created_at_us.desc()).limit(limit)
    if channel is not None:
        query = query.where(t.delivery.c.channel == channel)
    return [_delivery(row) for row in connection.execute(query)]


def undelivered(connection: Connection, since: datetime) -> int:
    """Returns how many notifications are pending, or were queued since then and given up."""
    table = t.delivery
    lately = (table.c.state == "failed") & (table.c.created_at_us >= to_us(since))
    query = select(func.count()).select_from(table).where((table.c.state == "pending") | lately)
    return int(connection.execute(query).scalar() or 0)


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        id=row.id,
        incident_id=row.incident_id,
        channel=row.channel,
        event=row.event,
        payload=row.payload,
        created_at=from_us(row.created_at_us),
        state=row.state,
        attempts=row.attempts,
        next_attempt_at=maybe_from_us(row.next_attempt_at_us),
        sent_at=maybe_from_us(row.sent_at_us),
        last_error=row.last_error,
    )
