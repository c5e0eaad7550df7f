"""A lane runs the due canaries of one target back to back, one at a time, in rotated order.

Back to back, so that only the first of a round meets an idle server; rotated, so that it is not
always the same one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sqlalchemy import Connection

from monitor.daemon.extra_runs import ExtraRuns
from monitor.errors import UserError
from monitor.measure.rounds import GATHER_S, Rounds
from monitor.model import Probe
from monitor.store import record
from monitor.store.writer import Writer

LEASE = timedelta(seconds=30)
EXTRAS_EVERY_S = 1.0


class LeaseTakenError(UserError):
    """Another process measures this target."""


def lease_name(target: str, capped: bool) -> str:
    """Returns the name of a lane's lease. Uncapped probes have a lane and a lease of their own, so
    that their waits of minutes do not block the others.
    """
    return target if capped else f"{target}/uncapped"


def holder_name(pid: int | None = None) -> str:
    """Returns the name under which a process of this machine and pid namespace holds leases; this
    process by default.
    """
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - the namespace's number, not a file
    except OSError:
        namespace = 0
    return f"{socket.gethostname()}/{namespace}:{os.getpid() if pid is None else pid}"


def is_dead(holder: str) -> bool:
    """Whether a lease is held by a process of this machine that no longer exists, as after
    kill -9. Processes of other machines count as alive.
    """
    _, _, pid = holder.rpartition(":")
    if not pid.isdigit() or holder != holder_name(int(pid)):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it lives, and belongs to somebody else
        return False
    return False


@asynccontextmanager
async def leased(writer: Writer, name: str, wait_s: float) -> AsyncIterator[None]:
    """Holds a lease and renews it. Raises LeaseTakenError if it is not free within `wait_s`."""
    holder = holder_name()

    def take(connection: Connection) -> bool:
        now = datetime.now(UTC)
        return record.take_lease(connection, name, holder, now, now + LEASE, is_dead)

    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while not await asyncio.wrap_future(writer.submit(take)):
        if loop.time() >= end_s:
            raise LeaseTakenError(f"another process has been measuring {name} for {wait_s:g} s")
        await asyncio.sleep(min(0.5, max(0.05, wait_s)))

    async def renew() -> None:
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            await asyncio.wrap_future(writer.submit(take))

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.shield(
            asyncio.wrap_future(writer.submit(lambda c: record.release_lease(c, name, holder)))
        )


class Lane:
    """Collects what is due and runs it. `run_round` receives the probes of one round in order."""

    def __init__(
        self, order: Sequence[str], run_round: Callable[[Sequence[Probe]], Awaitable[None]]
    ) -> None:
        self._rounds = Rounds(list(order))
        self._run_round = run_round
        self._due: dict[str, tuple[Probe, asyncio.Future[None]]] = {}
        self._something = asyncio.Event()

    async def submit(self, probe: Probe) -> None:
        """Requests one run of a probe; returns when its round has ended."""
        if probe.name in self._due:
            await asyncio.shield(self._due[probe.name][1])
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._due[probe.name] = (probe, future)
        self._something.set()
        await asyncio.shield(future)

    async def run(self) -> None:
        """Runs rounds for ever."""
        while True:
            await self._something.wait()
            await asyncio.sleep(GATHER_S)
            await self._one_round()

    async def _one_round(self) -> None:
        due, self._due = self._due, {}
        self._something.clear()
        try:
            await self._run_round(self._rounds.next([probe for probe, _ in due.values()]))
        finally:
            for _, future in due.values():
                if not future.done():
                    future.set_result(None)


class ExtraRunSource(Protocol):
    """A source of runs outside the schedule (TargetWatch)."""

    extra_runs: ExtraRuns

    def extras(self) -> list[Probe]:
        """Returns the probes that should run now."""


async def run_extras(sources: Sequence[tuple[ExtraRunSource, Lane]]) -> None:
    """Submits extra runs to their lanes, for ever."""
    under_way: set[asyncio.Task[None]] = set()

    async def one(source: ExtraRunSource, lane: Lane, probe: Probe) -> None:
        try:
            await lane.submit(probe)
        finally:
            source.extra_runs.cancel(probe)

    while True:
        for source, lane in sources:
            for probe in source.extras():
                task = asyncio.create_task(one(source, lane, probe))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        await asyncio.sleep(EXTRAS_EVERY_S)
