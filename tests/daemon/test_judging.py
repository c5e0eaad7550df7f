"""From what is in the history to incidents, with the time as an argument."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta

import pytest
from drifting import a_canary, a_reading
from histories import NOON, History, a_probe, a_sample
from sqlalchemy import Connection

from monitor.alert import outbox
from monitor.alert.incidents import IncidentLog
from monitor.config.target import TargetSettings
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.judging import close_departed, judge_target
from monitor.daemon.watch import TargetWatch
from monitor.judge.evaluator.assessment import Rules
from monitor.judge.evaluator.availability import Availability, contact_of, page_contact
from monitor.judge.identity import digest
from monitor.judge.quality.gate import pin_for
from monitor.model import (
    FingerprintField,
    Kind,
    Outcome,
    Pin,
    PinnedOutput,
    Probe,
    ServerPage,
    Verdict,
    to_us,
)
from monitor.store import fingerprints, record
from monitor.store.database import open_writer
from monitor.store.writer import Writer

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@pytest.fixture
async def watch(history: History) -> AsyncIterator[TargetWatch]:
    """A target with one probe a minute."""
    writer = Writer(open_writer(history.database))
    settings = TargetSettings.model_validate(
        {"name": "local", "url": "http://127.0.0.1:9", "gpus": "none"}
    )
    made = TargetWatch(settings, [a_probe()], writer, TargetGpus(None, "none"))
    await made.load()
    yield made
    await made.close()
    await asyncio.to_thread(writer.close)


def judged(
    history: History, watch: TargetWatch, now: datetime, since: datetime = NOON - timedelta(hours=2)
) -> list[str]:
    """The kinds of what is open after judging at a moment."""

    def work(connection: Connection) -> list[str]:
        return sorted(i.kind.value for i in judge_target(connection, watch, since, now, ["ops"]))

    return history.do(work)


def reading(history: History, watch: TargetWatch, at: datetime, state: str) -> None:
    """The metrics page was read, or could not be."""
    history.do(
        lambda c: record.insert_server_reading(
            c, watch.target_id, ServerPage(at=at, state=state), None
        )
    )  # type: ignore[arg-type]


def told(history: History) -> list[tuple[str, str]]:
    """Event and kind of each message, in order."""
    return [
        (d.event, d.payload["incident"]["kind"])
        for d in reversed(history.do(lambda c: outbox.log(c, None)))
    ]


def test_any_answer_even_an_error_is_a_sign_of_life_at_the_moment_it_ended() -> None:
    outcomes = (Outcome.OK, Outcome.HTTP_ERROR, Outcome.REJECTED, Outcome.REFUSED, Outcome.TIMEOUT)
    canaries = [contact_of(a_canary(outcome=outcome.value, e2e_ms=1000.0)) for outcome in outcomes]
    assert [contact.answered for contact in canaries] == [True, True, True, False, False]
    assert {contact.at for contact in canaries} == {NOON + SECOND}
    states = ("ok", "http_error", "unreadable", "refused")
    pages = [page_contact(a_reading(state=state), Rules()) for state in states]
    assert [page is not None and page.answered for page in pages] == [True, True, True, False]


def test_a_slow_metrics_page_and_one_at_another_address_say_nothing_of_the_server() -> None:
    assert page_contact(a_reading(state="timeout"), Rules()) is None
    assert page_contact(a_reading(state="refused"), Rules(same_address=False)) is None


def test_a_stream_that_broke_shows_that_the_server_was_there_at_its_first_token() -> None:
    broken = a_canary(outcome="stream_error", ttft_ms=100.0, e2e_ms=30_000.0)
    refused = [a_canary(n / 60, outcome="refused", ttft_ms=None, e2e_ms=0.0) for n in (20, 26)]
    availability = Availability("local", Rules())
    for canary in (*refused, broken):  # in the order in which they were known
        availability.canary(canary)
    [down] = availability.assess(to_us(NOON + 31 * SECOND), lambda _: None).findings
    assert (down.kind, down.since) == (Kind.SERVER_DOWN, NOON + 20 * SECOND)


async def test_one_refusal_is_no_outage_and_two_five_seconds_apart_are(
    history: History, watch: TargetWatch
) -> None:
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


async def test_refusals_before_we_watched_are_not_held_against_it(
    history: History, watch: TargetWatch
) -> None:
    for second in (0, 10):
        reading(history, watch, NOON + second * SECOND, "refused")
    assert judged(history, watch, NOON + 12 * SECOND, since=NOON + 11 * SECOND) == []


async def test_a_hung_canary_opens_hung_and_a_good_one_closes_it(
    history: History, watch: TargetWatch
) -> None:
    history.sample(started_at=NOON, outcome=Outcome.HUNG, ttft_ms=None, e2e_ms=10_000.0)
    assert judged(history, watch, NOON + 15 * SECOND) == ["hung"]
    history.sample(started_at=NOON + MINUTE)
    assert judged(history, watch, NOON + MINUTE + SECOND) == []
    assert told(history) == [("opened", "hung"), ("resolved", "hung")]


async def test_what_we_cancelled_ourselves_says_nothing(
    history: History, watch: TargetWatch
) -> None:
    history.sample(started_at=NOON, outcome=Outcome.HUNG, ttft_ms=None)
    history.sample(started_at=NOON + MINUTE, outcome=Outcome.CANCELLED, ttft_ms=None)
    assert judged(history, watch, NOON + MINUTE + SECOND) == ["hung"]


async def test_no_sample_for_three_intervals_is_said_by_probe_and_closes_with_the_next(
    history: History, watch: TargetWatch
) -> None:
    history.sample(started_at=NOON)
    assert judged(history, watch, NOON + 3 * MINUTE) == []
    assert judged(history, watch, NOON + 3 * MINUTE + SECOND) == ["no_samples"]
    history.sample(started_at=NOON + 4 * MINUTE)
    assert judged(history, watch, NOON + 4 * MINUTE + SECOND) == []
    assert told(history) == [("opened", "no_samples"), ("resolved", "no_samples")]


async def test_silence_while_the_monitor_itself_was_stopped_is_no_silence_of_the_server(
    history: History, watch: TargetWatch
) -> None:
    history.sample(started_at=NOON)
    back = NOON + timedelta(hours=8)
    assert judged(history, watch, back, since=back) == []
    assert judged(history, watch, back + 3 * MINUTE + SECOND, since=back) == ["no_samples"]


async def test_an_incident_that_was_closed_by_hand_opens_anew_while_it_holds(
    history: History, watch: TargetWatch
) -> None:
    history.sample(started_at=NOON, outcome=Outcome.HUNG, ttft_ms=None)
    judged(history, watch, NOON + SECOND)
    [incident] = history.do(lambda c: IncidentLog(c, NOON).open([Kind.HUNG]))
    history.do(
        lambda c: IncidentLog(c, NOON + 2 * SECOND, ("ops",)).close_by_hand(
            incident.id, "closed by hand: no"
        )
    )
    assert judged(history, watch, NOON + 4 * SECOND) == ["hung"]
    assert [event for event, _ in told(history)] == ["opened", "resolved", "opened"]


async def test_the_incidents_of_another_target_are_left_alone(
    history: History, watch: TargetWatch
) -> None:
    history.sample(started_at=NOON)
    history.incident(target="remote", subject="remote")
    judged(history, watch, NOON + SECOND)
    assert history.rows("SELECT count(*) AS n FROM incident WHERE closed_at_us IS NULL") == [
        {"n": 1}
    ]


def departed(history: History, own: list[str], now: datetime) -> list[str]:
    """The targets with something open after those that left were closed."""
    history.do(lambda c: close_departed(c, own, now, ["ops"]))
    return [
        row["target"]
        for row in history.rows(
            "SELECT target FROM incident WHERE closed_at_us IS NULL ORDER BY target"
        )
    ]


async def test_what_is_open_on_a_target_that_left_the_configuration_is_closed_with_that_reason(
    history: History, watch: TargetWatch
) -> None:
    for name in ("local", "remote"):
        history.target(name)
        history.incident(target=name, subject=name)
    assert departed(history, ["local"], NOON + MINUTE) == ["local"]
    [closed] = history.rows("SELECT close_reason FROM incident WHERE closed_at_us IS NOT NULL")
    assert "removed from the configuration" in closed["close_reason"]
    assert ("resolved", "server_down") in told(history)


async def test_a_target_that_another_daemon_still_reads_is_left_alone(
    history: History, watch: TargetWatch
) -> None:
    history.incident()
    reading(history, watch, NOON + 30 * SECOND, "refused")
    assert departed(history, [], NOON + MINUTE) == ["local"]
    assert departed(history, [], NOON + 2 * MINUTE) == []


async def test_a_probe_by_a_cron_line_is_silent_after_three_of_its_own_runs(
    history: History,
) -> None:
    writer = Writer(open_writer(history.database))
    settings = TargetSettings.model_validate(
        {"name": "local", "url": "http://127.0.0.1:9", "gpus": "none"}
    )
    often = TargetWatch(
        settings, [a_probe(every_s=None, cron="*/5 * * * *")], writer, TargetGpus(None, "none")
    )
    await often.load()
    history.sample(started_at=NOON)
    assert judged(history, often, NOON + 15 * MINUTE) == []
    assert judged(history, often, NOON + 15 * MINUTE + SECOND) == ["no_samples"]
    await often.close()
    await asyncio.to_thread(writer.close)


# ---- answers


HOUR = timedelta(hours=1)
Watching = Callable[..., Awaitable[TargetWatch]]


@pytest.fixture
async def watching(history: History) -> AsyncIterator[Watching]:
    """Watches of one target, as after each start of the daemon."""
    writer = Writer(open_writer(history.database))
    settings = TargetSettings.model_validate(
        {"name": "local", "url": "http://127.0.0.1:9", "gpus": "none"}
    )
    made: list[TargetWatch] = []

    async def start(*probes: Probe) -> TargetWatch:
        watch = TargetWatch(settings, probes, writer, TargetGpus(None, "none"))
        await watch.load()
        made.append(watch)
        return watch

    yield start
    for watch in made:
        await watch.close()
    await asyncio.to_thread(writer.close)


def quality(history: History, watch: TargetWatch, now: datetime) -> list[tuple[str, str]]:
    """Subject and summary of what is open about answers, after something new was stored."""
    watch.samples_stored += 1

    def work(connection: Connection) -> list[tuple[str, str]]:
        return [
            (i.subject, i.summary)
            for i in judge_target(connection, watch, now, now, ["ops"])
            if i.kind is Kind.QUALITY
        ]

    return history.do(work)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty newest answers instead of 400, so that a test needs fewer of them."""
    monkeypatch.setattr("monitor.daemon.feed.NEWEST_RUNS", 20)


def busy(history: History, since: datetime, count: int = 25) -> None:
    """Another probe's good answers within two hours."""
    history.samples([a_sample(started_at=since + n * 2 * HOUR / count) for n in range(count)])


async def test_a_probe_that_runs_rarely_is_judged_by_its_last_runs_however_many_others_ran_between(
    history: History, watching: Watching, few: None
) -> None:
    rare = a_probe("rare", every_s=7200.0, pinned=True)
    watch = await watching(a_probe(), rare)
    seen = []
    for run in range(5):
        at = NOON + run * 24 * HOUR
        history.sample(probe="rare", started_at=at, verdict=Verdict.FAIL)
        busy(history, at + MINUTE)
        seen.append([subject for subject, _ in quality(history, watch, at + 3 * HOUR)])
    assert seen == [[], ["rare"], ["rare"], ["rare"], ["rare"]]
    assert (
        quality(history, await watching(a_probe(), rare), NOON + 100 * HOUR)[0][0] == "rare"
    )  # and so after a restart
    for run in range(5, 7):
        history.sample(probe="rare", started_at=NOON + run * 24 * HOUR)
    assert quality(history, watch, NOON + 7 * 24 * HOUR) == []


async def test_broken_answers_with_good_ones_between_are_forgotten(
    history: History, watching: Watching
) -> None:
    watch = await watching(a_probe("free", expect=()))
    for run, verdict in enumerate([Verdict.FAIL, *[Verdict.UNPINNED] * 3, Verdict.FAIL]):
        history.sample(probe="free", started_at=NOON + run * HOUR, verdict=verdict)
        assert quality(history, watch, NOON + run * HOUR + MINUTE) == []
    history.sample(probe="free", started_at=NOON + 6 * HOUR, verdict=Verdict.FAIL)
    assert [subject for subject, _ in quality(history, watch, NOON + 7 * HOUR)] == ["free"]
    history.samples(
        [
            a_sample(probe="free", started_at=NOON + run * HOUR, verdict=Verdict.UNPINNED)
            for run in (8, 9)
        ]
    )
    assert quality(history, watch, NOON + 10 * HOUR) == []


async def test_a_rare_probe_that_waits_for_its_pin_is_told(
    history: History, watching: Watching
) -> None:
    watch = await watching(a_probe("rare", every_s=7200.0, pinned=True))
    history.samples(
        [
            a_sample(probe="rare", started_at=NOON + 2 * n * HOUR, verdict=Verdict.UNPINNED)
            for n in range(3)
        ]
    )
    now = NOON + 4 * HOUR + MINUTE
    [incident] = history.do(lambda c: judge_target(c, watch, now, now, ["ops"]))
    assert (incident.kind, incident.subject) == (Kind.UNKNOWN_LASTING, "rare")
    assert "vllm-canary pin rare" in incident.summary


async def test_a_rare_probe_tells_of_a_model_shift_too(
    history: History, watching: Watching, few: None
) -> None:
    probes = [a_probe(f"p{n}", every_s=86_400.0, pinned=True) for n in range(5)]
    watch = await watching(*probes, a_probe())
    answered = PinnedOutput("Yes", ("Yes",), (1,), (-0.1,), "stop", 5)
    for probe in probes:
        pin = Pin(
            0,
            "local",
            probe.name,
            "first",
            None,
            "checked",
            "me",
            NOON,
            NOON + 720 * HOUR,
            (answered,),
            10,
            0.001,
        )
        await watch.store_pin(pin)
    await watch.reload_pins()
    ids = {pin.probe: pin.id for pin in watch.pins}
    for day in range(3):
        at = NOON + day * 24 * HOUR
        history.samples(
            [
                a_sample(
                    probe=p.name, started_at=at, pin=ids[p.name], logprob_shift=0.5, running=0.0
                )
                for p in probes
            ]
        )
        busy(history, at + MINUTE)
    assert [subject for subject, _ in quality(history, watch, NOON + 60 * HOUR)] == [
        "log-probabilities"
    ]


async def test_a_page_gives_the_reason_of_the_newest_run_that_failed(
    history: History, watching: Watching
) -> None:
    watch = await watching(a_probe())
    history.sample("expected 'apple', got 'banana'", started_at=NOON, verdict=Verdict.FAIL)
    history.sample("expected 'apple', got 'cherry'", started_at=NOON + MINUTE, verdict=Verdict.FAIL)
    history.sample("a near tie", started_at=NOON + 2 * MINUTE, verdict=Verdict.NEAR_TIE)
    history.sample(
        "no first token within 2 s",
        started_at=NOON + 3 * MINUTE,
        outcome=Outcome.QUEUE_CAP,
        verdict=Verdict.UNKNOWN,
    )
    [(_, summary)] = quality(history, watch, NOON + 4 * MINUTE)
    assert "failed 2 of the last 3 runs" in summary
    assert "Latest failure: expected 'apple', got 'cherry'." in summary


async def test_the_second_answer_with_the_same_salt_is_judged(
    history: History, watching: Watching
) -> None:
    watch = await watching(a_probe("pair", same_salt_twice=True))
    for n in range(3):
        history.sample(probe="pair", started_at=NOON + n * MINUTE)
        history.sample(
            probe="pair-again", started_at=NOON + n * MINUTE + SECOND, verdict=Verdict.FAIL
        )
    assert [subject for subject, _ in quality(history, watch, NOON + 4 * MINUTE)] == ["pair-again"]


async def test_failures_over_all_probes_go_on_counting_with_each_new_run(
    history: History, watching: Watching
) -> None:
    names = [f"p{n}" for n in range(12)]
    watch, seen = await watching(*(a_probe(name) for name in names)), []
    for r in range(12):
        at = NOON + r * 15 * MINUTE
        history.samples(
            [
                a_sample(
                    probe=name,
                    started_at=at + n * SECOND,
                    verdict=Verdict.FAIL if (r + n) % 4 == 0 else Verdict.PASS,
                )
                for n, name in enumerate(names)
            ]
        )
        seen += [subject for subject, _ in quality(history, watch, at + MINUTE)]
    assert set(seen) == {"several probes"}


# ---- pins and what is served


def serves(history: History, length: int, at: datetime) -> None:
    """The identity that is read at a moment."""
    fields = {"max_model_len": FingerprintField("max_model_len", "root", length, "a test")}

    def work(connection: Connection) -> None:
        target_id = record.ensure_target(connection, "local", "http://127.0.0.1:9", at)
        known = {f.digest: f.id for f in fingerprints.all_of(connection, target_id)}
        fingerprints.save(
            connection, target_id, digest(fields), fields, at, row_id=known.get(digest(fields))
        )

    history.do(work)


async def pinned(history: History, watching: Watching, at: datetime, days: int = 30) -> int:
    """The number of a pin that was taken at a moment, under what was served then."""
    watch = await watching(a_probe(pinned=True))
    answered = PinnedOutput("Yes", ("Yes",), (1,), (-0.1,), "stop", 5)
    pin = Pin(
        0,
        "local",
        "sky",
        "first",
        None,
        "checked",
        "me",
        at,
        at + timedelta(days=days),
        (answered,),
        10,
        0.001,
    )
    return await watch.store_pin(pin)


async def holding(
    history: History, watching: Watching, now: datetime
) -> tuple[list[tuple[int, bool]], list[str]]:
    """Number and staleness of the pin that judges, after the daemon looked; and which kinds are
    open.
    """
    watch = await watching(a_probe(pinned=True))
    kinds = judged(history, watch, now, since=now)
    pin, stale = pin_for(watch.pins, watch.probes[0], watch.fingerprint_digest())
    return [] if pin is None else [(pin.id, stale)], kinds


async def test_a_pin_from_before_the_daemon_ran_belongs_to_what_it_reads_first(
    history: History, watching: Watching
) -> None:
    first = await pinned(history, watching, NOON)
    serves(history, 1024, NOON + HOUR)
    assert (await holding(history, watching, NOON + HOUR))[0] == [(first, False)]
    serves(history, 4096, NOON + 2 * HOUR)
    assert (await holding(history, watching, NOON + 2 * HOUR))[0] == [(first, True)]
    second = await pinned(history, watching, NOON + 3 * HOUR)
    assert (await holding(history, watching, NOON + 3 * HOUR))[0] == [(second, False)]
    serves(history, 1024, NOON + 4 * HOUR)
    assert (await holding(history, watching, NOON + 4 * HOUR))[0] == [
        (first, False)
    ]  # rolled back to what it was taken under


async def test_a_pin_from_before_the_daemon_ran_is_retired_by_a_newer_one(
    history: History, watching: Watching
) -> None:
    await pinned(history, watching, NOON)
    serves(history, 1024, NOON + HOUR)
    second = await pinned(history, watching, NOON + 2 * HOUR)
    serves(history, 4096, NOON + 3 * HOUR)
    assert (await holding(history, watching, NOON + 3 * HOUR))[0] == [(second, True)]


async def test_of_two_pins_of_an_old_history_the_unfiled_one_gives_way_when_it_is_filed(
    history: History, watching: Watching
) -> None:
    first = await pinned(history, watching, NOON)
    serves(history, 1024, NOON + HOUR)
    second = await pinned(history, watching, NOON + 2 * HOUR)
    history.do(
        lambda c: c.exec_driver_sql(f"UPDATE pin SET retired_at_us = NULL WHERE id = {first}")
    )  # as it was left before
    assert (await holding(history, watching, NOON + 2 * HOUR))[0] == [(second, False)]
    retired = history.rows("SELECT id, fingerprint_id FROM pin WHERE retired_at_us IS NOT NULL")
    assert retired == [{"id": first, "fingerprint_id": 1}]


async def test_an_expiry_ends_when_it_is_pinned_anew_after_a_change(
    history: History, watching: Watching
) -> None:
    serves(history, 1024, NOON)
    await pinned(history, watching, NOON)
    assert (await holding(history, watching, NOON + timedelta(days=31)))[1].count(
        "pin_expired"
    ) == 1
    serves(history, 4096, NOON + timedelta(days=31))
    await pinned(history, watching, NOON + timedelta(days=31, hours=1))
    assert (await holding(history, watching, NOON + timedelta(days=31, hours=2)))[1].count(
        "pin_expired"
    ) == 0
