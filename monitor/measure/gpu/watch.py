"""Watches the GPUs from a thread of its own, so that a driver that hangs never blocks the loop that
takes timestamps.

While an NVML call hangs, other threads continue (ctypes releases the GIL for the call), `state()`
becomes blind by itself, and a daemon thread lets the process exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Literal, TypeVar

from monitor.measure.gpu.figures import GpuWindow, summarise
from monitor.measure.gpu.nvml import Nvml
from monitor.measure.gpu.read_problems import (
    Errors,
    Watched,
    read_problems,
    without_session,
    without_uuid,
)
from monitor.measure.gpu.recent import RecentReadings
from monitor.measure.gpu.session import (
    GpuLostError,
    GpuSession,
    GpusIdentity,
    GpusUnavailableError,
)
from monitor.measure.gpu.state import DEFAULT_TIMING, GpuState, Timing, first_state
from monitor.model import DRIVER, GpuEvent, GpuFault, GpuReading, ReadProblem

LABELS = {"at", "monotonic_ns", "uuid", "name"}  # fields of a reading that are not values

T = TypeVar("T")
log = logging.getLogger(__name__)


def _open_nvml() -> GpuSession:
    session = Nvml()
    session.open()
    return session


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that may hang."""

    what: str
    began_s: float  # monotonic
    began_at: datetime


class GpuWatch:
    """Polls GPUs once per `interval_s`. Passes a GpuWindow per GPU to `on_window` every `window_s`,
    and every fault that the driver reports to `on_event`, both from its thread.

    `gpus`: "auto" = every GPU that NVML has listed since the start, "none", or the UUIDs to watch.
    Keep one per process, as of Nvml: with two, neither could restart NVML.
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
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self._auto = gpus == "auto"
        self._off = gpus == "none" or not gpus
        self._interval_s, self._window_s = interval_s, window_s
        self._on_window, self._on_event = on_window, on_event
        self._open_session, self._timing = open_session, timing
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
        self._stopping, self._wake = threading.Event(), threading.Event()
        # Written by the thread, read by everyone: each is replaced as a whole.
        self._state = first_state(self._off)
        self._call_now: _Call | None = None
        self._identity: GpusIdentity | None = None
        self._wanted: frozenset[str] = frozenset() if isinstance(gpus, str) else frozenset(gpus)
        self._watched: frozenset[str] = frozenset()
        self._readings = RecentReadings()
        # Known to the thread alone.
        self._session: GpuSession | None = None
        self._lost: dict[str, GpuLostError] = {}  # GPU -> why it cannot be read
        self._was_open = False
        self._retry_at: float | None = 0.0  # monotonic; None: no retry needed
        self._pause_s = timing.retry_first_s
        self._identity_due = 0.0
        self._window_due = time.monotonic() + window_s
        self._pending: dict[str, list[GpuReading]] = {}

    def start(self) -> None:
        """Starts the thread; with gpus "none" it does nothing."""
        if not self._off:
            self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Ends the watch. Waits `timeout_s` at most: a call that hangs is abandoned with its
        thread.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def state(self) -> GpuState:
        """Whether the GPUs can be read right now."""
        call, state = self._call_now, self._state
        if call is None or (took_s := time.monotonic() - call.began_s) <= self._timing.hang_s:
            return state
        reason = (
            f"NVML has not answered for {took_s:.0f} s ({call.what}); the driver may "
            "hang: see dmesg and nvidia-smi"
        )
        since = state.since if state.status == "blind" else call.began_at
        problem = ReadProblem(GpuFault.SOURCE, reason, since)
        return GpuState("blind", reason, since, {**state.problems, DRIVER: problem})

    def known(self) -> frozenset[str]:
        """The GPUs to watch: the chosen ones, or all that were ever listed."""
        return self._wanted

    def answering(self) -> frozenset[str]:
        """Those of them that could be read last; none while a call hangs."""
        state = self.state()  # read once: answers and problems must be of the same pass
        return frozenset() if DRIVER in state.problems else state.answering

    def identity(self) -> GpusIdentity | None:
        """Versions and GPUs as last read; None while NVML cannot be opened (`state().reason` says
        why).

        A GPU that cannot be read keeps its last known properties, with its processes unknown.
        """
        return self._identity

    def before(self, monotonic_ns: int) -> dict[str, GpuReading]:
        """The last reading of each GPU at or before that instant, at most 120 s older."""
        return self._readings.last_before(monotonic_ns)

    async def after(self, monotonic_ns: int, timeout_s: float = 0.5) -> dict[str, GpuReading]:
        """The first reading of each GPU that began after that instant. Requests one from the thread
        at once, and returns after `timeout_s` with those there are.
        """
        deadline, requested = time.monotonic() + timeout_s, False
        while True:
            found = self._readings.first_after(monotonic_ns)
            if self._watched <= found.keys() or time.monotonic() >= deadline:
                return found
            if not requested:
                requested = True
                self._wake.set()
            await asyncio.sleep(0.01)

    # ---- what the thread does ----

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tick()
            # any error: a dead thread would look like healthy GPUs
            except Exception as error:
                log.exception("unexpected error in the GPU watch")
                self._close()
                unknown = f"unexpected error in the GPU watch: {error!r}"
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
            absent = error.kind == "absent" and not self._was_open
            return self._fail(error.reason, without_session(error, self._wanted), absent)
        self._was_open, self._identity_due = True, 0.0
        self._wanted |= frozenset(session.uuids if self._auto else ())
        # A GPU that is missing may be an unreadable one.
        ours = self._auto or not self._wanted <= set(session.uuids)
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
            *(without_uuid(self._lost, self._wanted) if self._wanted <= set(session.uuids) else ()),
        }
        wanted = tuple(gpus[uuid] for uuid in sorted(self._wanted & gpus.keys()))
        self._identity = replace(found, gpus=wanted, hidden=tuple(sorted(hidden)))

    def _poll(self, session: GpuSession) -> None:
        for uuid in sorted(self._wanted - self._lost.keys()):
            try:
                self._keep(self._read(session, uuid))
            except GpuLostError as error:
                self._lost[uuid] = error
        self._watched = frozenset(self._wanted - self._lost.keys())
        self._take_events(session)
        if self._lost:
            reasons = (f"{gpu}: {error.reason}" for gpu, error in sorted(self._lost.items()))
            self._fail("; ".join(reasons), self._lost)
        else:
            self._pause_s = self._timing.retry_first_s
            self._become("ok", None)

    def _read(self, session: GpuSession, uuid: str) -> GpuReading:
        at, began_ns = datetime.now(UTC), time.monotonic_ns()
        with self._call(f"reading {uuid}"):
            reading = session.read(uuid, at, began_ns)
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        if took_s > self._timing.hang_s:  # the time of its values is unknown
            raise GpuLostError(
                uuid, f"a reading took {took_s:.1f} s; the driver may be about to hang: see dmesg"
            )
        # A dead handle may only return "invalid".
        if all(getattr(reading, f.name) is None for f in fields(reading) if f.name not in LABELS):
            raise GpuLostError(uuid, "the GPU answers no query; see nvidia-smi -q")
        return reading

    def _keep(self, reading: GpuReading) -> None:
        if self._readings.add(reading):
            self._pending.setdefault(reading.uuid, []).append(reading)

    def _take_events(self, session: GpuSession) -> None:
        try:
            with self._call("reading events"):
                events = session.events(datetime.now(UTC))
        except Exception:  # any error: events are an extra, and must not cost the readings
            log.exception("the faults that the driver reports cannot be read")
            return
        for event in events:
            if event.uuid in self._wanted:
                log.warning("the driver reported Xid %d for %s", event.xid, event.uuid)
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
        except Exception:  # any error of the receiver: the watch continues
            log.exception("a GPU window or event could not be stored")

    def _fail(self, reason: str, errors: Errors, absent: bool = False) -> None:
        """Notes the reason, and opens the session again after a pause, unless that is due."""
        if absent:
            self._become("absent", reason)
        else:
            gpus = Watched(self._wanted, self._watched, self._readings)
            now, before = datetime.now(UTC), self._state.problems
            self._become("blind", reason, read_problems(errors, gpus, before, now))
        if self._retry_at is None:
            self._retry_at = time.monotonic() + (self._timing.absent_s if absent else self._pause_s)
            self._pause_s = min(2 * self._pause_s, self._timing.retry_last_s)

    def _become(
        self,
        status: Literal["ok", "absent", "blind"],
        reason: str | None,
        problems: Mapping[str, ReadProblem] | None = None,
    ) -> None:
        before = self._state
        since = before.since if before.status == status else datetime.now(UTC)
        self._state = GpuState(status, reason, since, problems or {}, self._watched)
        if (status, reason) != (before.status, before.reason):
            level = logging.WARNING if status == "blind" else logging.INFO
            log.log(level, "GPU watch: %s", reason or "all GPUs can be read")

    def _close(self) -> None:
        self._watched = frozenset()
        self._state = replace(self._state, answering=self._watched)
        session, self._session = self._session, None
        if session is not None:
            self._take_events(session)  # the fault may have been reported since the last pass
            with self._call("closing the session"):
                session.close()

    @contextlib.contextmanager
    def _call(self, what: str) -> Iterator[None]:
        """Marks a call that may hang, for `state()`."""
        self._call_now = _Call(what, time.monotonic(), datetime.now(UTC))
        try:
            yield
        finally:
            self._call_now = None
