"""`incidents`: list them, show one, acknowledge, close, annotate."""

from __future__ import annotations

import argparse
import json
from typing import Any

from monitor.cli.common import config_arguments, database_of, json_argument, moment, now_utc, print_json
from monitor.model import Incident


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options: without an action the list."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    _with_common(actions.add_parser("list", help="open ones and those of the last days (the default)"))
    _with_common(_one(actions.add_parser("show", help="one incident with its history")))
    ack = _one(actions.add_parser("ack", help="say that somebody has seen it"))
    ack.add_argument("--note", help="a remark to keep with it")
    _with_common(ack)
    close = _one(actions.add_parser("close", help="close it by hand"))
    close.add_argument("--reason", required=True, help="why it is over")
    _with_common(close)
    note = _one(actions.add_parser("note", help="keep a remark with it"))
    note.add_argument("text", help="the remark")
    _with_common(note)
    _with_common(parser)


def _one(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("incident", type=int, metavar="INCIDENT", help="its number")
    return parser


def _with_common(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)
    json_argument(parser)
    parser.add_argument("--since", metavar="TIME", default="7d", help="opened since then, and all that are open (default 7d)")
    parser.add_argument("--target", metavar="NAME", help="only this target")


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    action = args.action or "list"
    if action == "list":
        return _list(args)
    if action == "show":
        return _show(args)
    return _change(args, action)


def _list(args: argparse.Namespace) -> int:
    from monitor.alert import incidents  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.show.records import incident_record  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    with reading(database_of(args)) as connection:
        found = incidents.recent(connection, moment(args.since, now_utc()), args.target, None)
    if args.json:
        print_json({"incidents": [incident_record(incident) for incident in found]})
    else:
        _table(found)
    return 0


def _table(found: list[Incident]) -> None:
    from monitor.show.terminal import console, local_time, table  # noqa: PLC0415

    rows = [[i.id, _state(i), i.severity.value, i.kind.value, i.target, local_time(i.opened_at), i.summary] for i in found]
    out = console()
    out.print(table(["id", "state", "severity", "kind", "target", "opened", "detail"], rows) if found else "no incidents")


def _state(incident: Incident) -> str:
    if incident.closed_at is not None:
        return "closed"
    return "acknowledged" if incident.acknowledged_at is not None else "open"


def _show(args: argparse.Namespace) -> int:
    from monitor.alert import incidents  # noqa: PLC0415
    from monitor.show.records import incident_record, plain  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    with reading(database_of(args)) as connection:
        incident = incidents.get(connection, args.incident)
        events = incidents.events(connection, args.incident)
    record = incident_record(incident) | {"events": [{k: plain(v) for k, v in event.items()} for event in events]}
    if args.json:
        print_json({"incidents": [record]})
        return 0
    from monitor.show.terminal import UNKNOWN, console, local_time, table  # noqa: PLC0415

    def told(value: Any) -> Any:
        return UNKNOWN if value is None else json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value

    out = console()
    out.print(table(["field", "value detail"], [[k, told(v)] for k, v in record.items() if k != "events"]))
    out.print()
    out.print(table(["time", "event", "text detail"], [[local_time(e["at"]), e["event"], e["text"]] for e in events]))
    return 0


def _change(args: argparse.Namespace, action: str) -> int:
    from monitor.alert import incidents  # noqa: PLC0415
    from monitor.show.records import incident_record  # noqa: PLC0415
    from monitor.store.database import open_writer  # noqa: PLC0415
    from monitor.store.writer import Writer  # noqa: PLC0415

    now, number = now_utc(), args.incident
    writer = Writer(open_writer(database_of(args)), patient=False)
    try:
        if action == "ack":
            changed = writer.do(lambda c: incidents.acknowledge(c, number, now, args.note))
        elif action == "close":
            changed = writer.do(lambda c: incidents.close_by_hand(c, number, now, f"closed by hand: {args.reason}", _channels(args)))
        else:
            changed = writer.do(lambda c: incidents.add_note(c, number, now, args.text))
    finally:
        writer.close()
    if args.json:
        print_json({"incidents": [incident_record(changed)]})
    else:
        print(f"incident {number}: {_state(changed)}")
    return 0


def _channels(args: argparse.Namespace) -> list[str]:
    """Where the closing is told; without a configuration nobody is told."""
    from monitor.config.settings import find_config, load_settings  # noqa: PLC0415

    path = find_config(args.config)
    return [] if path is None else [channel.name for channel in load_settings(path).channels]
