"""The engine's steps as values: the one that runs, one that has ended, and what the metrics page
shows between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from monitor.simulate.costs import Batch, Cost
from monitor.simulate.requests import Handle
from monitor.simulate.scheduler import Part


class Running(NamedTuple):
    """The step that runs now."""

    start_s: float
    end_s: float
    cost: Cost
    batch: Batch
    parts: Sequence[Part]

    @property
    def busy(self) -> float:
        """Share of the step in which the card works, 0..1."""
        return self.cost.busy

    @property
    def prefill_share(self) -> float:
        """Share of the card's work that goes to prompts, 0..1."""
        return self.cost.prefill_share


class StepResult(NamedTuple):
    """One step that has ended: what it did, and which requests got how many tokens at its end."""

    start_s: float
    end_s: float
    busy: float
    prefill_share: float
    prefill_tokens: int
    decode_tokens: int
    produced: Sequence[tuple[Handle, int]]

    @property
    def duration_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s


class Gauges(NamedTuple):
    """What the metrics page shows: as of the end of the last step, as in vLLM, so a frozen engine
    shows old figures.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # 0..1
