"""`alerts test`: sends a test notification to each channel."""

from __future__ import annotations

import asyncio
import uuid
from argparse import Namespace
from collections.abc import Mapping

from monitor.alert.channel import Channel, DeliveryError
from monitor.alert.dispatch import channels_of
from monitor.alert.outbox import payload
from monitor.cli.common import CommandError, now_utc, print_json
from monitor.cli.configured import settings_of
from monitor.config.settings import ChannelSettings
from monitor.errors import UNMEASURED, USAGE
from monitor.model import Incident, Kind, Severity


def run(args: Namespace) -> int:
    """Sends, prints what was delivered, and returns 2 if only the configuration is to blame."""
    configured = settings_of(args).channels
    errors = asyncio.run(_send_all(_chosen(channels_of(configured), args.channel or args.name)))
    if args.json:
        delivered = [{"name": n, "delivered": e is None, "error": e} for n, e in errors.items()]
        print_json({"channels": delivered})
    else:
        for name, error in errors.items():
            print(f"{name}: {'delivered' if error is None else f'not delivered: {error}'}")
    failed = {name for name, error in errors.items() if error is not None}
    if not failed:
        return 0
    unusable = {channel.name for channel in configured if not _has_address(channel)}
    return USAGE if failed <= unusable else UNMEASURED


def _chosen(channels: Mapping[str, Channel], wanted: str | None) -> Mapping[str, Channel]:
    if not channels:
        raise CommandError("the configuration has no channels; add one under `channels:`")
    if wanted is None:
        return channels
    if wanted not in channels:
        raise CommandError(
            f"there is no channel {wanted!r}; configured channels: {', '.join(channels)}"
        )
    return {wanted: channels[wanted]}


async def _send_all(channels: Mapping[str, Channel]) -> dict[str, str | None]:
    return {name: await _send(channel) for name, channel in channels.items()}


async def _send(channel: Channel) -> str | None:
    """The error of the delivery; None if it succeeded."""
    try:
        await channel.send(_payload(str(uuid.uuid4())))
    except DeliveryError as error:
        return str(error)
    return None


def _payload(delivery_id: str) -> dict[str, object]:
    """A test notification: the shape of a real one, of the kind `monitor`."""
    incident = Incident(
        id=0,
        kind=Kind.MONITOR,
        target="test",
        subject="test",
        severity=Severity.INFO,
        summary="This is a test notification of vllm-canary; nothing is wrong.",
        opened_at=now_utc(),
    )
    return payload(delivery_id, "opened", incident)


def _has_address(channel: ChannelSettings) -> bool:
    """False if the environment variable or file that holds the address is missing."""
    try:
        channel.address()
    except ValueError:
        return False
    return True
