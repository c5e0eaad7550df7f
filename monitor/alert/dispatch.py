"""The loop that empties the outbox: reads what is due, sends it, records the result."""

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
    """Returns the channels of a configuration by name."""
    return {channel.name: Webhook(channel) for channel in settings}


class Dispatcher:
    """Sends what is in the outbox. Deliveries to different channels do not wait for each other."""

    def __init__(self, writer: Writer, channels: dict[str, Channel]) -> None:
        self._writer = writer
        self._channels = channels
        self._sending: dict[str, asyncio.Task[None]] = {}  # by channel
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Makes the loop read the outbox at once."""
        self._woken.set()

    async def run(self, every_s: float) -> None:
        """Sends for ever: as soon as this process has queued something, when a retry is due, and
        every `every_s` for what other processes have queued. Waits for a database that is away.
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
            for task in self._sending.values():
                task.cancel()

    async def _listen(self) -> Callable[[], None]:
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, self.wake)
        return await asyncio.wrap_future(
            self._writer.submit(lambda connection: outbox.on_news(connection.engine, wake))
        )

    async def once(self) -> None:
        """Sends everything that is due now, and waits for it."""
        await self._begin()
        await asyncio.gather(*self._sending.values())

    async def _begin(self) -> float | None:
        """Starts what is due on every idle channel. Returns the seconds until the next retry, None
        without one.
        """
        now, busy = datetime.now(UTC), list(self._sending)

        def read(connection: Connection) -> tuple[list[outbox.Delivery], datetime | None]:
            return outbox.due(connection, now, busy=busy), outbox.next_attempt(connection, now)

        due, later = await asyncio.wrap_future(self._writer.submit(read))
        for name in dict.fromkeys(delivery.channel for delivery in due):
            self._sending[name] = asyncio.create_task(
                self._deliver_all(name, [d for d in due if d.channel == name])
            )
        return None if later is None else (later - now).total_seconds()

    async def _deliver_all(self, channel: str, deliveries: Sequence[outbox.Delivery]) -> None:
        try:
            await asyncio.gather(*(self._deliver(delivery) for delivery in deliveries))
        except DatabaseError as error:
            log.warning("channel=%s the result of a delivery cannot be stored: %s", channel, error)
        else:
            self.wake()  # for what was queued meanwhile, and what waited for these
        finally:
            del self._sending[channel]

    async def _deliver(self, delivery: outbox.Delivery) -> None:
        channel = self._channels.get(delivery.channel)
        try:
            if channel is None:
                raise DeliveryError(
                    f"the configuration no longer has a channel {delivery.channel}", permanent=True
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
    """Sends a delivery. Raises DeliveryError and nothing else."""
    try:
        await channel.send(delivery.payload)
    except DeliveryError:
        raise
    # an internal error of one channel must not end the loop for all; its text may contain the
    # address
    except Exception as error:
        raise DeliveryError(f"the channel failed with {type(error).__name__}") from None
