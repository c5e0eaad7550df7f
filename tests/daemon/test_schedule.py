"""When which canary is due, and that every run which did not happen is counted with its reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_SUBMITTED, JobSubmissionEvent
from apscheduler.triggers.interval import IntervalTrigger
from histories import NOON, a_probe

from monitor.daemon import lanes, schedule
from monitor.daemon.lanes import Lane
from monitor.daemon.schedule import Schedule, runs_missed, trigger_of
from monitor.model import Probe

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Watch:
    """A target that keeps what the schedule asks of it."""

    def __init__(self, *probes: Probe, name: str = "local") -> None:
        self.settings = SimpleNamespace(name=name)
        self.probes = list(probes)
        self.skipped: list[tuple[str, str, int]] = []
        self.readings = 0

    def skip(self, probe: str, reason: str, count: int = 1) -> None:
        self.skipped.append((probe, reason, count))

    async def store_reading(self) -> None:
        self.readings += 1


class Rounds:
    """A pair of lanes that keep when which probe ran; each round takes `takes_s`."""

    def __init__(self, watch: Watch, takes_s: float = 0.0) -> None:
        self.ran: list[tuple[str, float]] = []
        self.takes_s = takes_s

        async def run_round(due: Sequence[Probe]) -> None:
            self.ran += [(probe.name, time.monotonic()) for probe in due]
            await asyncio.sleep(self.takes_s)

        order = [probe.name for probe in watch.probes]
        self.lanes = (Lane(order, run_round), Lane(order, run_round))

    def names(self) -> list[str]:
        """What ran, in order."""
        return [name for name, _ in self.ran]


async def run_for(
    seconds: float,
    watches: list[Watch],
    rounds: list[Rounds],
    pause: tuple[float, float] | None = None,
) -> None:
    """Let a schedule work for a while; `pause` = (after, for) stops the whole process as a
    suspended machine does.
    """
    pairs = {watch.settings.name: one.lanes for watch, one in zip(watches, rounds, strict=True)}
    made = Schedule(watches, pairs)  # type: ignore[arg-type]
    loops = [asyncio.create_task(lane.run()) for one in rounds for lane in one.lanes]
    made.start()
    if pause is not None:
        await asyncio.sleep(pause[0])
        time.sleep(pause[1])
    await asyncio.sleep(seconds - sum(pause or ()))
    made.stop()
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


@pytest.mark.parametrize(("minutes", "missed"), [(1, 0), (2, 1), (10, 9), (0, 0)])
def test_runs_between_two_that_were_carried_out_are_counted(minutes: int, missed: int) -> None:
    trigger = trigger_of(a_probe(every_s=60.0), NOON)
    assert runs_missed(trigger, NOON, NOON + minutes * MINUTE) == missed


def test_runs_of_a_cron_line_are_counted_too() -> None:
    trigger = trigger_of(a_probe(every_s=None, cron="*/5 * * * *"), NOON)
    assert runs_missed(trigger, NOON, NOON + 60 * MINUTE) == 11


def test_a_cron_line_is_in_utc() -> None:
    trigger = trigger_of(a_probe(every_s=None, cron="30 8 * * mon-fri"), NOON)
    fire = trigger.get_next_fire_time(None, datetime(2026, 3, 1, 12, 0, tzinfo=UTC))  # a Sunday
    assert fire == datetime(2026, 3, 2, 8, 30, tzinfo=UTC)


def test_a_clock_that_was_set_a_century_ahead_does_not_count_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "MAX_MISSED_COUNTED", 1000)
    trigger = trigger_of(a_probe(every_s=1.0), NOON)
    assert runs_missed(trigger, NOON, NOON + timedelta(days=36_500)) == 1000


def submitted(made: Schedule, at: datetime, code: int = EVENT_JOB_SUBMITTED) -> None:
    """APScheduler says that a run was begun, or could not be, after it has coalesced what was due
    into one.
    """
    event = JobSubmissionEvent(code, "local/sky", "default", [at])
    made._scheduler._dispatch_event(event)


def on_schedule(watch: Watch) -> Schedule:
    """A schedule that was not started."""
    return Schedule([watch], {"local": Rounds(watch).lanes})  # type: ignore[list-item]


async def test_runs_that_a_pause_swallowed_are_counted_when_the_next_begins() -> None:
    watch = Watch(a_probe(every_s=60.0))
    made = on_schedule(watch)
    submitted(made, NOON)
    submitted(made, NOON + MINUTE)
    assert watch.skipped == []
    submitted(made, NOON + 6 * MINUTE)
    assert watch.skipped == [("sky", "pause", 4)]


async def test_a_run_that_finds_the_last_one_at_work_is_counted() -> None:
    watch = Watch(a_probe(every_s=60.0))
    made = on_schedule(watch)
    submitted(made, NOON)
    submitted(made, NOON + MINUTE, EVENT_JOB_MAX_INSTANCES)
    submitted(made, NOON + 2 * MINUTE)
    assert watch.skipped == [("sky", "still_running", 1)]


async def test_runs_that_a_pause_swallowed_are_counted_also_when_a_canary_was_out_during_it() -> (
    None
):
    watch = Watch(a_probe(every_s=60.0))
    made = on_schedule(watch)
    submitted(made, NOON)
    submitted(made, NOON + 6 * MINUTE, EVENT_JOB_MAX_INSTANCES)
    assert sorted(watch.skipped) == [("sky", "pause", 5), ("sky", "still_running", 1)]


async def test_probes_of_one_target_fall_due_together_and_run_back_to_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.05)
    watch = Watch(a_probe("a", every_s=0.5), a_probe("b", every_s=1.0))
    rounds = Rounds(watch)
    await run_for(2.3, [watch], [rounds])
    assert rounds.names()[:5] in (["a", "b", "a", "b", "a"], ["a", "b", "a", "a", "b"])
    times = [at for _, at in rounds.ran]
    assert times[1] - times[0] < 0.05
    assert watch.skipped == []


async def test_targets_are_spread_over_the_shortest_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    first, second = Watch(a_probe(every_s=0.8)), Watch(a_probe(every_s=0.8), name="remote")
    rounds = [Rounds(first), Rounds(second)]
    await run_for(1.2, [first, second], rounds)
    assert rounds[1].ran[0][1] - rounds[0].ran[0][1] == pytest.approx(0.4, abs=0.3)


async def test_after_a_pause_there_is_one_run_and_no_burst_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    watch = Watch(a_probe(every_s=0.2))
    rounds = Rounds(watch)
    await run_for(2.3, [watch], [rounds], pause=(1.0, 1.0))
    ran = len(rounds.ran)
    missed = sum(count for _, reason, count in watch.skipped if reason == "pause")
    assert missed >= 3
    assert {reason for _, reason, _ in watch.skipped} <= {"pause", "still_running"}
    whole = ran + sum(count for _, _, count in watch.skipped)
    assert whole == pytest.approx((2.3 - 0.5) / 0.2 + 1, abs=2.01)


async def test_a_run_whose_predecessor_is_still_at_work_is_skipped_with_that_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    watch = Watch(a_probe(every_s=0.3))
    rounds = Rounds(watch, takes_s=0.8)
    await run_for(2.0, [watch], [rounds])
    assert ("sky", "still_running", 1) in watch.skipped
    assert len(rounds.ran) <= 3


async def test_a_probe_without_a_cap_blinds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    watch = Watch(a_probe("capped", every_s=0.3), a_probe("uncapped", every_s=0.3, max_wait_s=None))
    rounds = Rounds(watch)
    slow = Rounds(watch, takes_s=5.0)
    rounds.lanes = (rounds.lanes[0], slow.lanes[1])
    await run_for(1.9, [watch], [rounds])
    assert slow.names() == ["uncapped"]
    assert rounds.names().count("capped") >= 3


async def test_after_the_clock_was_set_back_the_schedule_restarts_and_nothing_is_missed() -> None:
    watch = Watch(a_probe("a", every_s=60.0), a_probe("b", every_s=60.0, max_wait_s=None))
    made = on_schedule(watch)
    made._scheduler.start(paused=True)
    submitted(made, datetime.now(UTC) + timedelta(hours=3))
    for job in made._scheduler.get_jobs():  # as a clock that was set back by three hours finds them
        job.reschedule(
            IntervalTrigger(
                seconds=60, start_date=datetime.now(UTC) + timedelta(hours=3), timezone=UTC
            )
        )
    made.restart()
    soon = datetime.now(UTC) + timedelta(seconds=35)
    assert len(made._scheduler.get_jobs()) == 3
    assert all(job.next_run_time < soon for job in made._scheduler.get_jobs())
    submitted(made, datetime.now(UTC))
    made.stop()
    assert watch.skipped == []


async def test_a_clock_that_was_set_back_is_noticed_once_and_one_that_jumps_ahead_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, noticed = iter([0.0, 0.0, -3600.0, -3600.0, 7200.0, 7199.5]), []
    monkeypatch.setattr(schedule, "CLOCK_EVERY_S", 0.0)
    monkeypatch.setattr(
        schedule, "time", SimpleNamespace(time=lambda: 1e9 + next(steps), monotonic=lambda: 50.0)
    )
    with pytest.raises(RuntimeError, match="StopIteration"):
        await schedule.watch_clock(noticed.append)
    assert noticed == [timedelta(hours=1)]


async def test_the_metrics_page_is_read_on_a_clock_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "READING_EVERY_S", 0.2)
    watch: Any = Watch(a_probe(every_s=60.0))
    await run_for(1.4, [watch], [Rounds(watch)])
    assert 3 <= watch.readings <= 6
