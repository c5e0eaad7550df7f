"""`alerts log`: deliveries, newest first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from monitor.alert import outbox
from monitor.cli.common import database_of, print_json
from monitor.show.records import plain
from monitor.show.terminal import console, local_time, table
from monitor.store.database import reading

HEADINGS = (
    *("created", "channel", "event", "incident id"),
    *("state", "attempts count", "sent", "detail"),
)


def run(args: Namespace) -> int:
    """Lists deliveries."""
    with reading(database_of(args)) as connection:
        found = outbox.log(connection, args.limit or None, args.channel)
    if args.json:
        print_json({"deliveries": [_record(delivery) for delivery in found]})
    else:
        _print(found)
    return 0


def _record(delivery: outbox.Delivery) -> dict[str, object]:
    return {name: plain(value) for name, value in asdict(delivery).items()}


def _print(found: Sequence[outbox.Delivery]) -> None:
    rows = [
        [
            local_time(d.created_at),
            d.channel,
            d.event,
            d.incident_id,
            d.state,
            d.attempts,
            local_time(d.sent_at),
            d.last_error or "",
        ]
        for d in found
    ]
    console().print(table(HEADINGS, rows) if found else "no deliveries")
