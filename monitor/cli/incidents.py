"""`incidents`: list them, show one, acknowledge, close, annotate."""

from __future__ import annotations

import argparse
import json
from typing import Any

from monitor.cli.common import (
    config_arguments,
    database_of,
    json_argument,
    moment,
    now_utc,
    print_json,
    row_number,
)
from monitor.model import Incident


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options: without an action the list. They may stand before or after it."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        # What was not given after the action must not undo with a default what was given before it.
        added = actions.add_parser(name, help=text, argument_default=argparse.SUPPRESS)
        if name == "list":
            _list_arguments(added)
        else:
            added.add_argument("incident", type=row_number, metavar="INCIDENT", help="its number")
        _common(added)
        return added

    action("list", "open ones and those of the last days (the default)")
    action("show", "one incident with its history")
    action("ack", "say that somebody has seen it").add_argument(
        "--note", default=None, help="a remark to keep with it"
    )
    action("close", "close it by hand").add_argument(
        "--reason", required=True, help="why it is over"
    )
    action("note", "keep a remark with it").add_argument("text", help="the remark")
    _common(parser)
    _list_arguments(parser)
    parser.set_defaults(since="7d")


def _common(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)
    json_argument(parser)


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--since", metavar="TIME", help="opened since then, and all that are open (default 7d)"
    )
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

    rows = [
        [
            i.id,
            _state(i),
            i.severity.value,
            i.kind.value,
            i.target,
            local_time(i.opened_at),
            i.summary,
        ]
        for i in found
    ]
    out = console()
    out.print(
        table(["id", "state", "severity", "kind", "target", "opened", "detail"], rows)
        if found
        else "no incidents"
    )


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
    record = incident_record(incident) | {
        "events": [{k: plain(v) for k, v in event.items()} for event in events]
    }
    if args.json:
        print_json({"incidents": [record]})
        return 0
    from monitor.show.terminal import UNKNOWN, console, local_time, table  # noqa: PLC0415

    def told(value: Any) -> Any:
        return (
            UNKNOWN
            if value is None
            else json.dumps(value, ensure_ascii=False)
            if isinstance(value, (list, dict))
            else value
        )

    out = console()
    out.print(
        table(["field", "value detail"], [[k, told(v)] for k, v in record.items() if k != "events"])
    )
    out.print()
    out.print(
        table(
            ["time", "event", "text detail"],
            [[local_time(e["at"]), e["event"], e["text"]] for e in events],
        )
    )
    return 0


def _change(args: argparse.Namespace, action: str) -> int:
    from monitor.alert import incidents  # noqa: PLC0415
    from monitor.show.records import incident_record  # noqa: PLC0415
    from monitor.store.database import open_writer, reading  # noqa: PLC0415
    from monitor.store.writer import Writer  # noqa: PLC0415

    now, number = now_utc(), args.incident
    with reading(database_of(args)) as connection:  # a writer would make a database where none is
        incidents.get(connection, number)
    writer = Writer(open_writer(database_of(args)), patient=False)
    try:
        if action == "ack":
            changed = writer.do(lambda c: incidents.acknowledge(c, number, now, args.note))
        elif action == "close":
            changed = writer.do(
                lambda c: incidents.close_by_hand(
                    c, number, now, f"closed by hand: {args.reason}", _channels(args)
                )
            )
        else:
            changed = writer.do(lambda c: incidents.add_note(c, number, now, args.text))
    finally:
        writer.close()
    if args.json:
        print_json({"incidents": [incident_record(changed)]})
    else:
        nobody = (
            " (nobody was told: there is no configuration with channels here)"
            if action == "close" and not _channels(args)
            else ""
        )
        print(f"incident {number}: {_state(changed)}{nobody}")
    return 0


def _channels(args: argparse.Namespace) -> list[str]:
    """Where the closing is told; without a configuration nobody is told."""
    from monitor.config.places import find_config  # noqa: PLC0415
    from monitor.config.settings import load_settings  # noqa: PLC0415

    path = find_config(args.config)
    return [] if path is None else [channel.name for channel in load_settings(path).channels]
