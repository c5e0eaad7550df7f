"""New rows go into a target's detector, what it finds becomes incidents, and a restart loses
nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from drifting import Tally
from histories import NOON, History, a_probe, a_sample
from sqlalchemy import Connection, delete
from sqlalchemy.exc import OperationalError

from monitor.alert import outbox
from monitor.config.target import TargetSettings
from monitor.daemon import drift as drift_module
from monitor.daemon.drift import DriftWatch
from monitor.daemon.driftstate import codec
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.judging import judge_target
from monitor.daemon.watch import TargetWatch
from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.model import Change, Finding, Incident, Kind, Outcome, Pin, Point, ServerPage, Severity
from monitor.replay.history import replay_history
from monitor.store import detectors, queries, record, tables
from monitor.store.database import open_writer
from monitor.store.writer import Writer

MINUTE = timedelta(minutes=1)
Opened = Callable[..., Awaitable[TargetWatch]]


@pytest.fixture
async def opened(history: History) -> AsyncIterator[Opened]:
    """Opens a target as a daemon does when it starts; a second one is the daemon after a
    restart.
    """
    writer = Writer(open_writer(history.database))
    watches: list[TargetWatch] = []

    async def open_one(make: Callable[[], Any] = Tally) -> TargetWatch:
        settings = TargetSettings.model_validate(
            {"name": "local", "url": "http://127.0.0.1:9", "gpus": "none"}
        )
        drift = DriftWatch("local", DriftSettings(), make)
        watches.append(
            TargetWatch(settings, [a_probe()], writer, TargetGpus(None, "none"), drift=drift)
        )
        await watches[-1].load()
        return watches[-1]

    yield open_one
    for watch in watches:
        await watch.close()
    await asyncio.to_thread(writer.close)


def judged(history: History, watch: TargetWatch, now: datetime) -> list[Incident]:
    """What is open after judging at a moment."""

    def work(connection: Connection) -> list[Incident]:
        return judge_target(connection, watch, NOON - timedelta(hours=2), now, ["ops"])

    return history.do(work)


def measured(history: History, minute: int, decode_tok_s: float) -> None:
    """One canary at a minute after noon."""
    history.sample(started_at=NOON + minute * MINUTE, decode_tok_s=decode_tok_s)


def stored(history: History) -> Tally:
    """The detector as it is stored."""
    [row] = history.rows("SELECT state FROM detector_state")
    return codec(Tally).load(row["state"])


def told(history: History) -> list[tuple[str, str]]:
    """Event and kind of each message, in order."""
    return [
        (d.event, d.payload["incident"]["kind"])
        for d in reversed(history.do(lambda c: outbox.log(c, None)))
    ]


async def test_what_the_detector_finds_opens_an_incident_and_closes_it_when_it_is_over(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    for minute, rate in enumerate((100.0, 80.0)):
        measured(history, minute, rate)
    [incident] = judged(history, watch, NOON + MINUTE)
    assert (incident.kind, incident.subject, incident.severity) == (
        Kind.SPEED,
        "decode",
        Severity.WARNING,
    )
    assert incident.evidence["change_pct"] == pytest.approx(-20)
    measured(history, 2, 30.0)
    assert [i.severity for i in judged(history, watch, NOON + 2 * MINUTE)] == [Severity.PAGE]
    measured(history, 3, 100.0)
    assert judged(history, watch, NOON + 3 * MINUTE) == []
    assert told(history) == [("opened", "speed"), ("updated", "speed"), ("resolved", "speed")]


async def test_a_restart_loses_nothing_and_counts_nothing_twice(
    history: History, opened: Opened
) -> None:
    whole, rates = Tally(), [100.0, 95.0, 80.0, 85.0, 70.0, 99.0, 60.0]
    for minute, rate in enumerate(rates):
        measured(history, minute, rate)
        if minute != 3:  # one that came while no daemon was there
            judged(
                history, await opened(), NOON + minute * MINUTE
            )  # killed and started anew before each look
    assert stored(history).seen == {"CanaryPoint": len(rates)}
    assert told(history) == [("opened", "speed"), ("resolved", "speed"), ("opened", "speed")]
    watch = await opened(lambda: whole)
    history.do(lambda c: c.exec_driver_sql("DELETE FROM detector_state"))
    judged(history, watch, NOON + 7 * MINUTE)
    assert replace(stored(history), advanced_us=0) == replace(whole, advanced_us=0)


async def test_state_is_written_when_something_was_found_and_else_once_a_block(
    history: History, opened: Opened
) -> None:
    watch, stamps = await opened(), []
    for minute, rate in enumerate((100.0, 100.0, 100.0, 80.0, 80.0, 80.0, 80.0, 80.0, 80.0)):
        measured(history, minute, rate)
        judged(history, watch, NOON + minute * MINUTE)
        stamps.append(stored(history).seen["CanaryPoint"])
    assert stamps == [1, 1, 1, 4, 4, 4, 4, 4, 9]


async def test_the_state_of_another_version_is_learnt_anew_from_the_history_and_said(
    history: History, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    for minute, rate in enumerate((100.0, 80.0, 80.0)):
        measured(history, minute, rate)
    judged(history, await opened(), NOON + 2 * MINUTE)
    history.do(
        lambda c: c.exec_driver_sql("UPDATE detector_state SET version = 'newer', state = '{}'")
    )
    [incident] = judged(history, await opened(), NOON + 3 * MINUTE)
    assert incident.kind is Kind.SPEED  # the history had it all
    assert stored(history).seen == {"CanaryPoint": 3}
    [row] = history.rows("SELECT note, version FROM detector_state")
    assert "rebuilt" in row["note"]
    assert "another version of vllm-canary (newer)" in row["note"]
    assert row["version"] == codec(Tally).version_under(DriftSettings())
    assert "rebuilt" in caplog.text


async def test_another_length_of_blocks_is_learnt_anew_and_said(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    measured(history, 0, 100.0)
    judged(history, watch, NOON)
    watch.drift = DriftWatch("local", DriftSettings(block_s=600.0), Tally)
    judged(history, watch, NOON + MINUTE)
    [row] = history.rows("SELECT note FROM detector_state")
    assert "detector.block was changed" in row["note"]


async def test_what_can_no_longer_be_told_after_learning_anew_is_closed_with_that_reason(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    measured(history, 0, 100.0)
    measured(history, 1, 80.0)
    judged(history, watch, NOON + MINUTE)
    later = 60 * 24 * 9  # the good time is no longer remembered
    measured(history, later, 80.0)
    history.do(lambda c: c.exec_driver_sql("UPDATE detector_state SET state = 'broken'"))
    judged(history, await opened(), NOON + later * MINUTE)
    [row] = history.rows("SELECT close_reason FROM incident WHERE kind = 'speed'")
    assert "rebuilt" in row["close_reason"]


async def test_a_long_history_is_taken_up_over_several_looks_and_opens_nothing_on_the_way(
    history: History, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_module, "CHUNK", 4)
    rates = [100.0, *[50.0] * 8, *[100.0] * 3]
    history.samples(
        [a_sample(started_at=NOON + n * MINUTE, decode_tok_s=rate) for n, rate in enumerate(rates)]
    )
    watch, seen = await opened(), []
    for look in range(4):
        judged(history, watch, NOON + 12 * MINUTE + look * timedelta(seconds=2))
        seen.append(told(history))
    assert seen == [[]] * 4
    judged(history, watch, NOON + 20 * MINUTE)
    assert stored(history).seen == {"CanaryPoint": 12}


async def test_streams_of_different_length_are_fed_up_to_the_same_moment(
    history: History, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_module, "CHUNK", 3)
    order: list[int] = []

    class Ordered(Tally):
        def observe(self, point: Point, settings: DriftSettings) -> None:
            order.append(getattr(point, "known_us", point.at_us))

    watch = await opened(Ordered)
    for minute in range(3):
        measured(history, minute, 100.0)
        for quarter in range(4):
            page = ServerPage(at=NOON + minute * MINUTE + quarter * MINUTE / 4, state="ok")
            history.do(
                lambda c, page=page: record.insert_server_reading(c, watch.target_id, page, None)
            )  # type: ignore[misc]
    for look in range(6):
        judged(history, watch, NOON + 10 * MINUTE + look * timedelta(seconds=2))
    assert order == sorted(order)
    assert len(order) == 15


async def test_a_pin_makes_it_learn_anew_once(history: History, opened: Opened) -> None:
    watch = await opened()
    measured(history, 0, 100.0)
    measured(history, 1, 80.0)
    assert judged(history, watch, NOON + MINUTE) != []
    watch.pins = [
        Pin(
            7,
            "local",
            "sky",
            "first",
            None,
            "faster than it looks",
            "",
            NOON,
            NOON + timedelta(days=30),
            (),
            10,
            None,
        )
    ]
    assert judged(history, watch, NOON + 2 * MINUTE) == []
    measured(history, 7, 80.0)
    judged(history, watch, NOON + 8 * MINUTE)
    assert len(stored(history).relearnt_us) == 1
    again = await opened()
    again.pins = watch.pins
    judged(history, again, NOON + 20 * MINUTE)
    assert len(stored(history).relearnt_us) == 1


async def test_what_another_process_has_calibrated_is_taken_up(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    measured(history, 0, 100.0)
    judged(history, watch, NOON)
    kept = history.do(lambda c: detectors.load(c, watch.target_id))
    assert kept is not None
    other = replace(
        kept, at_us=kept.at_us + 1, state=codec(Tally).dump(Tally(first=200.0, last=200.0))
    )
    history.do(lambda c: detectors.save(c, watch.target_id, other))
    measured(history, 1, 100.0)
    assert [i.kind for i in judged(history, watch, NOON + MINUTE)] == [Kind.SPEED]


async def test_a_fault_of_detection_is_a_finding_and_ends_nothing_else(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    measured(history, 0, 100.0)
    measured(history, 1, 50.0)
    judged(history, watch, NOON + MINUTE)
    measured(history, 2, -1.0)
    kinds = [i.kind for i in judged(history, watch, NOON + 2 * MINUTE)]
    assert kinds == [Kind.SPEED, Kind.MONITOR]  # what was open stays open: nothing is known
    history.samples(
        [
            a_sample(
                started_at=NOON + 3 * MINUTE, outcome=Outcome.HUNG, ttft_ms=None, decode_tok_s=None
            )
        ]
    )
    later = judged(history, watch, NOON + 3 * MINUTE)
    assert Kind.HUNG in [i.kind for i in later]
    [off] = [i for i in later if i.kind is Kind.MONITOR]
    assert "calibrate" in off.summary
    history.do(
        lambda c: detectors.save(
            c, watch.target_id, replace(_kept(c, watch), at_us=1, cursor=_end(c, watch))
        )
    )
    assert Kind.MONITOR not in [i.kind for i in judged(history, watch, NOON + 4 * MINUTE)]


async def test_after_a_fault_it_is_tried_again_in_half_an_hour_from_what_was_stored(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    measured(history, 0, 100.0)
    judged(history, watch, NOON)
    measured(history, 1, -1.0)
    assert [i.kind for i in judged(history, watch, NOON + 2 * MINUTE)] == [Kind.MONITOR]
    history.do(lambda c: c.execute(delete(tables.sample).where(tables.sample.c.decode_tok_s < 0)))
    assert Kind.MONITOR in [i.kind for i in judged(history, watch, NOON + 20 * MINUTE)]
    assert Kind.MONITOR not in [i.kind for i in judged(history, watch, NOON + 33 * MINUTE)]


async def test_a_fault_of_the_database_is_no_fault_of_detection(
    history: History, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = await opened()
    measured(history, 0, 100.0)

    def locked(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("database is locked"))

    with monkeypatch.context() as patched:
        patched.setattr(drift_module.points, "newest", locked)
        with pytest.raises(OperationalError):
            judged(history, watch, NOON)
    measured(history, 1, 50.0)
    assert [i.kind for i in judged(history, watch, NOON + MINUTE)] == [Kind.SPEED]


async def test_a_row_from_a_clock_that_was_ahead_is_left_out(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    measured(history, 0, 100.0)
    measured(history, 500_000, 10.0)
    assert judged(history, watch, NOON + MINUTE) == []
    measured(history, 2, 50.0)
    [incident] = judged(history, watch, NOON + 2 * MINUTE)
    assert incident.evidence["change_pct"] == pytest.approx(-50)


async def test_what_was_known_under_a_clock_that_was_set_back_is_learnt_anew(
    history: History, opened: Opened
) -> None:
    watch = await opened()
    measured(history, 500_000, 100.0)
    judged(history, watch, NOON + 500_000 * MINUTE)
    measured(history, 1, 100.0)
    judged(history, watch, NOON + MINUTE)
    [row] = history.rows("SELECT note, at_us FROM detector_state")
    assert "the clock was set back" in row["note"]
    assert stored(history).seen == {"CanaryPoint": 1}


def _kept(connection: Connection, watch: TargetWatch) -> detectors.StoredDetector:
    kept = detectors.load(connection, watch.target_id)
    assert kept is not None
    return kept


def _end(connection: Connection, watch: TargetWatch) -> Any:
    from monitor.store.points import cursor_at

    return cursor_at(connection, watch.target_id, [], None)


async def test_a_suspicion_raises_the_cadence_until_it_is_well_below(
    history: History, opened: Opened
) -> None:
    watch, suspected = await opened(), []
    for minute, rate in enumerate((100.0, 60.0, 75.0, 85.0)):
        measured(history, minute, rate)
        judged(history, watch, NOON + minute * MINUTE)
        assert watch.drift is not None
        suspected.append(watch.drift.suspects)
    assert suspected == [False, True, True, False]


class Comparing(Tally):
    """Finds what the test says of a change of configuration."""

    severity: Severity | None = None

    def findings(self, target: str, now_us: int, settings: DriftSettings) -> list[Finding]:
        if Comparing.severity is None:
            return []
        evidence = {"metric": "decode_tok_s", "change_pct": -12.0}
        return [
            Finding(
                kind=Kind.CONFIG_CHANGE,
                target=target,
                subject="fingerprint",
                severity=Comparing.severity,
                summary="decode rate -12 %",
                since=NOON,
                evidence=evidence,
            )
        ]


async def test_what_a_change_did_is_told_with_the_change_and_holds_it_open(
    history: History, opened: Opened
) -> None:
    watch = await opened(Comparing)
    changes = (Change("vllm_version", "0.31", "0.32"),)
    history.incident(
        kind=Kind.CONFIG_CHANGE,
        subject="vllm_version",
        severity=Severity.WARNING,
        changes=changes,
        channels=["ops"],
    )
    measured(history, 0, 100.0)
    Comparing.severity = Severity.INFO
    [incident] = judged(history, watch, NOON + MINUTE)
    assert incident.evidence["felt"] is False
    Comparing.severity = Severity.WARNING
    for minute in (2, 3):
        [incident] = judged(history, watch, NOON + minute * MINUTE + timedelta(seconds=-30))
    assert (incident.subject, incident.evidence["felt"]) == ("vllm_version", True)
    assert "vllm_version 0.31 → 0.32. Effect since then: decode rate −12.0 %." in incident.summary
    assert told(history) == [("opened", "config_change"), ("updated", "config_change")]
    Comparing.severity = None
    [incident] = judged(history, watch, NOON + 3 * MINUTE)
    assert incident.evidence["felt"] is False


async def test_slower_since_a_change_whose_incident_is_closed_opens_one_of_its_own(
    history: History, opened: Opened
) -> None:
    watch = await opened(Comparing)
    measured(history, 0, 100.0)
    Comparing.severity = Severity.INFO
    assert judged(history, watch, NOON + MINUTE) == []
    Comparing.severity = Severity.WARNING
    assert [i.subject for i in judged(history, watch, NOON + 2 * MINUTE)] == ["fingerprint"]
    Comparing.severity = None
    assert judged(history, watch, NOON + 3 * MINUTE) == []


def a_minute(connection: Connection, minute: int, chance: random.Random) -> None:
    """One reading, one look at a GPU, and one canary, which is slower from the 140th minute on."""
    at, rate = (
        NOON + minute * MINUTE,
        90.0 * (0.85 if minute > 140 else 1.0) * chance.gauss(1, 0.004),
    )
    page = ServerPage(
        at=at,
        state="ok",
        running=1.0,
        waiting=0.0,
        engine_steps=6000.0 * minute,
        generation_tokens=6000.0 * minute,
    )
    record.insert_server_reading(connection, 1, page, None)
    gpu = {
        "count": 12,
        "temp_c_median": chance.gauss(60, 1),
        "sm_clock_mhz_median": 1980.0,
        "util_median": 0.9,
    }
    record.insert_gpu_reading(connection, "GPU-1", at, {**gpu, "power_w_median": 400.0})
    known = {
        "running": 0.0,
        "waiting": 0.0,
        "completion_tokens": 128,
        "gpu_uuid": "GPU-1",
        "sm_clock_mhz": 1980.0,
    }
    timed = {"decode_tok_s": rate, "ttft_ms": chance.gauss(40, 2), "e2e_ms": 40 + 127_000 / rate}
    sample = a_sample(started_at=at + timedelta(seconds=40), fingerprint=None, **timed, **known)
    revision = record.ensure_revision(connection, a_probe(), NOON)
    of_what = {
        "target_id": 1,
        "revision_id": revision,
        "process_start_id": None,
        "fingerprint_id": None,
        "detail": None,
    }
    record.insert_sample(connection, sample, **of_what)


def test_a_replay_finds_to_the_last_digit_what_the_daemon_found_over_many_restarts(
    history: History,
) -> None:
    quick, chance = DriftSettings(learn_h=1.0, learn_blocks=10), random.Random(3)
    watches, found = [DriftWatch("local", quick, Detector)], []
    history.target("local", NOON, {"sky": 60.0})
    for minute in range(200):
        if minute % 37 == 36:
            watches.append(DriftWatch("local", quick, Detector))  # killed and started anew
        with history.engine.begin() as connection:
            a_minute(connection, minute, chance)
        with history.engine.begin() as connection:
            found = (
                watches[-1].step(
                    connection, 1, ["GPU-1"], [], NOON + minute * MINUTE + timedelta(seconds=59)
                )
                or []
            )
    with history.engine.connect() as connection:
        row = queries.target(connection, "local")
        assert row is not None
        replayed = replay_history(connection, row, quick)
    assert [f.kind for f in found] == [Kind.SPEED]
    for here, there in zip(found, [entry.finding for entry in replayed.incidents], strict=True):
        assert (here.key, here.since, here.cause, here.summary) == (
            there.key,
            there.since,
            there.cause,
            there.summary,
        )
        assert here.evidence == there.evidence
