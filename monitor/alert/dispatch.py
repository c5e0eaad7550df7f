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

    async def run(self, every_s: float = 1.0) -> None:
        """For ever; a database that is away is waited for."""
        while True:
            try:
                await self.once()
            except DatabaseError as error:
                log.warning("the outbox cannot be read: %s", error)
            await asyncio.sleep(every_s)

    async def once(self) -> None:
        """Send everything that is due now."""
        now = datetime.now(UTC)
        due = await asyncio.wrap_future(self._writer.submit(lambda connection: outbox.due(connection, now)))
        await asyncio.gather(*(self._deliver(delivery) for delivery in due))

    async def _deliver(self, delivery: outbox.Delivery) -> None:
        channel = self._channels.get(delivery.channel)
        try:
            if channel is None:
                raise DeliveryError(f"the configuration has no channel {delivery.channel} any more", permanent=True)
            await channel.send(delivery.payload)
        except DeliveryError as error:
            text, permanent = str(error), error.permanent
            log.warning("channel=%s event=%s delivery=%s not delivered: %s", delivery.channel, delivery.event, delivery.id, text)
            work = self._writer.submit(lambda c: outbox.mark_failed(c, delivery, datetime.now(UTC), text, permanent))
        else:
            log.info("channel=%s event=%s delivery=%s delivered", delivery.channel, delivery.event, delivery.id)
            work = self._writer.submit(lambda c: outbox.mark_sent(c, delivery, datetime.now(UTC)))
        await asyncio.wrap_future(work)
