"""From what is in the history to incidents, with the time as an argument."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from histories import NOON, History, a_probe, a_sample
from sqlalchemy import Connection

from monitor.alert import outbox
from monitor.config.settings import TargetSettings
from monitor.daemon.cards import TargetCards
from monitor.daemon.judging import close_departed, contacts_of, judge_target
from monitor.daemon.watch import TargetWatch
from monitor.model import Kind, Outcome, ServerPage
from monitor.store import record
from monitor.store.database import open_writer
from monitor.store.writer import Writer

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
async def watch(history: History) -> AsyncIterator[TargetWatch]:
    """A target with one probe a minute."""
    writer = Writer(open_writer(history.database))
    settings = TargetSettings.model_validate({"name": "local", "url": "http://127.0.0.1:9", "gpus": "none"})
    made = TargetWatch(settings, [a_probe()], writer, TargetCards(None, "none"))
    await made.load()
    yield made
    await made.close()
    await asyncio.to_thread(writer.close)


def judged(history: History, watch: TargetWatch, now: datetime, since: datetime = NOON - timedelta(hours=2)) -> list[str]:
    """The kinds of what is open after judging at a moment."""

    def work(connection: Connection) -> list[str]:
        return sorted(i.kind.value for i in judge_target(connection, watch, since, now, ["ops"]))

    return history.do(work)


def reading(history: History, watch: TargetWatch, at: datetime, state: str) -> None:
    """The metrics page was read, or could not be."""
    history.do(lambda c: record.insert_server_reading(c, watch.target_id, ServerPage(at=at, state=state), None))  # type: ignore[arg-type]


def told(history: History) -> list[tuple[str, str]]:
    """Event and kind of each message, in order."""
    return [(d.event, d.payload["incident"]["kind"]) for d in reversed(history.do(lambda c: outbox.log(c, None)))]


def test_any_answer_even_an_error_is_a_sign_of_life_at_the_moment_it_ended() -> None:
    outcomes = (Outcome.OK, Outcome.HTTP_ERROR, Outcome.REJECTED, Outcome.REFUSED, Outcome.TIMEOUT)
    samples = [a_sample(outcome=outcome, started_at=NOON + n * MINUTE, e2e_ms=1000.0) for n, outcome in enumerate(outcomes)]
    states = ("ok", "http_error", "unreadable", "refused", "timeout")
    readings = [(NOON + n * MINUTE, state) for n, state in enumerate(states)]
    contacts = contacts_of(samples, readings)
    assert [c.answered for c in contacts if c.detail.startswith("a canary")] == [True, True, True, False, False]
    assert [c.answered for c in contacts if c.detail.startswith("the metrics page")] == [True, True, True, False]
    assert contacts == sorted(contacts, key=lambda c: c.at)
    assert contacts[1].at - contacts[0].at == SECOND  # the page at noon, the canary when it ended


def test_a_slow_metrics_page_and_one_at_another_address_say_nothing_of_the_server() -> None:
    readings = [(NOON, "timeout"), (NOON + MINUTE, "refused")]
    assert [c.answered for c in contacts_of([], readings)] == [False]
    assert contacts_of([], readings, same_address=False) == []


def test_a_stream_that_broke_shows_a_server_that_was_there_at_its_first_token_and_not_at_its_end() -> None:
    broken = a_sample(started_at=NOON, outcome=Outcome.STREAM_ERROR, ttft_ms=100.0, e2e_ms=30_000.0)
    refused = [a_sample(started_at=NOON + n * SECOND, outcome=Outcome.REFUSED) for n in (20, 26)]
    assert [contact.answered for contact in contacts_of([broken, *refused], [])] == [True, False, False]



async def test_one_refusal_is_no_outage_and_two_five_seconds_apart_are(history: History, watch: TargetWatch) -> None:
    history.sample(started_at=NOON)
    reading(history, watch, NOON + 10 * SECOND, "refused")
    assert judged(history, watch, NOON + 11 * SECOND) == []
    reading(history, watch, NOON + 15 * SECOND, "refused")
    assert judged(history, watch, NOON + 16 * SECOND) == ["server_down"]
    assert judged(history, watch, NOON + 18 * SECOND) == ["server_down"]
    assert told(history) == [("opened", "server_down")]


async def test_an_outage_closes_with_the_first_answer(history: History, watch: TargetWatch) -> None:
    history.sample(started_at=NOON)
    for second in (10, 20):
        reading(history, watch, NOON + second * SECOND, "refused")
    judged(history, watch, NOON + 21 * SECOND)
    reading(history, watch, NOON + 30 * SECOND, "http_error")
    assert judged(history, watch, NOON + 31 * SECOND) == []
    assert told(history) == [("opened", "server_down"), ("resolved", "server_down")]


async def test_refusals_before_we_watched_are_not_held_against_it(history: History, watch: TargetWatch) -> None:
    for second in (0, 10):
        reading(history, watch, NOON + second * SECOND, "refused")
    assert judged(history, watch, NOON + 12 * SECOND, since=NOON + 11 * SECOND) == []


async def test_a_hung_canary_opens_hung_and_a_good_one_closes_it(history: History, watch: TargetWatch) -> None:
    history.sample(started_at=NOON, outcome=Outcome.HUNG, ttft_ms=None, e2e_ms=10_000.0)
    assert judged(history, watch, NOON + 15 * SECOND) == ["hung"]
    history.sample(started_at=NOON + MINUTE)
    assert judged(history, watch, NOON + MINUTE + SECOND) == []
    assert told(history) == [("opened", "hung"), ("resolved", "hung")]


async def test_what_we_cancelled_ourselves_says_nothing(history: History, watch: TargetWatch) -> None:
    history.sample(started_at=NOON, outcome=Outcome.HUNG, ttft_ms=None)
    history.sample(started_at=NOON + MINUTE, outcome=Outcome.CANCELLED, ttft_ms=None)
    assert judged(history, watch, NOON + MINUTE + SECOND) == ["hung"]


async def test_no_sample_for_three_intervals_is_said_by_probe_and_closes_with_the_next(history: History, watch: TargetWatch) -> None:
    history.sample(started_at=NOON)
    assert judged(history, watch, NOON + 3 * MINUTE) == []
    assert judged(history, watch, NOON + 3 * MINUTE + SECOND) == ["no_samples"]
    history.sample(started_at=NOON + 4 * MINUTE)
    assert judged(history, watch, NOON + 4 * MINUTE + SECOND) == []
    assert told(history) == [("opened", "no_samples"), ("resolved", "no_samples")]


async def test_silence_while_the_monitor_itself_was_stopped_is_no_silence_of_the_server(history: History, watch: TargetWatch) -> None:
    history.sample(started_at=NOON)
    back = NOON + timedelta(hours=8)
    assert judged(history, watch, back, since=back) == []
    assert judged(history, watch, back + 3 * MINUTE + SECOND, since=back) == ["no_samples"]


async def test_an_incident_that_was_closed_by_hand_opens_anew_while_it_holds(history: History, watch: TargetWatch) -> None:
    from monitor.alert import incidents

    history.sample(started_at=NOON, outcome=Outcome.HUNG, ttft_ms=None)
    judged(history, watch, NOON + SECOND)
    [incident] = history.do(lambda c: incidents.open_incidents(c, "local", [Kind.HUNG]))
    history.do(lambda c: incidents.close_by_hand(c, incident.id, NOON + 2 * SECOND, "closed by hand: no", ("ops",)))
    assert judged(history, watch, NOON + 4 * SECOND) == ["hung"]
    assert [event for event, _ in told(history)] == ["opened", "resolved", "opened"]


async def test_the_incidents_of_another_target_are_left_alone(history: History, watch: TargetWatch) -> None:
    history.sample(started_at=NOON)
    history.incident(target="remote", subject="remote")
    judged(history, watch, NOON + SECOND)
    assert history.rows("SELECT count(*) AS n FROM incident WHERE closed_at_us IS NULL") == [{"n": 1}]


def departed(history: History, own: list[str], now: datetime) -> list[str]:
    """The targets with something open after those that left were closed."""
    history.do(lambda c: close_departed(c, own, now, ["ops"]))
    return [row["target"] for row in history.rows("SELECT target FROM incident WHERE closed_at_us IS NULL ORDER BY target")]


async def test_what_is_open_on_a_target_that_left_the_configuration_is_closed_with_that_reason(
    history: History, watch: TargetWatch
) -> None:
    for name in ("local", "remote"):
        history.target(name)
        history.incident(target=name, subject=name)
    assert departed(history, ["local"], NOON + MINUTE) == ["local"]
    [closed] = history.rows("SELECT close_reason FROM incident WHERE closed_at_us IS NOT NULL")
    assert "configuration has it no longer" in closed["close_reason"]
    assert ("resolved", "server_down") in told(history)


async def test_a_target_that_another_daemon_still_reads_is_left_alone(history: History, watch: TargetWatch) -> None:
    history.incident()
    reading(history, watch, NOON + 30 * SECOND, "refused")
    assert departed(history, [], NOON + MINUTE) == ["local"]
    assert departed(history, [], NOON + 2 * MINUTE) == []


async def test_a_probe_by_a_cron_line_is_silent_after_three_of_its_own_runs(history: History) -> None:
    writer = Writer(open_writer(history.database))
    settings = TargetSettings.model_validate({"name": "local", "url": "http://127.0.0.1:9", "gpus": "none"})
    often = TargetWatch(settings, [a_probe(every_s=None, cron="*/5 * * * *")], writer, TargetCards(None, "none"))
    await often.load()
    history.sample(started_at=NOON)
    assert judged(history, often, NOON + 15 * MINUTE) == []
    assert judged(history, often, NOON + 15 * MINUTE + SECOND) == ["no_samples"]
    await often.close()
    await asyncio.to_thread(writer.close)
