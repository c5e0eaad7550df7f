"""Hysteresis over minutes: a condition opens when it held in enough of the last minutes, and closes
after enough minutes in a row without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class HysteresisRule(NamedTuple):
    """`need` of the last `of` minutes open a condition; `clear` minutes without it in a row close
    it.
    """

    need: int
    of: int
    clear: int


@dataclass(slots=True)
class Hysteresis:
    """State of one condition. Unknown minutes neither open nor close it: missing data is not
    health.
    """

    hits: int = 0  # the last minutes, newest in the lowest bit
    good: int = 0  # minutes in a row without it
    first_us: int | None = None  # the oldest hit that still counts: the onset
    open: bool = False

    def clear(self) -> None:
        """Begins again."""
        self.hits, self.good, self.first_us, self.open = 0, 0, None, False

    def minute(self, hit: bool | None, at_us: int, rule: HysteresisRule) -> None:
        """Processes one minute: the condition holds, does not hold, or is unknown."""
        if hit is None:
            return
        self.hits = ((self.hits << 1) | int(hit)) & ((1 << rule.of) - 1)
        self.good = 0 if hit else self.good + 1
        if hit and self.first_us is None:
            self.first_us = at_us
        if self.open:
            self.open = self.good < rule.clear
        elif self.hits.bit_count() >= rule.need:
            self.open = True
        if not self.open and self.hits == 0:
            self.first_us = None

    def forget(self) -> None:
        """Discards the minutes before a long gap, so that they open nothing later. An open
        condition stays open.
        """
        if not self.open:
            self.clear()
