"""The daemon: opens what it needs, starts the loops, reports its state, and stops cleanly."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial

from monitor.alert.dispatch import Dispatcher, channels_of
from monitor.config.settings import Settings
from monitor.config.target import TargetSettings
from monitor.config.values import host_port
from monitor.daemon import systemd
from monitor.daemon.detector_settings import drift_settings
from monitor.daemon.drift import DriftWatch
from monitor.daemon.gpus import GpuWatches
from monitor.daemon.judging import schedule_of
from monitor.daemon.lanes import Lane, LeaseTakenError, lease_name, leased, run_extras
from monitor.daemon.loops import Judging, guard_file, read_identities
from monitor.daemon.schedule import Schedule, watch_clock
from monitor.daemon.target import Skipped
from monitor.daemon.watch import TargetWatch
from monitor.judge.drift.detector import Detector
from monitor.measure.gpu.figures import GpuWindow
from monitor.measure.gpu.state import Timing
from monitor.model import GpuEvent, Outcome, Probe, Sample, Verdict
from monitor.show.prometheus import Exporter
from monitor.show.web import WebServer, application
from monitor.store import record
from monitor.store.database import DatabaseError, open_writer, shown
from monitor.store.writer import Writer

log = logging.getLogger(__name__)
# other threads parse and write while the loop takes time stamps: the default of 5 ms is too long
SWITCH_INTERVAL_S = 0.0005
# for deliveries that other processes queue, such as `incidents close`; our own wake the dispatcher
OUTBOX_EVERY_S = 5.0
NVML_IDENTITY_EVERY_S = 20.0
DATABASE_RETRY_S = 10.0
CENSORED = frozenset({Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.TIMEOUT})
Lanes = dict[str, tuple[Lane, Lane]]  # by target: the capped and the uncapped one


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
        self._results: dict[tuple[str, str], str] = {}  # of each probe's last run
        self._stopping = asyncio.Event()
        app = application(self._exporter.text, self._not_alive, self._not_ready)
        self.web = WebServer(app, *host_port(settings.listen))

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT. Raises DatabaseError only if the user has to act, for
        example because the database is newer than this program.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._handle_signals()
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

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        ignored = "SIGHUP ignored: the configuration is read only at startup; restart to reload it"
        loop.add_signal_handler(signal.SIGHUP, log.info, ignored)

    async def _open_database(self) -> Writer | None:
        """Returns the history, waiting for it as long as it takes; None if we are stopped first."""
        while not self._stopping.is_set():
            try:
                return Writer(await asyncio.to_thread(open_writer, self._settings.database))
            except DatabaseError as error:
                if error.usage:
                    raise
                log.error(
                    "%s; retrying every %g s, nothing is measured until then",
                    error,
                    DATABASE_RETRY_S,
                )
                systemd.notify(f"STATUS=waiting for the database {shown(self._settings.database)}")
                await self._pause(DATABASE_RETRY_S)
        return None

    async def _watch(self, writer: Writer) -> None:
        """Starts everything, waits for the end, stops everything."""
        gpus = self._gpu_watches(writer)
        gpus.start()
        for target in self._settings.targets:
            self._watches.append(await self._start_watch(target, writer, gpus))
        lanes = {watch.settings.name: self._lanes(watch, writer) for watch in self._watches}
        schedule = Schedule(self._watches, lanes)
        loops = [asyncio.create_task(loop) for loop in self._loops(writer, lanes, schedule)]
        gc.collect()
        # what lives as long as the daemon is scanned only once: with 200 targets every full
        # collection stopped the loop for 90 ms
        gc.freeze()
        schedule.start()
        try:
            await self._until_stopped(loops)
        finally:
            schedule.stop()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            gpus.stop()
            for watch in self._watches:
                await watch.close()

    async def _start_watch(
        self, target: TargetSettings, writer: Writer, gpus: GpuWatches
    ) -> TargetWatch:
        watch = TargetWatch(
            target,
            self._probes,
            writer,
            gpus.of(target.watches_gpus),
            list(self._channels),
            class_budgets={
                name: chosen.token_budget_per_hour
                for name, chosen in self._settings.classes.items()
                if chosen.token_budget_per_hour is not None
            },
            drift=DriftWatch(target.name, drift_settings(self._settings), Detector),
        )
        await watch.load()
        schedule = schedule_of(self._probes)
        writer.submit(partial(record.note_schedule, target_id=watch.target_id, schedule=schedule))
        watch.on_skip, watch.on_page = self._exporter.skipped, self._exporter.page
        return watch

    def _loops(
        self, writer: Writer, lanes: Lanes, schedule: Schedule
    ) -> list[Coroutine[None, None, None]]:
        def clock_set_back(by: timedelta) -> None:
            schedule.restart()
            for watch in self._watches:
                watch.ledger.clock_set_back(by)

        return [
            *(lane.run() for pair in lanes.values() for lane in pair),
            Judging(writer, self._watches, list(self._channels), self._exporter).run(),
            read_identities(self._watches),
            guard_file(self._settings.database),
            watch_clock(clock_set_back),
            Dispatcher(writer, self._channels).run(OUTBOX_EVERY_S),
            run_extras([(watch, lanes[watch.settings.name][0]) for watch in self._watches]),
        ]

    async def _until_stopped(self, loops: Sequence[asyncio.Task[None]]) -> None:
        """Waits for a signal. A loop that ends by itself is an internal error and ends the daemon,
        so that it is restarted.
        """
        stopping = asyncio.create_task(self._stopping.wait())
        done, _ = await asyncio.wait({stopping, *loops}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done - {stopping}:
            task.result()
            raise RuntimeError("a loop of the daemon ended unexpectedly")

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
            name = lease_name(watch.settings.name, capped)
            return Lane(order, partial(self._one_round, watch, writer, name))

        return lane(True), lane(False)

    async def _one_round(
        self, watch: TargetWatch, writer: Writer, lease: str, due: Sequence[Probe]
    ) -> None:
        try:
            async with leased(writer, lease, wait_s=60.0):
                for probe in due:
                    await self._one(watch, probe)
        except LeaseTakenError as error:
            log.warning("target=%s %s", watch.settings.name, error)
            for probe in due:
                watch.skip(probe.name, "lease")
        except DatabaseError as error:
            log.warning("target=%s a round was abandoned: %s", watch.settings.name, error)

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
        """Logs a result that differs from the probe's last one; the rest is in the history."""
        result = f"{sample.outcome.value}/{sample.verdict.value}"
        before = self._results.get((sample.target, sample.probe))
        self._results[sample.target, sample.probe] = result
        well = sample.outcome is Outcome.OK and sample.verdict is not Verdict.FAIL
        level = logging.INFO if well else logging.WARNING
        if result == before or (well and before is None):
            level = logging.DEBUG
        shown_detail = f" ({detail})" if detail else ""
        log.log(level, "target=%s probe=%s %s%s", sample.target, sample.probe, result, shown_detail)

    async def _beat(self) -> None:
        """Proves that the loop turns, to systemd's watchdog and to /healthz."""
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
        return [f"the measuring loop has been blocked for {late_s:.0f} s"] if late_s > 30 else []

    def _not_ready(self) -> list[str]:
        if self._writer is None:
            return [f"the database {shown(self._settings.database)} is not open"]
        failing_since = self._writer.failing_since
        if failing_since is not None:
            return [f"the database has refused writes for {time.monotonic() - failing_since:.0f} s"]
        return [] if self._watches else ["no target is watched yet"]
