"""`incidents`: lists incidents, shows one."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence

from monitor.alert import incidents
from monitor.cli.common import database_of, moment, now_utc, print_json
from monitor.model import Incident
from monitor.show.records import incident_record, plain
from monitor.show.terminal import UNKNOWN, console, local_time, table
from monitor.store.database import reading


def show_list(args: Namespace) -> int:
    """Lists open and recent incidents."""
    with reading(database_of(args)) as connection:
        found = incidents.recent(connection, moment(args.since, now_utc()), args.target, None)
    if args.json:
        print_json({"incidents": [incident_record(incident) for incident in found]})
    else:
        _print_list(found)
    return 0


def _print_list(found: Sequence[Incident]) -> None:
    headings = ["id", "state", "severity", "kind", "target", "opened", "detail"]
    rows = [
        [
            i.id,
            state_of(i),
            i.severity.value,
            i.kind.value,
            i.target,
            local_time(i.opened_at),
            i.summary,
        ]
        for i in found
    ]
    console().print(table(headings, rows) if found else "no incidents")


def state_of(incident: Incident) -> str:
    """Open, acknowledged or closed."""
    if incident.closed_at is not None:
        return "closed"
    return "acknowledged" if incident.acknowledged_at is not None else "open"


def show_one(args: Namespace) -> int:
    """Shows one incident with its history."""
    with reading(database_of(args)) as connection:
        incident = incidents.get(connection, args.incident)
        events = incidents.events(connection, args.incident)
    if args.json:
        history = [{k: plain(v) for k, v in event.items()} for event in events]
        print_json({"incidents": [incident_record(incident) | {"events": history}]})
        return 0
    fields = [[name, _cell(value)] for name, value in incident_record(incident).items()]
    steps = [[local_time(e["at"]), e["event"], e["text"]] for e in events]
    out = console()
    out.print(table(["field", "value detail"], fields))
    out.print()
    out.print(table(["time", "event", "text detail"], steps))
    return 0


def _cell(value: object) -> object:
    if value is None:
        return UNKNOWN
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
