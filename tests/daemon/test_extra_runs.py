"""Measuring more often while something looks wrong."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from histories import a_probe

from monitor.daemon import lanes
from monitor.daemon.extra_runs import ExtraRuns
from monitor.daemon.lanes import Lane, run_extras
from monitor.model import Probe

SKY, SEA = a_probe("sky", every_s=60.0), a_probe("sea", every_s=120.0)


def names(probes: list[Probe]) -> list[str]:
    return [probe.name for probe in probes]


def test_between_two_scheduled_runs_there_are_three_more() -> None:
    extra_runs, extra = ExtraRuns(), []
    for second in range(0, 121):
        if second % 60 == 0:
            extra_runs.begin(SKY, second)
        elif extra_runs.due([SKY], second):
            extra_runs.request(SKY)
            assert extra_runs.begin(SKY, second)
            extra.append(second)
    assert extra == [15, 30, 45, 75, 90, 105]


def test_when_the_scheduled_run_is_late_no_further_ones_are_made_up() -> None:
    extra_runs = ExtraRuns()
    extra_runs.begin(SKY, 0)
    for second in (15, 30, 45):
        extra_runs.request(SKY)
        extra_runs.begin(SKY, second)
    assert extra_runs.due([SKY], 300) == []
    assert extra_runs.begin(SKY, 301) is False  # the scheduled one
    assert names(extra_runs.due([SKY], 316)) == ["sky"]


def test_each_probe_has_its_own_interval_and_one_that_was_asked_is_not_asked_again() -> None:
    extra_runs = ExtraRuns()
    for probe in (SKY, SEA):
        extra_runs.begin(probe, 0)
    assert names(extra_runs.due([SKY, SEA], 20)) == ["sky"]
    assert names(extra_runs.due([SKY, SEA], 30)) == ["sky", "sea"]
    extra_runs.request(SKY)
    assert names(extra_runs.due([SKY, SEA], 30)) == ["sea"]
    extra_runs.cancel(SKY)
    assert names(extra_runs.due([SKY, SEA], 30)) == ["sky", "sea"]


@pytest.mark.parametrize(
    "probe",
    [a_probe(every_s=1200.0), a_probe(every_s=None, cron="* * * * *"), a_probe(max_wait_s=None)],
    ids=["rare", "by a cron line", "uncapped"],
)
def test_probes_that_would_say_too_little_are_left_alone(probe: Probe) -> None:
    extra_runs = ExtraRuns()
    extra_runs.begin(probe, 0)
    assert extra_runs.due([probe], 10_000) == []


def test_before_its_first_scheduled_run_a_probe_is_not_due() -> None:
    assert ExtraRuns().due([SKY], 1000) == []


async def test_what_is_asked_for_runs_in_the_lane_and_a_round_that_was_given_up_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "EXTRAS_EVERY_S", 0.01)
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    ran: list[str] = []

    left = [[SKY], [SEA]]

    class Asking:
        extra_runs = ExtraRuns()

        def extras(self) -> list[Probe]:
            found = left.pop() if left else []
            for probe in found:
                self.extra_runs.request(probe)
            return found

    async def give_up(due: object) -> None:
        ran.extend(probe.name for probe in due)  # type: ignore[attr-defined]

    asking = Asking()
    lane = Lane(["sky", "sea"], give_up)
    tasks = [asyncio.create_task(lane.run()), asyncio.create_task(run_extras([(asking, lane)]))]
    await asyncio.sleep(0.3)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert sorted(ran) == ["sea", "sky"]
    assert (
        asking.extra_runs.begin(SKY, 0) is False
    )  # what did not run is not paid from the reserve later
