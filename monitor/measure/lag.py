"""The delay of the event loop while it took timestamps: how well a sample was observed."""

from __future__ import annotations

import asyncio

TICK_S = 0.01


class LagMeter:
    """Measures the largest delay of the running event loop between start and stop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worst_s = 0.0
        self._due_s = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Schedules a tick every 10 ms; a late tick is a delayed loop."""
        self._due_s = self._loop.time() + TICK_S
        self._handle = self._loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        self._worst_s = max(self._worst_s, self._loop.time() - self._due_s)
        self.start()

    def stop(self) -> float:
        """Returns the largest delay in milliseconds, including that of a tick overdue now."""
        if self._handle is not None:
            self._handle.cancel()
        return max(self._worst_s, self._loop.time() - self._due_s, 0.0) * 1000
