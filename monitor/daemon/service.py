"""The daemon itself: opens what it needs, starts the loops, says how it is, and stops cleanly."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial

from monitor.alert.dispatch import Dispatcher, channels_of
from monitor.config.settings import Settings
from monitor.config.values import host_port
from monitor.daemon import systemd
from monitor.daemon.clock import watch_clock
from monitor.daemon.drift import DriftWatch
from monitor.daemon.gpus import GpuWatches
from monitor.daemon.guard import only_logged
from monitor.daemon.identity import Rounds
from monitor.daemon.judging import close_departed, judge_target, schedule_of
from monitor.daemon.lanes import Lane, LeaseTakenError, lease_name, leased, run_extras
from monitor.daemon.schedule import Schedule
from monitor.daemon.tuning import drift_settings
from monitor.daemon.watch import Skipped, TargetWatch
from monitor.judge.drift.detector import Detector
from monitor.measure.gpu.figures import GpuWindow
from monitor.measure.gpu.state import Timing
from monitor.model import GpuEvent, Outcome, Probe, Sample, Verdict
from monitor.show.prometheus import Exporter
from monitor.show.web import WebServer, application
from monitor.store import record
from monitor.store.database import DatabaseError, file_of, open_writer, shown
from monitor.store.writer import Writer

log = logging.getLogger(__name__)
# threads parse and write beside the loop that takes time stamps: 5 ms, the default, is too long a
# turn
SWITCH_INTERVAL_S = 0.0005
JUDGE_EVERY_S = 2.0
JUDGE_AT_LEAST_EVERY_S = 10.0
DEPARTED_EVERY_S = 60.0
# for what other processes, such as `incidents close`, want told; our own news wakes the dispatcher
OUTBOX_EVERY_S = 5.0
IDENTITY_EVERY_S = 180.0
GPUS_EVERY_S = 5.0  # how often it is asked whether driver or GPUs changed; asking costs nothing
NVML_IDENTITY_EVERY_S = 20.0
DATABASE_RETRY_S = 10.0
GUARD_EVERY_S = 5.0
SLEPT = timedelta(
    seconds=30
)  # a judge that comes this late was stopped or suspended: silence before it was ours
CENSORED = frozenset({Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.TIMEOUT})


class Daemon:
    """One process that watches all targets of a configuration."""

    def __init__(self, settings: Settings, probes: Sequence[Probe]) -> None:
        self._settings = settings
        self._probes = list(probes)
        self._exporter = Exporter()
        self._channels = channels_of(settings.channels)
        self._watches: list[TargetWatch] = []
        self._writer: Writer | None = None
        self._beat_s = time.monotonic()
        self._fates: dict[tuple[str, str], str] = {}  # how each probe fared the last time
        self._stopping = asyncio.Event()
        app = application(self._exporter.text, self._not_alive, self._not_ready)
        self.web = WebServer(app, *host_port(settings.listen))

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises DatabaseError only where the mend is the user's (a newer
        database).
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(
            signal.SIGHUP,
            log.info,
            "SIGHUP: the configuration is read at the start only; restart to take up changes",
        )
        self.web.start()
        beating = asyncio.create_task(self._beat())
        systemd.notify("READY=1", "STATUS=starting")
        try:
            self._writer = await self._open_database()
            if self._writer is not None:
                await self._watch(self._writer)
        finally:
            systemd.notify("STOPPING=1")
            beating.cancel()
            if self._writer is not None:
                await asyncio.to_thread(self._writer.close)
            self.web.stop()

    async def _open_database(self) -> Writer | None:
        """The history, waited for as long as it takes; None when we are stopped first."""
        while not self._stopping.is_set():
            try:
                return Writer(await asyncio.to_thread(open_writer, self._settings.database))
            except DatabaseError as error:
                if error.usage:
                    raise
                log.error(
                    "%s; trying again every %g s, nothing is measured until then",
                    error,
                    DATABASE_RETRY_S,
                )
                systemd.notify(f"STATUS=waiting for the database {shown(self._settings.database)}")
                await self._pause(DATABASE_RETRY_S)
        return None

    async def _watch(self, writer: Writer) -> None:
        """Start everything, wait for the end, stop everything."""
        gpu = self._gpu_watches(writer)
        gpu.start()
        budgets = {
            name: c.token_budget_per_hour
            for name, c in self._settings.classes.items()
            if c.token_budget_per_hour is not None
        }
        thresholds = drift_settings(self._settings)
        for target in self._settings.targets:
            drift = DriftWatch(target.name, thresholds, Detector)
            gpus = gpu.of(target.watches_gpus)
            watch = TargetWatch(
                target,
                self._probes,
                writer,
                gpus,
                list(self._channels),
                class_budgets=budgets,
                drift=drift,
            )
            await watch.load()
            writer.submit(
                partial(
                    record.note_schedule,
                    target_id=watch.target_id,
                    schedule=schedule_of(self._probes),
                )
            )
            watch.on_skip, watch.on_page = self._exporter.skipped, self._exporter.page
            self._watches.append(watch)
        lanes = {watch.settings.name: self._lanes(watch, writer) for watch in self._watches}
        schedule_of_all = Schedule(self._watches, lanes)
        dispatcher = Dispatcher(writer, self._channels)

        def clock_set_back(by: timedelta) -> None:
            schedule_of_all.begin_anew()
            for watch in self._watches:
                watch.ledger.clock_set_back(by)

        loops = [asyncio.create_task(lane.run()) for pair in lanes.values() for lane in pair]
        works = (
            self._judge(writer),
            self._identities(),
            self._guard_file(),
            watch_clock(clock_set_back),
        )
        loops += [asyncio.create_task(work) for work in works]
        loops.append(asyncio.create_task(dispatcher.run(OUTBOX_EVERY_S)))
        loops.append(
            asyncio.create_task(
                run_extras([(watch, lanes[watch.settings.name][0]) for watch in self._watches])
            )
        )
        gc.collect()
        # what lives as long as the daemon is looked through once: with 200 targets each full
        # collection stopped us for 90 ms
        gc.freeze()
        schedule_of_all.start()
        try:
            await self._until_stopped(loops)
        finally:
            schedule_of_all.stop()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            gpu.stop()
            for watch in self._watches:
                await watch.close()

    async def _until_stopped(self, loops: Sequence[asyncio.Task[None]]) -> None:
        """Wait for a signal; a loop that ends by itself is a fault of ours, and ends the daemon so
        that it is restarted.
        """
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done - {stopping}:
            task.result()
            raise RuntimeError("a loop of the daemon ended by itself")

    def _gpu_watches(self, writer: Writer) -> GpuWatches:
        def store(window: GpuWindow) -> None:
            values = asdict(window)
            writer.submit(lambda c: record.insert_gpu_reading(c, window.uuid, window.at, values))

        def store_event(event: GpuEvent) -> None:
            writer.submit(lambda c: record.insert_gpu_event(c, event))

        choices = [target.watches_gpus for target in self._settings.targets]
        return GpuWatches(
            choices,
            on_window=store,
            timing=Timing(identity_s=NVML_IDENTITY_EVERY_S),
            on_event=store_event,
        )

    def _lanes(self, watch: TargetWatch, writer: Writer) -> tuple[Lane, Lane]:
        order = [probe.name for probe in watch.probes]

        def lane(capped: bool) -> Lane:
            async def one_round(due: Sequence[Probe]) -> None:
                try:
                    async with leased(writer, lease_name(watch.settings.name, capped), wait_s=60.0):
                        for probe in due:
                            await self._one(watch, probe)
                except LeaseTakenError as error:
                    log.warning("target=%s %s", watch.settings.name, error)
                    for probe in due:
                        watch.skip(probe.name, "lease")
                except DatabaseError as error:
                    log.warning("target=%s a round was given up: %s", watch.settings.name, error)

            return Lane(order, one_round)

        return lane(True), lane(False)

    async def _one(self, watch: TargetWatch, probe: Probe) -> None:
        results = await watch.run_all(probe)
        if isinstance(results, Skipped):
            log.info(
                "target=%s probe=%s skipped: %s", watch.settings.name, probe.name, results.reason
            )
            return
        for measured, _stored in results:
            self._exporter.sample(measured.sample)
            self._log(measured.sample, measured.detail)
            if measured.sample.outcome in CENSORED and probe.capped:
                await watch.canary.hold_off(measured.sample.waiting)

    def _log(self, sample: Sample, detail: str | None) -> None:
        """A probe that fares otherwise than the last time is news; the rest is in the history."""
        fate = f"{sample.outcome.value}/{sample.verdict.value}"
        before = self._fates.get((sample.target, sample.probe))
        self._fates[sample.target, sample.probe] = fate
        well = sample.outcome is Outcome.OK and sample.verdict is not Verdict.FAIL
        level = (
            logging.DEBUG
            if fate == before or (well and before is None)
            else logging.INFO
            if well
            else logging.WARNING
        )
        told = f" ({detail})" if detail else ""
        log.log(level, "target=%s probe=%s %s%s", sample.target, sample.probe, fate, told)

    async def _judge(self, writer: Writer) -> None:
        """Soon after new samples, and every ten seconds without any. A pause of the whole process
        is noticed here and not taken for silence of the server.
        """
        channels = list(self._channels)
        since = last = datetime.now(UTC)
        seen: dict[str, tuple[int, float]] = {}
        departed_s = 0.0
        while True:
            now = datetime.now(UTC)
            if time.monotonic() >= departed_s:
                departed_s = time.monotonic() + DEPARTED_EVERY_S
                own = [watch.settings.name for watch in self._watches]
                writer.submit(partial(close_departed, own=own, now=now, channels=channels))
            since = (
                now if now < last or now - last > SLEPT else since
            )  # we were stopped, or the clock was set back
            last = now
            for watch in self._watches:
                stored, judged_s = seen.get(watch.settings.name, (-1, 0.0))
                if (
                    stored == watch.samples_stored
                    and time.monotonic() - judged_s < JUDGE_AT_LEAST_EVERY_S
                ):
                    continue
                seen[watch.settings.name] = (watch.samples_stored, time.monotonic())
                work = partial(
                    judge_target, watch=watch, watching_since=since, now=now, channels=channels
                )
                try:
                    with only_logged("target=%s cannot be judged", watch.settings.name):
                        await watch.reload_pins()
                        self._exporter.incidents(
                            watch.settings.name, await asyncio.wrap_future(writer.submit(work))
                        )
                except DatabaseError as error:
                    log.warning("target=%s cannot be judged: %s", watch.settings.name, error)
            await asyncio.sleep(JUDGE_EVERY_S)

    async def _guard_file(self) -> None:
        """A history that was moved or deleted while it was open takes every write and shows none:
        say so and end, to be started anew.
        """
        database = self._settings.database
        opened = await asyncio.to_thread(file_of, database)
        while True:
            await asyncio.sleep(GUARD_EVERY_S)
            if (
                opened is not None and await asyncio.to_thread(file_of, database) != opened
            ):  # None: it is no file
                break
        raise DatabaseError(
            f"the history {shown(database)} was moved, replaced or deleted while it was open: "
            "what is measured would be lost. "
            "Start vllm-canary again; stop it first when the history is to be moved"
        )

    async def _identities(self) -> None:
        """Read every target's identity now, every few minutes, and when the driver or a GPU
        changed; after a restart of the server the watch does it by itself.
        """
        rounds = Rounds([watch.settings.name for watch in self._watches], IDENTITY_EVERY_S)
        while True:
            for watch in self._watches:
                name = watch.settings.name
                if not rounds.due(name, time.monotonic(), watch.gpus.settled()):
                    continue
                try:
                    await watch.refresh_identity()
                except DatabaseError as error:
                    log.warning("target=%s the identity cannot be kept: %s", name, error)
            await asyncio.sleep(GPUS_EVERY_S)

    async def _beat(self) -> None:
        """Proves that the loop turns: to systemd's watchdog and to /healthz."""
        every_s = min(systemd.watchdog_interval_s() or 5.0, 5.0)
        while True:
            self._beat_s = time.monotonic()
            systemd.notify("WATCHDOG=1", f"STATUS={'; '.join(self._not_ready()) or 'watching'}")
            await asyncio.sleep(every_s)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _not_alive(self) -> list[str]:
        late_s = time.monotonic() - self._beat_s
        return [f"the measuring loop has not turned for {late_s:.0f} s"] if late_s > 30 else []

    def _not_ready(self) -> list[str]:
        if self._writer is None:
            return [f"the database {shown(self._settings.database)} is not open"]
        failing_since = self._writer.failing_since
        if failing_since is not None:
            return [f"the database has refused writes for {time.monotonic() - failing_since:.0f} s"]
        return [] if self._watches else ["no target is watched yet"]
