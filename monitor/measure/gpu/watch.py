"""Watches the GPUs from a thread of its own, so that a driver that hangs never holds up the loop
that takes time stamps.

While a NVML call hangs, other threads run on (ctypes gives up the GIL for the call), `state()`
turns blind by itself, and a daemon thread lets the process end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Literal, TypeVar

from monitor.measure.gpu.figures import GpuWindow, summarise
from monitor.measure.gpu.nvml import Nvml
from monitor.measure.gpu.recent import RecentReadings
from monitor.measure.gpu.session import (
    GpuLostError,
    GpuSession,
    GpusIdentity,
    GpusUnavailableError,
)
from monitor.measure.gpu.state import USUAL_TIMING, GpuState, Timing
from monitor.model import DRIVER, GpuEvent, GpuFault, GpuReading, ReadProblem

LABELS = {"at", "monotonic_ns", "uuid", "name"}  # of a reading: what is not a value
BROKEN = {
    GpuFault.LOST,
    GpuFault.RESET,
}  # faults that last until the GPU answers, however else it fails meanwhile
OF_ALL = {GpuFault.SOURCE, GpuFault.MISMATCH}  # faults that are of no single GPU

T = TypeVar("T")
log = logging.getLogger(__name__)


def _open_nvml() -> GpuSession:
    session = Nvml()
    session.open()
    return session


class GpuWatch:
    """Polls GPUs once per `interval_s` and hands a GpuWindow per GPU to `on_window` every
    `window_s`, and every fault that the driver reports to `on_event`, from its thread.

    `gpus`: "auto" = every GPU that NVML has shown since the start, "none", or the UUIDs to watch.
    Keep one per process, as of Nvml: with two, neither could start NVML afresh.
    """

    def __init__(
        self,
        gpus: Literal["auto", "none"] | Sequence[str],
        interval_s: float = 1.0,
        window_s: float = 5.0,
        on_window: Callable[[GpuWindow], None] | None = None,
        *,
        on_event: Callable[[GpuEvent], None] | None = None,
        open_session: Callable[[], GpuSession] = _open_nvml,
        timing: Timing = USUAL_TIMING,
    ) -> None:
        self._auto = gpus == "auto"
        self._off = gpus == "none" or not gpus
        self._interval_s, self._window_s, self._on_window, self._on_event = (
            interval_s,
            window_s,
            on_window,
            on_event,
        )
        self._open_session, self._timing = open_session, timing
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
        self._stopping, self._wake = threading.Event(), threading.Event()
        # Written by the thread, read by everyone: each is replaced whole.
        off, starting = "gpus: none in the configuration", "the GPUs have not been read yet"
        self._state = GpuState(
            "off" if self._off else "blind", off if self._off else starting, datetime.now(UTC)
        )
        self._calling: tuple[str, float, datetime] | None = None
        self._identity: GpusIdentity | None = None
        self._wanted: frozenset[str] = frozenset() if isinstance(gpus, str) else frozenset(gpus)
        self._watched: frozenset[str] = frozenset()
        self._readings = RecentReadings()
        # Known to the thread alone.
        self._session: GpuSession | None = None
        self._lost: dict[str, GpuLostError] = {}  # GPU -> why it cannot be read
        self._seen = False
        self._retry_at: float | None = 0.0  # monotonic; None: nothing to mend
        self._pause_s = timing.retry_first_s
        self._identity_due = 0.0
        self._window_due = time.monotonic() + window_s
        self._pending: dict[str, list[GpuReading]] = {}

    def start(self) -> None:
        """Begin to watch; with gpus "none" nothing happens."""
        if not self._off:
            self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the watch. Waits `timeout_s` at most: a call that hangs is left behind, with its
        thread.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def state(self) -> GpuState:
        """Whether the GPUs can be seen right now."""
        calling, state = self._calling, self._state
        if calling is None or (took_s := time.monotonic() - calling[1]) <= self._timing.hang_s:
            return state
        reason = (
            f"NVML has not answered for {took_s:.0f} s ({calling[0]}); the driver may "
            "hang: see dmesg and nvidia-smi"
        )
        since = state.since if state.status == "blind" else calling[2]
        return GpuState(
            "blind",
            reason,
            since,
            {**state.troubles, DRIVER: ReadProblem(GpuFault.SOURCE, reason, since)},
        )

    def known(self) -> frozenset[str]:
        """The GPUs to watch: those chosen, or all that were ever shown."""
        return self._wanted

    def answering(self) -> frozenset[str]:
        """Those of them that could be read at the last look; none while a call hangs."""
        state = self.state()  # one value: who answers and who is in trouble are of the same look
        return frozenset() if DRIVER in state.troubles else state.answering

    def identity(self) -> GpusIdentity | None:
        """Versions and GPUs as last read; None while NVML cannot be opened, and then
        `state().reason` says why.

        A GPU that cannot be read keeps what was last known of it, with its processes unknown.
        """
        return self._identity

    def before(self, monotonic_ns: int) -> dict[str, GpuReading]:
        """The last reading of each GPU at or before that instant, at most 120 s older."""
        return self._readings.last_before(monotonic_ns)

    async def after(self, monotonic_ns: int, timeout_s: float = 0.5) -> dict[str, GpuReading]:
        """The first reading of each GPU that began after that instant, asking the thread for one
        at once.

        After `timeout_s` it returns those that there are.
        """
        deadline, asked = time.monotonic() + timeout_s, False
        while True:
            found = self._readings.first_after(monotonic_ns)
            if self._watched <= found.keys() or time.monotonic() >= deadline:
                return found
            if not asked:
                asked = True
                self._wake.set()
            await asyncio.sleep(0.01)

    # ---- what the thread does ----

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tick()
            except (
                Exception
            ) as error:  # whatever it is: a thread that died would look like GPUs that are well
                log.exception("The GPU watch met an error that it does not know")
                self._close()
                unknown = f"the GPU watch met an error that it does not know: {error!r}"
                self._fail(unknown, {DRIVER: GpuLostError(DRIVER, unknown, GpuFault.SOURCE)})
            self._wake.wait(self._interval_s)
            self._wake.clear()
        self._close()

    def _tick(self) -> None:
        now = time.monotonic()
        if self._retry_at is not None and now >= self._retry_at:
            self._open()
        if self._session is not None and now >= self._identity_due:
            self._read_identity(self._session)
        if self._session is not None:
            self._poll(self._session)
        if now >= self._window_due:
            self._hand_over()

    def _open(self) -> None:
        self._close()
        self._retry_at = None
        try:
            with self._call("opening a session"):
                self._session = session = self._open_session()
        except GpusUnavailableError as error:
            self._identity = None
            return self._fail(
                error.reason,
                self._without_session(error),
                absent=error.kind == "absent" and not self._seen,
            )
        self._seen, self._identity_due = True, 0.0
        self._wanted |= frozenset(session.uuids if self._auto else ())
        ours = self._auto or not self._wanted <= set(
            session.uuids
        )  # a GPU that is missing may be an unreadable one
        self._lost = dict(session.unreadable) if ours else {}
        return None

    def _read_identity(self, session: GpuSession) -> None:
        self._identity_due = time.monotonic() + self._timing.identity_s
        with self._call("reading versions and GPUs"):
            found = session.identity()
        known = {
            gpu.uuid: replace(gpu, processes=None)
            for gpu in (self._identity.gpus if self._identity else ())
        }
        gpus = known | {gpu.uuid: gpu for gpu in found.gpus}
        hidden = {
            *(self._wanted - gpus.keys()),
            *(self._nameless(self._lost) if self._wanted <= set(session.uuids) else ()),
        }
        mine = tuple(gpus[uuid] for uuid in sorted(self._wanted & gpus.keys()))
        self._identity = replace(found, gpus=mine, hidden=tuple(sorted(hidden)))

    def _poll(self, session: GpuSession) -> None:
        for uuid in sorted(self._wanted - self._lost.keys()):
            try:
                self._keep(self._read(session, uuid))
            except GpuLostError as error:
                self._lost[uuid] = error
        self._watched = frozenset(self._wanted - self._lost.keys())
        self._take_events(session)
        if self._lost:
            self._fail(
                "; ".join(f"{gpu}: {error.reason}" for gpu, error in sorted(self._lost.items())),
                self._lost,
            )
        else:
            self._pause_s = self._timing.retry_first_s
            self._become("ok", None)

    def _read(self, session: GpuSession, uuid: str) -> GpuReading:
        at, began_ns = datetime.now(UTC), time.monotonic_ns()
        with self._call(f"reading {uuid}"):
            reading = session.read(uuid, at, began_ns)
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        if took_s > self._timing.hang_s:  # its values are of no known moment
            raise GpuLostError(
                uuid, f"a reading took {took_s:.1f} s; the driver may be about to hang: see dmesg"
            )
        if all(getattr(reading, f.name) is None for f in fields(reading) if f.name not in LABELS):
            raise GpuLostError(
                uuid, "the GPU answers no question; see nvidia-smi -q"
            )  # a dead handle may only say "invalid"
        return reading

    def _keep(self, reading: GpuReading) -> None:
        if self._readings.add(reading):
            self._pending.setdefault(reading.uuid, []).append(reading)

    def _take_events(self, session: GpuSession) -> None:
        try:
            with self._call("reading events"):
                events = session.events(datetime.now(UTC))
        except Exception:  # whatever it is: events are an extra, and must not cost the readings
            log.exception("The faults that the driver reports cannot be read")
            return
        for event in events:
            if event.uuid in self._wanted:
                log.warning("The driver reports Xid %d for %s", event.xid, event.uuid)
                self._hand(self._on_event, event)

    def _hand_over(self) -> None:
        self._window_due = time.monotonic() + self._window_s
        pending, self._pending = self._pending, {}
        for readings in pending.values():
            self._hand(self._on_window, summarise(readings))

    def _hand(self, receive: Callable[[T], None] | None, value: T) -> None:
        try:
            if receive is not None:
                receive(value)
        except Exception:  # whatever storing it raised: the watch goes on
            log.exception("What was seen of the GPUs could not be handed over")

    def _without_session(self, error: GpusUnavailableError) -> Mapping[str, GpuLostError]:
        """What is blind where no session can be had: known GPUs among those that cannot be listed,
        or else all of them.
        """
        if not error.unreadable:
            fault = GpuFault.MISMATCH if error.kind == "mismatch" else GpuFault.SOURCE
            return {DRIVER: GpuLostError(DRIVER, error.reason, fault)}
        return {
            **error.unreadable,
            **{uuid: GpuLostError(uuid, error.reason, GpuFault.MISSING) for uuid in self._wanted},
        }

    def _nameless(self, lost: Mapping[str, GpuLostError]) -> dict[str, GpuLostError]:
        return {gpu: error for gpu, error in lost.items() if gpu not in self._wanted | {DRIVER}}

    def _troubles(self, lost: Mapping[str, GpuLostError]) -> Mapping[str, ReadProblem]:
        """What is blind, each with the time since when. A GPU that cannot be listed has no UUID
        ("GPU 0"): where known ones are missing, these are they. A GPU that was read before and is
        shown no more is lost.
        """
        missing = {uuid for uuid, error in lost.items() if error.fault is GpuFault.MISSING}
        nameless = self._nameless(lost)
        if missing and nameless:
            same = next(iter(nameless.values()))
            lost = {
                gpu: same if gpu in missing else error
                for gpu, error in lost.items()
                if gpu not in nameless
            }
        now, before = datetime.now(UTC), self._state.troubles
        found: dict[str, ReadProblem] = {}
        for gpu, error in lost.items():
            vanished = error.fault is GpuFault.MISSING and gpu in self._readings
            key = DRIVER if error.fault in OF_ALL else gpu
            found[key] = ReadProblem(
                GpuFault.LOST if vanished else error.fault,
                error.reason,
                before[key].since if key in before else now,
            )
        lasting = {
            gpu: trouble
            for gpu, trouble in before.items()
            if trouble.fault in BROKEN and gpu in self._wanted - self._watched
        }
        return found | {
            gpu: trouble
            for gpu, trouble in lasting.items()
            if gpu not in found or found[gpu].fault not in BROKEN
        }

    def _fail(self, reason: str, lost: Mapping[str, GpuLostError], absent: bool = False) -> None:
        """Say why, and open the session again after a pause, unless that is due already."""
        self._become(
            "absent" if absent else "blind", reason, {} if absent else self._troubles(lost)
        )
        if self._retry_at is None:
            self._retry_at = time.monotonic() + (self._timing.absent_s if absent else self._pause_s)
            self._pause_s = min(2 * self._pause_s, self._timing.retry_last_s)

    def _become(
        self,
        status: Literal["ok", "absent", "blind"],
        reason: str | None,
        troubles: Mapping[str, ReadProblem] | None = None,
    ) -> None:
        before = self._state
        since = before.since if before.status == status else datetime.now(UTC)
        self._state = GpuState(status, reason, since, troubles or {}, self._watched)
        if (status, reason) != (before.status, before.reason):
            log.log(
                logging.WARNING if status == "blind" else logging.INFO,
                "GPU watch: %s",
                reason or "all GPUs read",
            )

    def _close(self) -> None:
        self._watched = frozenset()
        self._state = replace(self._state, answering=self._watched)
        session, self._session = self._session, None
        if session is not None:
            self._take_events(session)  # what took the GPU down may have come since the last look
            with self._call("closing the session"):
                session.close()

    @contextlib.contextmanager
    def _call(self, what: str) -> Iterator[None]:
        """Marks a call that may hang, for `state()`."""
        self._calling = (what, time.monotonic(), datetime.now(UTC))
        try:
            yield
        finally:
            self._calling = None
