"""What the world needs of those that it brings together: cards, sources of events, and who takes
many steps at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from monitor.simulate.engine.costs import Speeds, StepRates
from monitor.simulate.engine.engine import Engine
from monitor.simulate.engine.requests import EngineRequest, Handle

Arrivals = deque[tuple[float, EngineRequest]]  # in the order of their times


class GpuLike(Protocol):
    """A card (physics.py)."""

    def advance(self, dt_s: float, busy: float, prefill_share: float = 0.0) -> None: ...

    def speeds(self, work_s: float = 0.0) -> Speeds: ...

    def clock_state(self) -> tuple[float, ...]: ...


class EventSource(Protocol):
    """Something that acts by itself: a scenario, background traffic. `advance` does what is due and
    moves `next_s` on.
    """

    def next_s(self) -> float: ...

    def advance(self, now_s: float, /) -> object: ...


class ForeseeableSource(Protocol):
    """A source that can say beforehand what it will send."""

    @property
    def coming(self) -> Arrivals:
        """What is foreseen."""

    @property
    def plain(self) -> bool:
        """Whether its requests have nothing in common."""

    def next_s(self) -> float: ...

    def generate_ahead(self, now_s: float, to_s: float) -> None:
        """Work out what comes until then, if nothing changes."""


class BulkWorld(Protocol):
    """What a rush (rush.py) needs of the world."""

    engine: Engine
    halted: bool
    watched: int

    def rates(self) -> StepRates:
        """Of a step that begins now."""

    def pace(self, start_s: float) -> tuple[StepRates, float]:
        """Rates for steps from then on, and for how long they hold."""

    def worked(self, start_s: float, end_s: float, busy: float, prefill_share: float) -> None:
        """The card did this then, and nothing since the last time."""

    def deliver_tokens(
        self, handle: Handle, tokens: int, now_s: float, chunks: Sequence[int] | None
    ) -> None:
        """Tokens of equal steps, the last of them now; `chunks`: how many at each, None for one."""
