"""The last two minutes of each GPU: written by the watching thread, read by the measuring loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from monitor.model import GpuReading

KEPT_NS = 120 * 10**9


class RecentReadings:
    """Readings by GPU, in the order of time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings: dict[str, deque[GpuReading]] = {}

    def __contains__(self, uuid: object) -> bool:
        """Whether the GPU was ever read."""
        return uuid in self._rings

    def add(self, reading: GpuReading) -> bool:
        """Keeps a reading; False for the same reading again, as from an exporter's page that has
        not been updated.
        """
        with self._lock:
            ring = self._rings.setdefault(reading.uuid, deque())
            if ring and ring[-1].monotonic_ns == reading.monotonic_ns:
                return False
            ring.append(reading)
            while ring[0].monotonic_ns < reading.monotonic_ns - KEPT_NS:
                ring.popleft()
        return True

    def last_before(self, monotonic_ns: int) -> dict[str, GpuReading]:
        """The last reading of each GPU at or before that instant, at most 120 s older."""
        reach = range(monotonic_ns - KEPT_NS, monotonic_ns + 1)
        return self._find(
            lambda ring: next((r for r in reversed(ring) if r.monotonic_ns in reach), None)
        )

    def first_after(self, monotonic_ns: int) -> dict[str, GpuReading]:
        """The first reading of each GPU that began after that instant."""
        return self._find(
            lambda ring: next((r for r in ring if r.monotonic_ns > monotonic_ns), None)
        )

    def _find(
        self, choose: Callable[[deque[GpuReading]], GpuReading | None]
    ) -> dict[str, GpuReading]:
        with self._lock:
            chosen = {uuid: choose(ring) for uuid, ring in self._rings.items()}
        return {uuid: reading for uuid, reading in chosen.items() if reading is not None}
