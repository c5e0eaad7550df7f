"""More runs while drift detection suspects something: three between two scheduled ones, paid from
the reserve of the token budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from monitor.model import Probe

TIMES = 4
OFTEN_S = 600.0  # probes with longer intervals get no extra runs


@dataclass(slots=True)
class ExtraRuns:
    """The last run of each probe, and its extra runs since the scheduled one. Times are monotonic
    seconds.
    """

    _ran_s: dict[str, float] = field(default_factory=dict)
    _extras: dict[str, int] = field(default_factory=dict)
    _requested: set[str] = field(default_factory=set)

    def due(self, probes: Iterable[Probe], now_s: float) -> list[Probe]:
        """Returns the probes that should have an extra run now."""
        return [
            probe
            for probe in probes
            if probe.capped and probe.name not in self._requested and self._is_due(probe, now_s)
        ]

    def _is_due(self, probe: Probe, now_s: float) -> bool:
        ran_s = self._ran_s.get(probe.name)
        if ran_s is None or probe.every_s is None or probe.every_s > OFTEN_S:
            return False
        return (
            self._extras.get(probe.name, 0) < TIMES - 1 and now_s - ran_s >= probe.every_s / TIMES
        )

    def request(self, probe: Probe) -> None:
        """Makes the probe's next run an extra one."""
        self._requested.add(probe.name)

    def begin(self, probe: Probe, now_s: float) -> bool:
        """Notes the begin of a run; returns whether it is an extra one."""
        extra = probe.name in self._requested
        self._requested.discard(probe.name)
        self._ran_s[probe.name] = now_s
        self._extras[probe.name] = self._extras.get(probe.name, 0) + 1 if extra else 0
        return extra

    def cancel(self, probe: Probe) -> None:
        """Drops a request whose run will not happen."""
        self._requested.discard(probe.name)
