"""The names that a history knows, for options that choose among them."""

from __future__ import annotations

from argparse import Namespace

from sqlalchemy import Connection

from monitor.cli.common import CommandError, no_such
from monitor.store.queries import TargetRow, known_names, targets


def check_names(connection: Connection, args: Namespace) -> None:
    """Checks --target, --probe and --class against the history. Raises CommandError."""
    for what, plural, given in (
        ("target", "targets", args.target),
        ("probe", "probes", args.probe),
        ("class", "classes", args.traffic_class),
    ):
        if given is not None and given not in (known := known_names(connection, what)):
            raise CommandError(no_such(what, given, "in the history", known, plural))


def chosen_rows(connection: Connection, name: str | None) -> list[TargetRow]:
    """The stored targets chosen by --target. Raises CommandError for an unknown name."""
    rows = targets(connection)
    if name is not None and name not in [row.name for row in rows]:
        raise CommandError(no_such("target", name, "in the history", [row.name for row in rows]))
    return [row for row in rows if name in {None, row.name}]
