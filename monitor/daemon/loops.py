"""The loops of the daemon other than its canaries: judging, reading identities, guarding the
database file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from monitor.daemon.identity import IdentitySchedule
from monitor.daemon.isolation import only_logged
from monitor.daemon.judging import close_departed, judge_target
from monitor.daemon.watch import TargetWatch
from monitor.show.prometheus import Exporter
from monitor.store.database import DatabaseError, file_of, shown
from monitor.store.writer import Writer

log = logging.getLogger(__name__)
JUDGE_EVERY_S = 2.0
JUDGE_AT_LEAST_EVERY_S = 10.0
DEPARTED_EVERY_S = 60.0
IDENTITY_EVERY_S = 180.0
GPUS_EVERY_S = 5.0  # how often to check whether driver or GPUs changed; the check costs nothing
FILE_EVERY_S = 5.0
# judging that comes this late was stopped or suspended: the silence before it was our own
SLEPT = timedelta(seconds=30)


class Judging:
    """Judges every target soon after new samples, and every ten seconds without any."""

    def __init__(
        self,
        writer: Writer,
        watches: Sequence[TargetWatch],
        channels: Sequence[str],
        exporter: Exporter,
    ) -> None:
        self._writer, self._watches = writer, list(watches)
        self._channels, self._exporter = list(channels), exporter
        self._since = self._last = datetime.now(UTC)
        self._judged: dict[str, tuple[int, float]] = {}  # samples stored then, and monotonic time
        self._departed_s = 0.0

    async def run(self) -> None:
        """Judges for ever."""
        while True:
            now = datetime.now(UTC)
            self._notice_pauses(now)
            self._close_departed(now)
            for watch in self._watches:
                if self._is_due(watch):
                    await self._judge(watch, now)
            await asyncio.sleep(JUDGE_EVERY_S)

    def _notice_pauses(self, now: datetime) -> None:
        """Restarts watching after a pause of the whole process or a clock that was set back."""
        if now < self._last or now - self._last > SLEPT:
            self._since = now
        self._last = now

    def _close_departed(self, now: datetime) -> None:
        if time.monotonic() < self._departed_s:
            return
        self._departed_s = time.monotonic() + DEPARTED_EVERY_S
        own = [watch.settings.name for watch in self._watches]
        self._writer.submit(partial(close_departed, own=own, now=now, channels=self._channels))

    def _is_due(self, watch: TargetWatch) -> bool:
        name, now_s = watch.settings.name, time.monotonic()
        stored, judged_s = self._judged.get(name, (-1, 0.0))
        if stored == watch.samples_stored and now_s - judged_s < JUDGE_AT_LEAST_EVERY_S:
            return False
        self._judged[name] = (watch.samples_stored, now_s)
        return True

    async def _judge(self, watch: TargetWatch, now: datetime) -> None:
        name = watch.settings.name
        work = partial(
            judge_target,
            watch=watch,
            watching_since=self._since,
            now=now,
            channels=self._channels,
        )
        try:
            with only_logged("target=%s cannot be judged", name):
                await watch.reload_pins()
                open_now = await asyncio.wrap_future(self._writer.submit(work))
                self._exporter.incidents(name, open_now)
        except DatabaseError as error:
            log.warning("target=%s cannot be judged: %s", name, error)


async def read_identities(watches: Sequence[TargetWatch]) -> None:
    """Reads every target's identity at the start, every few minutes, and when the driver or a GPU
    changed; after a restart of the server the watch does it by itself.
    """
    schedule = IdentitySchedule([watch.settings.name for watch in watches], IDENTITY_EVERY_S)
    while True:
        for watch in watches:
            name = watch.settings.name
            if not schedule.due(name, time.monotonic(), watch.gpus.settled()):
                continue
            try:
                await watch.refresh_identity()
            except DatabaseError as error:
                log.warning("target=%s the identity cannot be stored: %s", name, error)
        await asyncio.sleep(GPUS_EVERY_S)


async def guard_file(database: str) -> None:
    """Raises DatabaseError when the history is moved or deleted while it is open: it would accept
    every write and keep none.
    """
    opened = await asyncio.to_thread(file_of, database)
    while True:
        await asyncio.sleep(FILE_EVERY_S)
        # None: it is not a file
        if opened is not None and await asyncio.to_thread(file_of, database) != opened:
            break
    raise DatabaseError(
        f"the history {shown(database)} was moved, replaced or deleted while it was open, and new "
        "samples would be lost. Start vllm-canary again; stop it before moving the history"
    )
