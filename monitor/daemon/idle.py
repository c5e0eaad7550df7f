"""Leaving an idle server alone: while nobody but us uses it, canaries run seldom or not at all, so
that a GPU at home may sleep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

UNUSED_AFTER_S = 600.0
SLOWER = 10  # every tenth run


@dataclass(slots=True)
class IdleLeave:
    """Tells our own engine steps from other people's: a counter that moved between two of our
    canaries was moved by somebody else.
    """

    mode: Literal["run", "slower", "skip"]
    _steps: float | None = None
    _used_s: float | None = None  # monotonic; when somebody else was last seen to use the server
    _turns: dict[str, int] = field(default_factory=dict)

    def ours(self, steps: float | None) -> None:
        """The counter after one of our own canaries: this movement is ours."""
        self._steps = steps

    def note(self, steps: float | None, now_s: float) -> None:
        """Any other reading of the counter. Without a counter somebody may be there: nothing is
        skipped on a guess.
        """
        if steps is None or self._steps is None or steps != self._steps or self._used_s is None:
            self._used_s = now_s
        self._steps = steps

    def unused(self, now_s: float) -> bool:
        """Whether nobody else has used the server for ten minutes."""
        return self._used_s is not None and now_s - self._used_s > UNUSED_AFTER_S

    def wants(self, probe: str, now_s: float) -> bool:
        """Whether this probe should run now."""
        if self.mode == "run" or not self.unused(now_s):
            self._turns.pop(probe, None)
            return True
        if self.mode == "skip":
            return False
        turn = self._turns[probe] = self._turns.get(probe, -1) + 1
        return turn % SLOWER == 0

    def interval_factor(self, now_s: float) -> int | None:
        """By how much the intervals are longer now; None: nothing is expected at all."""
        if self.mode == "run" or not self.unused(now_s):
            return 1
        return SLOWER if self.mode == "slower" else None
