"""A lane runs what is due back to back, in rotated order; a lease keeps two processes apart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from histories import History, a_probe
from hypothesis import given
from hypothesis import strategies as st

from monitor.daemon import lanes
from monitor.daemon.lanes import Lane, LeaseTakenError, lease_name, leased
from monitor.measure.rounds import rotated
from monitor.model import Probe
from monitor.store import record
from monitor.store.database import open_writer
from monitor.store.writer import Writer

NAMES = ["a", "b", "c", "d"]


def probes(*names: str) -> list[Probe]:
    """Probes of these names."""
    return [a_probe(name) for name in names]


@pytest.fixture
def writer(history: History) -> Iterator[Writer]:
    """The writer of a process."""
    made = Writer(open_writer(history.database))
    yield made
    made.close()


@pytest.fixture
def other(history: History) -> Iterator[Writer]:
    """The writer of another process."""
    made = Writer(open_writer(history.database))
    yield made
    made.close()


def as_process(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this is another process."""
    monkeypatch.setattr(
        lanes, "holder_name", lambda pid=None: f"host:{number if pid is None else pid}"
    )


def test_each_turn_begins_one_further_on() -> None:
    orders = [
        [p.name for p in rotated(probes("a", "b", "c"), ["a", "b", "c"], turn)] for turn in range(4)
    ]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 1000))
def test_whatever_is_due_runs_once_in_the_rotated_order_of_all(due: set[str], turn: int) -> None:
    ran = [p.name for p in rotated(probes(*due), NAMES, turn)]
    start = turn % len(NAMES)
    whole = [*NAMES[start:], *NAMES[:start]]
    assert ran == [name for name in whole if name in due]


def test_over_as_many_turns_as_probes_each_is_the_first_once() -> None:
    firsts = [rotated(probes(*NAMES), NAMES, turn)[0].name for turn in range(len(NAMES))]
    assert sorted(firsts) == NAMES


async def running(
    lane: Lane, *asked: Probe, later: Sequence[Probe] = (), after_s: float = 0.0
) -> None:
    """Ask a lane for some probes at once, and for others later; ends when all their rounds are
    over.
    """
    loop = asyncio.create_task(lane.run())
    first = [asyncio.create_task(lane.submit(probe)) for probe in asked]
    await asyncio.sleep(after_s)
    await asyncio.gather(*first, *(asyncio.create_task(lane.submit(probe)) for probe in later))
    loop.cancel()


async def test_what_falls_due_together_is_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.1)
    rounds: list[list[str]] = []

    async def run_round(due: Sequence[Probe]) -> None:
        rounds.append([p.name for p in due])

    await running(Lane(NAMES, run_round), *probes("a", "b"), later=probes("c"), after_s=0.03)
    assert rounds == [["a", "b", "c"]]


async def test_rounds_never_overlap_and_what_comes_meanwhile_waits_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    rounds: list[list[str]] = []
    spans: list[tuple[float, float]] = []

    async def run_round(due: Sequence[Probe]) -> None:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.2)
        rounds.append([p.name for p in due])
        spans.append((began, asyncio.get_running_loop().time()))

    await running(Lane(NAMES, run_round), *probes("a"), later=probes("b"), after_s=0.1)
    assert rounds == [["a"], ["b"]]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


async def test_a_probe_that_is_asked_for_twice_before_its_round_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.05)
    rounds: list[list[str]] = []

    async def run_round(due: Sequence[Probe]) -> None:
        rounds.append([p.name for p in due])

    await running(Lane(NAMES, run_round), *probes("a", "a"))
    assert rounds == [["a"]]


async def test_rounds_are_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)
    rounds: list[list[str]] = []

    async def run_round(due: Sequence[Probe]) -> None:
        rounds.append([p.name for p in due])

    lane = Lane(["a", "b"], run_round)
    loop = asyncio.create_task(lane.run())
    for _ in range(3):
        await asyncio.gather(*(lane.submit(probe) for probe in probes("a", "b")))
    loop.cancel()
    assert rounds == [["a", "b"], ["b", "a"], ["a", "b"]]


async def test_a_round_that_fails_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "GATHER_S", 0.01)

    async def run_round(due: Sequence[Probe]) -> None:
        raise ZeroDivisionError

    lane = Lane(NAMES, run_round)
    loop = asyncio.create_task(lane.run())
    await asyncio.wait_for(lane.submit(a_probe("a")), 2)
    with pytest.raises(ZeroDivisionError):
        await loop


def test_uncapped_probes_have_a_lease_of_their_own() -> None:
    assert lease_name("local", capped=True) != lease_name("local", capped=False)


def test_being_kept_out_by_another_process_is_3() -> None:
    assert LeaseTakenError.exit_code == 3


async def test_a_lease_is_held_inside_and_given_back_after_also_after_an_error(
    history: History, writer: Writer
) -> None:
    async with leased(writer, "local", 1.0):
        assert len(history.rows("SELECT * FROM lease")) == 1
    assert history.rows("SELECT * FROM lease") == []
    with pytest.raises(ZeroDivisionError):
        async with leased(writer, "local", 1.0):
            raise ZeroDivisionError
    assert history.rows("SELECT * FROM lease") == []


async def test_a_second_process_waits_and_then_says_who_is_in_the_way(
    writer: Writer, other: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_process(1, monkeypatch)
    async with leased(writer, "local", 1.0):
        as_process(2, monkeypatch)
        began = asyncio.get_running_loop().time()
        with pytest.raises(
            LeaseTakenError, match=r"another process has been measuring local for 0\.3 s"
        ):
            async with leased(other, "local", 0.3):
                pass
        assert asyncio.get_running_loop().time() - began >= 0.3


async def test_a_second_process_gets_it_as_soon_as_it_is_given_back(
    writer: Writer, other: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = asyncio.Event()

    async def first() -> None:
        as_process(1, monkeypatch)
        async with leased(writer, "local", 1.0):
            held.set()
            await asyncio.sleep(0.2)

    task = asyncio.create_task(first())
    await held.wait()
    as_process(2, monkeypatch)
    async with leased(other, "local", 5.0):
        assert task.done()


async def test_a_lease_is_renewed_as_long_as_it_is_held(
    writer: Writer, other: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LEASE", timedelta(seconds=1.0))
    as_process(1, monkeypatch)
    async with leased(writer, "local", 5.0):
        as_process(2, monkeypatch)
        with pytest.raises(LeaseTakenError):
            async with leased(other, "local", 2.0):
                pass


async def test_the_lease_of_a_process_that_died_ends_by_itself(
    writer: Writer, other: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "LEASE", timedelta(seconds=0.4))
    as_process(1, monkeypatch)

    async def dies() -> None:
        async with leased(writer, "local", 1.0):
            monkeypatch.setattr(lanes.record, "release_lease", lambda *_: None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await dies()
    as_process(2, monkeypatch)
    async with leased(other, "local", 2.0):
        pass


async def test_the_lease_of_a_process_of_this_machine_that_was_killed_is_taken_over_at_once(
    writer: Writer,
) -> None:
    child = await asyncio.create_subprocess_exec("true")
    await child.wait()
    now = datetime.now(UTC)
    dead = lanes.holder_name(child.pid)
    writer.do(lambda c: record.take_lease(c, "local", dead, now, now + timedelta(seconds=30)))
    async with leased(writer, "local", 0.0):
        pass


async def test_the_lease_of_a_process_elsewhere_is_respected_whatever_its_number(
    writer: Writer,
) -> None:
    now = datetime.now(UTC)
    writer.do(
        lambda c: record.take_lease(
            c, "local", "elsewhere/1:4194304", now, now + timedelta(seconds=30)
        )
    )
    with pytest.raises(LeaseTakenError):
        async with leased(writer, "local", 0.0):
            pass
