"""What the world needs of those that it brings together: cards, and sources of events."""

from __future__ import annotations

from typing import Protocol

from monitor.simulate.rush import Senders
from monitor.simulate.speeds import Speeds


class CardLike(Protocol):
    """A card (physics.py)."""

    def advance(self, dt_s: float, busy: float, prefill_share: float = 0.0) -> None: ...

    def speeds(self, work_s: float = 0.0) -> Speeds: ...

    def held_by(self) -> tuple[float, ...]: ...


class Source(Protocol):
    """Something that acts by itself: a scenario, background traffic. `advance` does what is due and moves `next_s` on."""

    def next_s(self) -> float: ...

    def advance(self, now_s: float, /) -> object: ...


class Background(Senders, Protocol):
    """A source that can say beforehand what it will send."""

    @property
    def plain(self) -> bool:
        """Whether its requests have nothing in common."""

    def next_s(self) -> float: ...
