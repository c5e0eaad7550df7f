"""A drift detector with its target and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from monitor.judge.drift.evidence import Armed
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.evaluator.assessment import Assessment
from monitor.model import Finding, Kind, Point

#: The kinds that only a detector finds.
KINDS = (
    Kind.SPEED,
    Kind.THERMAL,
    Kind.POWER,
    Kind.SERVICE_LEVEL,
    Kind.SLOW_START,
    Kind.WORKLOAD_SHIFT,
)


class DriftDetector(Protocol):
    """The interface of monitor/judge/drift/detector.py."""

    def observe(self, point: Point, settings: DriftSettings) -> None:
        """Processes one point."""

    def advance(self, now_us: int, settings: DriftSettings) -> bool | None:
        """Closes the blocks that have ended. Returns whether the findings may have changed; None
        where the detector does not know.
        """

    def findings(self, target: str, now_us: int, settings: DriftSettings) -> list[Finding]:
        """Returns the current findings."""

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Returns which parts work already, and which still learn."""

    def suspicion(self, settings: DriftSettings) -> float:
        """Returns how near the sequential tests are to an alarm, 0..1."""

    def relearn(self, now_us: int) -> None:
        """Relearns the baseline from now on."""


@dataclass(slots=True)
class Drift:
    """The detector of one target."""

    target: str
    detector: DriftDetector
    settings: DriftSettings

    def observe(self, point: Point) -> None:
        """Processes one point."""
        self.detector.observe(point, self.settings)

    def advance(self, now_us: int) -> bool:
        """Closes the blocks that have ended. Returns whether the findings may have changed."""
        return self.detector.advance(now_us, self.settings) is not False

    def findings(self, now_us: int) -> list[Finding]:
        """Returns the current findings."""
        return self.detector.findings(self.target, now_us, self.settings)

    def assess(self, now_us: int) -> Assessment:
        """Returns the current findings; only the detector judges a change of configuration."""
        return Assessment((*KINDS, Kind.CONFIG_CHANGE), self.findings(now_us))

    def armed(self) -> list[Armed]:
        """Returns which parts work already, and which still learn."""
        return self.detector.armed(self.settings)

    def suspicion(self) -> float:
        """Returns how near the sequential tests are to an alarm, 0..1."""
        return self.detector.suspicion(self.settings)

    def relearn(self, now_us: int) -> None:
        """Relearns the baseline from now on."""
        self.detector.relearn(now_us)
