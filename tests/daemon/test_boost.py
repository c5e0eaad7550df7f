"""Measuring more often while something looks wrong."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from histories import a_probe

from monitor.daemon import lanes
from monitor.daemon.boost import Boost
from monitor.daemon.lanes import Lane, run_extras
from monitor.model import Probe

SKY, SEA = a_probe("sky", every_s=60.0), a_probe("sea", every_s=120.0)


def names(probes: list[Probe]) -> list[str]:
    return [probe.name for probe in probes]


def test_between_two_scheduled_runs_there_are_three_more() -> None:
    boost, extra = Boost(), []
    for second in range(0, 121):
        if second % 60 == 0:
            boost.begin(SKY, second)
        elif boost.due([SKY], second):
            boost.ask(SKY)
            assert boost.begin(SKY, second)
            extra.append(second)
    assert extra == [15, 30, 45, 75, 90, 105]


def test_when_the_scheduled_run_is_late_no_further_ones_are_made_up() -> None:
    boost = Boost()
    boost.begin(SKY, 0)
    for second in (15, 30, 45):
        boost.ask(SKY)
        boost.begin(SKY, second)
    assert boost.due([SKY], 300) == []
    assert boost.begin(SKY, 301) is False  # the scheduled one
    assert names(boost.due([SKY], 316)) == ["sky"]


def test_each_probe_has_its_own_interval_and_one_that_was_asked_is_not_asked_again() -> None:
    boost = Boost()
    for probe in (SKY, SEA):
        boost.begin(probe, 0)
    assert names(boost.due([SKY, SEA], 20)) == ["sky"]
    assert names(boost.due([SKY, SEA], 30)) == ["sky", "sea"]
    boost.ask(SKY)
    assert names(boost.due([SKY, SEA], 30)) == ["sea"]
    boost.forget(SKY)
    assert names(boost.due([SKY, SEA], 30)) == ["sky", "sea"]


@pytest.mark.parametrize(
    "probe",
    [a_probe(every_s=1200.0), a_probe(every_s=None, cron="* * * * *"), a_probe(max_wait_s=None)],
    ids=["rare", "by a cron line", "uncapped"],
)
def test_probes_that_would_say_too_little_are_left_alone(probe: Probe) -> None:
    boost = Boost()
    boost.begin(probe, 0)
    assert boost.due([probe], 10_000) == []


def test_before_its_first_scheduled_run_a_probe_is_not_due() -> None:
    assert Boost().due([SKY], 1000) == []


async def test_what_is_asked_for_runs_in_the_lane_and_a_round_that_was_given_up_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "EXTRAS_EVERY_S", 0.01)
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    ran: list[str] = []

    left = [[SKY], [SEA]]

    class Asking:
        boost = Boost()

        def extras(self) -> list[Probe]:
            found = left.pop() if left else []
            for probe in found:
                self.boost.ask(probe)
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
        asking.boost.begin(SKY, 0) is False
    )  # what did not run is not paid from the reserve later
