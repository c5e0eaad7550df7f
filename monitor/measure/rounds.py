"""The order of the canaries in a round. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.model import Probe

GATHER_S = 0.2  # probes that fall due within this time are one round
READING_EVERY_S = 15.0  # readings of the metrics page between canaries


def rotated(due: Sequence[Probe], order: Sequence[str], turn: int) -> list[Probe]:
    """The due probes in the configured order, starting one further on at each turn."""
    start = turn % len(order) if order else 0
    place = {name: (index - start) % len(order) for index, name in enumerate(order)}
    return sorted(due, key=lambda probe: place[probe.name])


@dataclass(slots=True)
class Rounds:
    """The rounds of one lane. Turns are counted for each set of probes that fall due together, so
    that each of them comes first in turn. `order`: names in the configured order.
    """

    order: Sequence[str]
    _turns: dict[frozenset[str], int] = field(default_factory=dict)

    def next(self, due: Sequence[Probe]) -> list[Probe]:
        """The order of the next round of these probes."""
        names = frozenset(probe.name for probe in due)
        turn = self._turns.get(names, 0)
        self._turns[names] = turn + 1
        return rotated(due, [name for name in self.order if name in names], turn)
