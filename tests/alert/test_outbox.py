"""The outbox: in order, with back-off, given up after a day; and the loop that empties it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from histories import NOON, History, a_finding
from sqlalchemy import Connection
from webhooks import Receiver

from monitor.alert import outbox
from monitor.alert.channel import Channel, DeliveryError
from monitor.alert.dispatch import Dispatcher, channels_of
from monitor.alert.incidents import IncidentLog
from monitor.alert.outbox import BACK_OFF, Delivery
from monitor.alert.webhook import ATTEMPTS
from monitor.config.settings import ChannelSettings
from monitor.model import Incident, Kind, Severity
from monitor.store.database import open_writer
from monitor.store.writer import Writer

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def writer(history: History) -> Iterator[Writer]:
    """The writer of a daemon."""
    made = Writer(open_writer(history.database))
    yield made
    made.close()


class Recorder:
    """A channel that keeps what it is given; `errors` are raised first, one a message."""

    def __init__(self, name: str, *errors: DeliveryError, delay_s: float = 0.0) -> None:
        self.name, self._errors, self._delay_s = name, list(errors), delay_s
        self.sent: list[dict[str, Any]] = []

    async def send(self, payload: dict[str, Any]) -> None:
        await asyncio.sleep(self._delay_s)
        if self._errors:
            raise self._errors.pop(0)
        self.sent.append(payload)


def due(history: History, now: datetime = NOON) -> list[tuple[str, str]]:
    """Channel and event of what should be sent at a moment."""
    return [(d.channel, d.event) for d in history.do(lambda c: outbox.due(c, now))]


def delivery(history: History, channel: str = "ops", event: str = "opened") -> Delivery:
    """One delivery as it is now."""
    return next(
        d
        for d in history.do(lambda c: outbox.log(c, None))
        if (d.channel, d.event) == (channel, event)
    )


def fail(history: History, one: Delivery, at: datetime, permanent: bool = False) -> Delivery:
    """An attempt that did not arrive."""
    history.do(lambda c: outbox.mark_failed(c, one, at, "answered HTTP 500", permanent))
    return next(d for d in history.do(lambda c: outbox.log(c, None)) if d.id == one.id)


def sent(history: History, one: Delivery, at: datetime = NOON) -> None:
    """An attempt that arrived."""
    history.do(lambda c: outbox.mark_sent(c, one, at))


def all_due(history: History) -> None:
    """No back-off any more: as after a while."""
    history.do(
        lambda c: c.exec_driver_sql(
            "UPDATE delivery SET next_attempt_at_us = 0 WHERE state = 'pending'"
        )
    )


def closed(
    history: History, incident: Any, channels: tuple[str, ...], at: datetime = NOON + MINUTE
) -> None:
    """The end of an incident, told."""
    history.do(lambda c: IncidentLog(c, at, channels).close(incident, "over"))


def test_a_new_message_is_due_at_once(history: History) -> None:
    history.incident(channels=("ops",))
    assert due(history) == [("ops", "opened")]


def test_a_sent_message_is_never_due_again(history: History) -> None:
    history.incident(channels=("ops",))
    sent(history, delivery(history))
    assert due(history, NOON + 100 * HOUR) == []
    assert (delivery(history).state, delivery(history).attempts) == ("sent", 1)


def test_each_failure_waits_longer_and_the_id_stays(history: History) -> None:
    history.incident(channels=("ops",))
    one, now = delivery(history), NOON
    first_id, pauses = one.id, []
    for _ in range(len(BACK_OFF) + 2):
        one = fail(history, one, now)
        assert one.next_attempt_at is not None
        pauses.append(one.next_attempt_at - now)
        assert due(history, one.next_attempt_at - timedelta(microseconds=1)) == []
        assert due(history, one.next_attempt_at) == [("ops", "opened")]
        now = one.next_attempt_at
    assert pauses == sorted(pauses)
    assert pauses[:2] == [timedelta(seconds=2), timedelta(seconds=10)]
    assert pauses[-1] == pauses[-2] == BACK_OFF[-1]
    assert (one.id, one.attempts, one.last_error) == (
        first_id,
        len(BACK_OFF) + 2,
        "answered HTTP 500",
    )


def test_after_a_day_it_is_given_up_and_said(history: History) -> None:
    history.incident(channels=("ops",))
    assert fail(history, delivery(history), NOON + 24 * HOUR).state == "pending"
    assert fail(history, delivery(history), NOON + 24 * HOUR + MINUTE).state == "failed"
    assert due(history, NOON + 48 * HOUR) == []
    assert history.do(lambda c: outbox.undelivered(c, NOON)) == 1


def test_what_was_given_up_long_ago_is_not_counted_for_ever_and_what_waits_is(
    history: History,
) -> None:
    history.incident(channels=("ops", "mail"))
    fail(history, delivery(history), NOON + 24 * HOUR + MINUTE)
    assert history.do(lambda c: outbox.undelivered(c, NOON + HOUR)) == 1


def test_a_permanent_failure_is_final_at_once(history: History) -> None:
    history.incident(channels=("ops",))
    assert fail(history, delivery(history), NOON, permanent=True).state == "failed"
    assert due(history, NOON + HOUR) == []


def test_a_failure_that_may_pass_is_given_up_after_its_attempts(history: History) -> None:
    history.incident(channels=("ops",))
    one, now, states = delivery(history), NOON, []
    for _ in range(3):
        history.do(
            lambda c, one=one, now=now: outbox.mark_failed(
                c, one, now, "answered HTTP 404", False, at_most=3
            )
        )
        one = delivery(history)
        states.append((one.state, one.attempts))
        now = one.next_attempt_at or now
    assert states == [("pending", 1), ("pending", 2), ("failed", 3)]
    assert due(history, NOON + HOUR) == []


def test_the_next_attempt_is_the_earliest_that_still_waits(history: History) -> None:
    assert history.do(lambda c: outbox.next_attempt(c, NOON)) is None
    history.incident(channels=("ops", "boss"))
    assert (
        history.do(lambda c: outbox.next_attempt(c, NOON)) is None
    )  # due now, so that nobody waits for them
    fail(history, fail(history, delivery(history, "ops"), NOON), NOON)
    fail(history, delivery(history, "boss"), NOON)
    assert history.do(lambda c: outbox.next_attempt(c, NOON)) == NOON + BACK_OFF[0]
    assert history.do(lambda c: outbox.next_attempt(c, NOON + BACK_OFF[0])) == NOON + BACK_OFF[1]
    sent(history, delivery(history, "ops"))
    sent(history, delivery(history, "boss"))
    assert history.do(lambda c: outbox.next_attempt(c, NOON)) is None


def test_the_end_of_an_incident_waits_for_its_beginning(history: History) -> None:
    incident = history.incident(channels=("ops",))
    fail(history, delivery(history), NOON)
    closed(history, incident, ("ops",))
    assert due(history, NOON + MINUTE) == [("ops", "opened")]
    sent(history, delivery(history))
    assert due(history, NOON + MINUTE) == [("ops", "resolved")]


def test_it_waits_also_where_another_channel_has_had_the_beginning(history: History) -> None:
    incident = history.incident(channels=("ops", "boss"))
    sent(history, delivery(history, "ops"))
    fail(
        history, delivery(history, "boss"), NOON + MINUTE - timedelta(seconds=1)
    )  # boss waits until one second after the end
    closed(history, incident, ("ops", "boss"))
    assert due(history, NOON + MINUTE) == [("ops", "resolved")]


def test_it_waits_also_where_another_incident_of_the_channel_ends_in_the_same_moment(
    history: History,
) -> None:
    first, second = (
        history.incident(channels=("ops",)),
        history.incident(kind=Kind.HUNG, channels=("ops",)),
    )
    one = next(d for d in history.do(lambda c: outbox.log(c, None)) if d.incident_id == first.id)
    other = next(d for d in history.do(lambda c: outbox.log(c, None)) if d.incident_id == second.id)
    sent(history, one)
    fail(history, other, NOON + MINUTE - timedelta(seconds=1))
    closed(history, first, ("ops",))
    closed(history, second, ("ops",))
    ready = history.do(lambda c: outbox.due(c, NOON + MINUTE))
    assert [(d.incident_id, d.event) for d in ready] == [(first.id, "resolved")]


def test_a_message_that_was_given_up_does_not_hold_back_the_next(history: History) -> None:
    incident = history.incident(channels=("ops",))
    fail(history, delivery(history), NOON, permanent=True)
    closed(history, incident, ("ops",))
    assert due(history, NOON + MINUTE) == [("ops", "resolved")]


def test_incidents_are_told_in_the_order_they_happened(history: History) -> None:
    history.incident(NOON + 2 * MINUTE, ("ops",), kind=Kind.HUNG)
    history.incident(NOON, ("ops",))
    ready = history.do(lambda c: outbox.due(c, NOON + HOUR))
    assert [d.created_at for d in ready] == [NOON, NOON + 2 * MINUTE]


async def test_the_loop_sends_each_message_once_and_notes_it(
    history: History, writer: Writer
) -> None:
    history.incident(datetime.now(UTC), channels=("ops",))
    channel = Recorder("ops")
    dispatcher = Dispatcher(writer, {"ops": channel})
    await dispatcher.once()
    await dispatcher.once()
    assert [p["event"] for p in channel.sent] == ["opened"]
    assert delivery(history).state == "sent"


async def test_a_failed_attempt_is_tried_again_with_the_same_id(
    history: History, writer: Writer
) -> None:
    history.incident(datetime.now(UTC), channels=("ops",))
    channel = Recorder("ops", DeliveryError("answered HTTP 500"))
    await Dispatcher(writer, {"ops": channel}).once()
    assert (channel.sent, delivery(history).state, delivery(history).last_error) == (
        [],
        "pending",
        "answered HTTP 500",
    )
    all_due(history)
    await Dispatcher(writer, {"ops": channel}).once()
    assert [p["id"] for p in channel.sent] == [delivery(history).id]
    assert (delivery(history).state, delivery(history).attempts, delivery(history).last_error) == (
        "sent",
        2,
        None,
    )


async def test_a_restart_delivers_what_was_pending_once(history: History, writer: Writer) -> None:
    history.incident(datetime.now(UTC), channels=("ops",))
    history.incident(datetime.now(UTC), kind=Kind.HUNG, channels=("ops",))
    first = Recorder("ops", DeliveryError("no connection"))
    await Dispatcher(writer, {"ops": first}).once()  # one arrives, one fails; then the process ends
    all_due(history)
    second = Recorder("ops")
    dispatcher = Dispatcher(writer, {"ops": second})
    await dispatcher.once()
    await dispatcher.once()
    assert (len(first.sent), len(second.sent)) == (1, 1)
    assert len({p["id"] for p in [*first.sent, *second.sent]}) == 2


async def test_a_channel_that_was_taken_out_of_the_configuration_is_said_and_not_tried_for_ever(
    history: History, writer: Writer
) -> None:
    history.incident(datetime.now(UTC), channels=("ops",))
    await Dispatcher(writer, {}).once()
    assert (delivery(history).state, delivery(history).last_error) == (
        "failed",
        "the configuration no longer has a channel ops",
    )


@asynccontextmanager
async def running(
    writer: Writer, *channels: Channel, every_s: float = 3600.0
) -> AsyncIterator[None]:
    """The loop at work. It looks into the outbox by itself once an hour: what arrives in a test was
    told to it.
    """
    task = asyncio.create_task(
        Dispatcher(writer, {channel.name: channel for channel in channels}).run(every_s)
    )
    await asyncio.sleep(0.1)  # its first look is over
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], object]) -> float:
    """Seconds until something is so; ten at most."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < 10, "not within ten seconds"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


async def reported(writer: Writer, *channels: str, **finding: Any) -> Incident:
    """An incident of this process, stored as the daemon stores it."""
    return await asyncio.wrap_future(
        writer.submit(
            lambda c: IncidentLog(c, datetime.now(UTC), channels).report(a_finding(**finding))
        )
    )


async def test_what_this_process_finds_is_sent_at_once_and_not_at_the_next_look(
    writer: Writer,
) -> None:
    ops = Recorder("ops")
    async with running(writer, ops):
        for kind in (Kind.HUNG, Kind.SERVER_DOWN, Kind.NO_SAMPLES):
            await reported(writer, "ops", kind=kind)
            await until(lambda kind=kind: kind.value in [p["incident"]["kind"] for p in ops.sent])
    assert len(ops.sent) == 3


async def test_the_end_that_waited_for_the_beginning_follows_it_at_once(writer: Writer) -> None:
    ops = Recorder("ops", delay_s=0.2)
    async with running(writer, ops):
        incident = await reported(writer, "ops")
        await asyncio.wrap_future(
            writer.submit(
                lambda c: IncidentLog(c, datetime.now(UTC), ("ops",)).close(incident, "over")
            )
        )
        await until(lambda: len(ops.sent) == 2)
    assert [p["event"] for p in ops.sent] == ["opened", "resolved"]


async def test_an_attempt_that_failed_is_made_again_when_it_is_due(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "BACK_OFF", (timedelta(seconds=0.3),))
    ops = Recorder("ops", DeliveryError("answered HTTP 500"), DeliveryError("answered HTTP 500"))
    async with running(writer, ops):
        await reported(writer, "ops")
        assert await until(lambda: ops.sent) >= 0.55


async def test_many_messages_at_once_all_arrive(writer: Writer) -> None:
    ops = Recorder("ops")
    async with running(writer, ops):
        for number in range(50):
            writer.submit(
                lambda c, n=number: IncidentLog(c, datetime.now(UTC), ("ops",)).report(
                    a_finding(subject=f"probe-{n}")
                )
            )
        await until(lambda: len(ops.sent) == 50)
    assert len({p["id"] for p in ops.sent}) == 50


async def test_what_another_process_wants_told_is_found_at_the_next_look(
    history: History, writer: Writer
) -> None:
    ops = Recorder("ops")
    async with running(writer, ops, every_s=0.2):
        history.incident(datetime.now(UTC), ("ops",))
        await until(lambda: ops.sent)


async def test_a_transaction_that_fails_wakes_nobody_and_the_next_one_does(writer: Writer) -> None:
    woken: list[int] = []
    engine = await asyncio.wrap_future(writer.submit(lambda c: c.engine))
    deaf = outbox.on_news(engine, lambda: woken.append(1))

    def fails(connection: Connection) -> None:
        outbox.add(connection, "1", "ops", "opened", {}, NOON)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        await asyncio.wrap_future(writer.submit(fails))
    assert woken == []
    await reported(writer, "ops")
    assert woken == [1]
    deaf()
    await reported(writer, "ops", kind=Kind.HUNG)
    assert woken == [1]


async def test_a_slow_channel_does_not_hold_back_another(history: History, writer: Writer) -> None:
    slow, fast = Recorder("slow", delay_s=3.0), Recorder("fast")
    history.incident(datetime.now(UTC), ("slow",))
    task = asyncio.create_task(Dispatcher(writer, {"slow": slow, "fast": fast}).run(every_s=0.05))
    await asyncio.sleep(0.3)  # the slow one is at it
    history.incident(datetime.now(UTC), ("fast",), kind=Kind.HUNG)
    began = time.monotonic()
    while not fast.sent and time.monotonic() - began < 2:
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [p["incident"]["kind"] for p in fast.sent] == ["hung"]


async def test_a_message_on_its_way_is_not_sent_a_second_time(
    history: History, writer: Writer
) -> None:
    slow = Recorder("slow", delay_s=0.4)
    history.incident(datetime.now(UTC), ("slow",))
    task = asyncio.create_task(Dispatcher(writer, {"slow": slow}).run(every_s=0.02))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(slow.sent) == 1


async def test_an_unknown_error_of_a_channel_is_a_failed_attempt_and_not_the_end_of_the_loop(
    history: History, writer: Writer
) -> None:
    class Broken(Recorder):
        async def send(self, payload: dict[str, Any]) -> None:
            raise ValueError("http://127.0.0.1/T0KEN is odd")

    good = Recorder("good")
    history.incident(datetime.now(UTC), ("broken", "good"))
    await Dispatcher(writer, {"broken": Broken("broken"), "good": good}).once()
    assert len(good.sent) == 1
    broken = delivery(history, "broken")
    assert (broken.state, broken.attempts) == ("pending", 1)
    assert "T0KEN" not in str(broken.last_error)


async def test_a_receiver_that_is_put_up_anew_gets_what_it_refused_meanwhile(
    writer: Writer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "BACK_OFF", (timedelta(seconds=0.05),))
    receiver.statuses = [404, 401, 403]
    ops = channels_of([ChannelSettings(name="ops", kind="webhook", url=receiver.url)])["ops"]
    async with running(writer, ops):
        await reported(writer, "ops")
        await until(lambda: len(receiver.deliveries) == 4)
    assert len({d["id"] for d in receiver.deliveries}) == 1


async def test_a_receiver_that_is_gone_for_good_is_given_up_and_said(
    history: History, writer: Writer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "BACK_OFF", (timedelta(seconds=0.02),))
    receiver.statuses = [404] * 50
    ops = channels_of([ChannelSettings(name="ops", kind="webhook", url=receiver.url)])["ops"]
    async with running(writer, ops):
        await reported(writer, "ops")
        await until(lambda: delivery(history).state == "failed")
    assert (delivery(history).attempts, delivery(history).last_error) == (
        ATTEMPTS,
        "answered HTTP 404",
    )


async def test_through_a_real_webhook_news_arrive_in_order(
    history: History, writer: Writer, receiver: Receiver
) -> None:
    settings = ChannelSettings(name="ops", kind="webhook", url=receiver.url)
    now = datetime.now(UTC)
    incident = history.incident(now - 2 * MINUTE, channels=("ops",))
    history.do(
        lambda c: IncidentLog(c, now - MINUTE, ("ops",)).report(
            a_finding(severity=Severity.WARNING)
        )
    )
    closed(history, incident, ("ops",), now)
    receiver.statuses = [500]
    dispatcher = Dispatcher(writer, channels_of([settings]))
    for _ in range(4):
        await dispatcher.once()
        all_due(history)
    assert [d["event"] for d in receiver.deliveries] == ["opened", "opened", "updated", "resolved"]
    assert len({d["id"] for d in receiver.deliveries}) == 3
