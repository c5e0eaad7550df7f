"""Measuring more often while something looks wrong: three more runs between two scheduled ones,
paid from the reserve of the budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from monitor.model import Probe

TIMES = 4
OFTEN_S = 600.0  # what runs more seldom says too little of now


@dataclass(slots=True)
class Boost:
    """When each probe ran last, and how often beside its schedule since then. Times are monotonic
    seconds.
    """

    _ran_s: dict[str, float] = field(default_factory=dict)
    _extras: dict[str, int] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)

    def due(self, probes: Iterable[Probe], now_s: float) -> list[Probe]:
        """Which probes should run now although their schedule does not say so."""
        return [
            probe
            for probe in probes
            if probe.capped and probe.name not in self._asked and self._is_due(probe, now_s)
        ]

    def _is_due(self, probe: Probe, now_s: float) -> bool:
        ran_s = self._ran_s.get(probe.name)
        if ran_s is None or probe.every_s is None or probe.every_s > OFTEN_S:
            return False
        return (
            self._extras.get(probe.name, 0) < TIMES - 1 and now_s - ran_s >= probe.every_s / TIMES
        )

    def ask(self, probe: Probe) -> None:
        """Its next run is an extra one."""
        self._asked.add(probe.name)

    def begin(self, probe: Probe, now_s: float) -> bool:
        """A run begins: whether it is an extra one."""
        extra = probe.name in self._asked
        self._asked.discard(probe.name)
        self._ran_s[probe.name] = now_s
        self._extras[probe.name] = self._extras.get(probe.name, 0) + 1 if extra else 0
        return extra

    def forget(self, probe: Probe) -> None:
        """A run that was asked for will not come."""
        self._asked.discard(probe.name)
