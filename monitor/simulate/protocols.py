"""What the world requires of its parts: GPUs, event sources, and bulk stepping."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from monitor.simulate.engine.costs import Speeds, StepRates
from monitor.simulate.engine.engine import Engine
from monitor.simulate.engine.requests import EngineRequest, Handle

Arrivals = deque[tuple[float, EngineRequest]]  # in the order of their times


class GpuLike(Protocol):
    """A GPU (gpu/physics.py)."""

    def advance(self, dt_s: float, busy: float, prefill_share: float = 0.0) -> None: ...

    def speeds(self, work_s: float = 0.0) -> Speeds: ...

    def clock_state(self) -> tuple[float, ...]: ...


class EventSource(Protocol):
    """Something that acts by itself: a scenario, background traffic. `advance` does what is due
    and updates `next_s`.
    """

    def next_s(self) -> float: ...

    def advance(self, now_s: float, /) -> object: ...


class ForeseeableSource(Protocol):
    """A source that can generate its requests ahead of time."""

    @property
    def coming(self) -> Arrivals:
        """Requests generated ahead."""

    @property
    def plain(self) -> bool:
        """Whether its requests share no prefix."""

    def next_s(self) -> float: ...

    def generate_ahead(self, now_s: float, to_s: float) -> None:
        """Generates the requests until then, provided that no setting changes."""


class BulkWorld(Protocol):
    """What bulk stepping (fastforward/bulk.py) requires of the world."""

    engine: Engine
    halted: bool
    watched: int

    def rates(self) -> StepRates:
        """Rates of a step that begins now."""

    def pace(self, start_s: float) -> tuple[StepRates, float]:
        """Rates of steps that begin then, and how long they remain valid."""

    def worked(self, start_s: float, end_s: float, busy: float, prefill_share: float) -> None:
        """Accounts for the GPUs' work in this interval; between two calls they were idle."""

    def deliver_tokens(
        self, handle: Handle, tokens: int, now_s: float, chunks: Sequence[int] | None
    ) -> None:
        """Delivers the tokens of equal steps, the last of them now; `chunks`: tokens of
        each step, None for one.
        """
