"""`incidents ack`, `close` and `note`: what a person does about an incident."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from sqlalchemy import Connection

from monitor.alert import incidents
from monitor.cli.common import database_of, now_utc, print_json
from monitor.cli.configured import found_settings
from monitor.cli.writing import write_once
from monitor.model import Incident
from monitor.show.incidents import state
from monitor.show.records import incident_record
from monitor.store.database import reading


def acknowledge(args: Namespace) -> int:
    """Acknowledges an incident."""
    now = now_utc()
    return _change(args, lambda c: incidents.acknowledge(c, args.incident, now, args.note))


def close(args: Namespace) -> int:
    """Closes an incident by hand and notifies the configured channels."""
    now, reason = now_utc(), f"closed by hand: {args.reason}"
    settings = found_settings(args)
    channels = [] if settings is None else [channel.name for channel in settings.channels]
    return _change(
        args,
        lambda c: incidents.close_by_hand(c, args.incident, now, reason, channels),
        "" if channels else " (no notification sent: no notification channel is configured)",
    )


def note(args: Namespace) -> int:
    """Adds a remark to an incident."""
    now = now_utc()
    return _change(args, lambda c: incidents.add_note(c, args.incident, now, args.text))


def _change(args: Namespace, work: Callable[[Connection], Incident], remark: str = "") -> int:
    database = database_of(args)
    with reading(database) as connection:  # a writer would create a missing database
        incidents.get(connection, args.incident)
    changed = write_once(database, work)
    if args.json:
        print_json({"incidents": [incident_record(changed)]})
    else:
        print(f"incident {changed.id}: {state(changed)}{remark}")
    return 0
