"""The loop that empties the outbox: claim what is due, send it, note how it went."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime

from monitor.alert import outbox
from monitor.alert.channel import Channel, DeliveryError
from monitor.alert.webhook import Webhook
from monitor.config.settings import ChannelSettings
from monitor.store.database import DatabaseError
from monitor.store.writer import Writer

log = logging.getLogger(__name__)


def channels_of(settings: Sequence[ChannelSettings]) -> dict[str, Channel]:
    """The channels of a configuration by name."""
    return {channel.name: Webhook(channel) for channel in settings}


class Dispatcher:
    """Sends what the outbox holds. Deliveries to different channels do not wait for each other."""

    def __init__(self, writer: Writer, channels: dict[str, Channel]) -> None:
        self._writer = writer
        self._channels = channels
        self._going: dict[str, asyncio.Task[None]] = {}  # what is on its way, by channel

    async def run(self, every_s: float = 1.0) -> None:
        """For ever; a database that is away is waited for."""
        try:
            while True:
                try:
                    await self._begin()
                except DatabaseError as error:
                    log.warning("the outbox cannot be read: %s", error)
                await asyncio.sleep(every_s)
        finally:
            for task in self._going.values():
                task.cancel()

    async def once(self) -> None:
        """Send everything that is due now, and wait for it."""
        await self._begin()
        await asyncio.gather(*self._going.values())

    async def _begin(self) -> None:
        """Start what is due on every channel that is not at it already."""
        now, busy = datetime.now(UTC), list(self._going)
        due = await asyncio.wrap_future(self._writer.submit(lambda connection: outbox.due(connection, now, busy=busy)))
        for name in dict.fromkeys(delivery.channel for delivery in due):
            self._going[name] = asyncio.create_task(self._deliver_all(name, [d for d in due if d.channel == name]))

    async def _deliver_all(self, channel: str, deliveries: Sequence[outbox.Delivery]) -> None:
        try:
            await asyncio.gather(*(self._deliver(delivery) for delivery in deliveries))
        except DatabaseError as error:
            log.warning("channel=%s what was delivered cannot be noted: %s", channel, error)
        finally:
            del self._going[channel]

    async def _deliver(self, delivery: outbox.Delivery) -> None:
        channel = self._channels.get(delivery.channel)
        try:
            if channel is None:
                raise DeliveryError(f"the configuration has no channel {delivery.channel} any more", permanent=True)
            await _sent(channel, delivery)
        except DeliveryError as error:
            text, permanent = str(error), error.permanent
            log.warning("channel=%s event=%s delivery=%s not delivered: %s", delivery.channel, delivery.event, delivery.id, text)
            work = self._writer.submit(lambda c: outbox.mark_failed(c, delivery, datetime.now(UTC), text, permanent))
        else:
            log.info("channel=%s event=%s delivery=%s delivered", delivery.channel, delivery.event, delivery.id)
            work = self._writer.submit(lambda c: outbox.mark_sent(c, delivery, datetime.now(UTC)))
        await asyncio.wrap_future(work)


async def _sent(channel: Channel, delivery: outbox.Delivery) -> None:
    """Send. Raises DeliveryError and nothing else."""
    try:
        await channel.send(delivery.payload)
    except DeliveryError:
        raise
    except Exception as error:  # a fault of one channel must not end the loop that serves them all; its text may hold the address
        raise DeliveryError(f"the channel failed with {type(error).__name__}") from None
