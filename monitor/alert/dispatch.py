"""The loop that empties the outbox: claim what is due, send it, note how it went."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection

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
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be something new in the outbox: look at once."""
        self._woken.set()

    async def run(self, every_s: float) -> None:
        """For ever: looks as soon as this process has put something in, when an attempt is due
        again, and every `every_s` for what other processes have put in. A database that is away is
        waited for.
        """
        stop_listening: Callable[[], None] | None = None
        try:
            while True:
                self._woken.clear()
                later_s: float | None = None
                try:
                    stop_listening = stop_listening or await self._listen()
                    later_s = await self._begin()
                except DatabaseError as error:
                    log.warning("the outbox cannot be read: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        self._woken.wait(), every_s if later_s is None else min(every_s, later_s)
                    )
        finally:
            if stop_listening is not None:
                stop_listening()
            for task in self._going.values():
                task.cancel()

    async def _listen(self) -> Callable[[], None]:
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, self.wake)
        return await asyncio.wrap_future(
            self._writer.submit(lambda connection: outbox.on_news(connection.engine, tell))
        )

    async def once(self) -> None:
        """Send everything that is due now, and wait for it."""
        await self._begin()
        await asyncio.gather(*self._going.values())

    async def _begin(self) -> float | None:
        """Start what is due on every channel that is not at it already; the seconds until another
        attempt is due, None without one.
        """
        now, busy = datetime.now(UTC), list(self._going)

        def look(connection: Connection) -> tuple[list[outbox.Delivery], datetime | None]:
            return outbox.due(connection, now, busy=busy), outbox.next_attempt(connection, now)

        due, later = await asyncio.wrap_future(self._writer.submit(look))
        for name in dict.fromkeys(delivery.channel for delivery in due):
            self._going[name] = asyncio.create_task(
                self._deliver_all(name, [d for d in due if d.channel == name])
            )
        return None if later is None else (later - now).total_seconds()

    async def _deliver_all(self, channel: str, deliveries: Sequence[outbox.Delivery]) -> None:
        try:
            await asyncio.gather(*(self._deliver(delivery) for delivery in deliveries))
        except DatabaseError as error:
            log.warning("channel=%s what was delivered cannot be noted: %s", channel, error)
        else:
            self.wake()  # what came meanwhile, and what waited for these
        finally:
            del self._going[channel]

    async def _deliver(self, delivery: outbox.Delivery) -> None:
        channel = self._channels.get(delivery.channel)
        try:
            if channel is None:
                raise DeliveryError(
                    f"the configuration has no channel {delivery.channel} any more", permanent=True
                )
            await _sent(channel, delivery)
        except DeliveryError as error:
            text, permanent, attempts = str(error), error.permanent, error.attempts
            log.warning(
                "channel=%s event=%s delivery=%s not delivered: %s",
                delivery.channel,
                delivery.event,
                delivery.id,
                text,
            )
            work = self._writer.submit(
                lambda c: outbox.mark_failed(
                    c, delivery, datetime.now(UTC), text, permanent, attempts
                )
            )
        else:
            log.info(
                "channel=%s event=%s delivery=%s delivered",
                delivery.channel,
                delivery.event,
                delivery.id,
            )
            work = self._writer.submit(lambda c: outbox.mark_sent(c, delivery, datetime.now(UTC)))
        await asyncio.wrap_future(work)


async def _sent(channel: Channel, delivery: outbox.Delivery) -> None:
    """Send. Raises DeliveryError and nothing else."""
    try:
        await channel.send(delivery.payload)
    except DeliveryError:
        raise
    # a fault of one channel must not end the loop that serves them all; its text may hold the
    # address
    except Exception as error:
        raise DeliveryError(f"the channel failed with {type(error).__name__}") from None
