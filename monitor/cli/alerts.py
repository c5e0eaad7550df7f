"""`alerts`: send a test notification, list what was delivered and what was not."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from monitor.cli.common import (
    CommandError,
    config_arguments,
    database_of,
    json_argument,
    load_context,
    now_utc,
    print_json,
    row_number,
)
from monitor.errors import UNMEASURED, USAGE

if TYPE_CHECKING:
    from monitor.config.settings import ChannelSettings


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    test = actions.add_parser("test", help="send one test notification to each channel now")
    test.add_argument("name", nargs="?", metavar="CHANNEL", help="only this channel")
    test.add_argument("--channel", metavar="CHANNEL", help="the same, as in `alerts log`")
    log = actions.add_parser("log", help="list deliveries, the newest first")
    log.add_argument(
        "--limit",
        type=row_number,
        default=20,
        metavar="N",
        help="the newest N (default 20; 0 for all)",
    )
    log.add_argument("--channel", metavar="NAME", help="only this channel")
    for action in (test, log):
        config_arguments(action)
        json_argument(action)


def run(args: argparse.Namespace) -> int:
    """Do the action."""
    return _test(args) if args.action == "test" else _log(args)


def test_payload(delivery_id: str) -> dict[str, Any]:
    """What a test looks like: the shape of the real thing, and a kind of its own place
    (`monitor`).
    """
    from monitor.alert.outbox import payload  # noqa: PLC0415 - --help needs no SQLAlchemy
    from monitor.model import Incident, Kind, Severity  # noqa: PLC0415

    summary = "this is a test notification of vllm-canary; nothing is wrong"
    incident = Incident(0, Kind.MONITOR, "test", "test", Severity.INFO, summary, now_utc())
    return payload(delivery_id, "opened", incident)


def _test(args: argparse.Namespace) -> int:
    from monitor.alert.channel import DeliveryError  # noqa: PLC0415
    from monitor.alert.dispatch import channels_of  # noqa: PLC0415

    configured = load_context(args).channels
    channels = channels_of(configured)
    if not channels:
        raise CommandError("the configuration has no channels; add one under `channels:`")
    wanted = args.channel or args.name
    if wanted is not None and wanted not in channels:
        raise CommandError(
            f"there is no channel {wanted!r}; the configuration has: {', '.join(channels)}"
        )
    chosen = channels if wanted is None else {wanted: channels[wanted]}

    async def attempt(channel: Any) -> str | None:
        try:
            await channel.send(test_payload(str(uuid.uuid4())))
        except DeliveryError as error:
            return str(error)
        return None

    async def attempts() -> dict[str, str | None]:
        return {name: await attempt(channel) for name, channel in chosen.items()}

    results = asyncio.run(attempts())
    if args.json:
        print_json(
            {
                "channels": [
                    {"name": n, "delivered": e is None, "error": e} for n, e in results.items()
                ]
            }
        )
    else:
        for name, error in results.items():
            print(f"{name}: {'delivered' if error is None else f'not delivered: {error}'}")
    failed = {name for name, error in results.items() if error is not None}
    if not failed:
        return 0
    return (
        USAGE
        if failed <= {channel.name for channel in configured if not _has_address(channel)}
        else UNMEASURED
    )


def _has_address(channel: ChannelSettings) -> bool:
    try:
        channel.address()
    except ValueError:  # the variable that holds it is not set: the user's to mend
        return False
    return True


def _log(args: argparse.Namespace) -> int:
    from monitor.alert import outbox  # noqa: PLC0415
    from monitor.store.database import reading  # noqa: PLC0415

    with reading(database_of(args)) as connection:
        found = outbox.log(connection, args.limit or None, args.channel)
    if args.json:
        print_json({"deliveries": [_record(delivery) for delivery in found]})
        return 0
    from monitor.show.terminal import console, local_time, table  # noqa: PLC0415

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
    headings = [
        "created",
        "channel",
        "event",
        "incident id",
        "state",
        "attempts count",
        "sent",
        "detail",
    ]
    console().print(table(headings, rows) if found else "no deliveries")
    return 0


def _record(delivery: Any) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    from monitor.show.records import plain  # noqa: PLC0415

    return {name: plain(value) for name, value in asdict(delivery).items()}
