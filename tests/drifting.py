"""A tiny detector for tests of the code around the real one: a canary is slow below nine tenths of
the first canary's decode rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from monitor.judge.drift.evidence import Armed
from monitor.judge.drift.settings import DriftSettings
from monitor.model import (
    CanaryPoint,
    Finding,
    GpuPoint,
    Kind,
    Point,
    ServerPoint,
    Severity,
    from_us,
)

MINUTE_US = 60_000_000
START_US = 1_772_366_400_000_000  # noon of a Sunday


@dataclass(slots=True)
class Tally:
    """Counts the observed points and keeps the last rate; all state is in the fields."""

    first: float | None = None
    last: float | None = None
    slow_since_us: int | None = None
    seen: dict[str, int] = field(default_factory=dict)
    advanced_us: int = 0
    relearnt_us: list[int] = field(default_factory=list)
    hot: dict[str, int] = field(default_factory=dict)

    def observe(self, point: Point, settings: DriftSettings) -> None:
        """Takes one point."""
        name = type(point).__name__
        self.seen[name] = self.seen.get(name, 0) + 1
        if isinstance(point, CanaryPoint) and point.decode_tok_s is not None:
            if point.decode_tok_s < 0:
                raise ZeroDivisionError("a rate below nothing")
            self.first = self.first or point.decode_tok_s
            self.last = point.decode_tok_s
            slow = self.last < 0.9 * self.first
            self.slow_since_us = (self.slow_since_us or point.at_us) if slow else None
        if isinstance(point, GpuPoint) and point.temp_c is not None:
            self.hot[point.uuid] = self.hot.get(point.uuid, 0) + (point.temp_c > 90)

    def advance(self, now_us: int, settings: DriftSettings) -> bool | None:
        """Records the time."""
        self.advanced_us = now_us
        return None

    def findings(self, target: str, now_us: int, settings: DriftSettings) -> list[Finding]:
        """One finding while the last canary is slow."""
        if self.slow_since_us is None or self.first is None or self.last is None:
            return []
        change = 100 * (self.last / self.first - 1)
        evidence = {
            "metric": "decode",
            "change_pct": change,
            "low_pct": change - 1,
            "high_pct": change + 1,
        }
        severity = Severity.PAGE if change < -50 else Severity.WARNING
        since = from_us(self.slow_since_us)
        return [
            Finding(
                kind=Kind.SPEED,
                target=target,
                subject="decode",
                severity=severity,
                summary=f"{target} is slow",
                since=since,
                evidence=evidence,
            )
        ]

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Armed from the first canary on."""
        return [
            Armed(
                "decode rate", self.first is not None, f"{self.seen.get('CanaryPoint', 0)} canaries"
            )
        ]

    def suspicion(self, settings: DriftSettings) -> float:
        """The relative loss of the decode rate."""
        return (
            0.0
            if self.first is None or self.last is None
            else max(0.0, min(1.0, 1 - self.last / self.first))
        )

    def relearn(self, now_us: int) -> None:
        """Makes the next canary the first."""
        self.first = self.slow_since_us = None
        self.relearnt_us.append(now_us)


def a_canary(minute: float = 0.0, **changes: Any) -> CanaryPoint:
    """A good warm sample of `sky`, `minute` minutes after noon."""
    at_us = START_US + int(minute * MINUTE_US)
    values: dict[str, Any] = {
        "probe": "sky",
        "traffic_class": "chat",
        "decode_tok_s": 100.0,
        "ttft_ms": 40.0,
        "e2e_ms": 90.0,
    }
    values |= changes
    return CanaryPoint(at_us, at_us + int((values["e2e_ms"] or 0) * 1000), **values)


def a_reading(minute: float = 0.0, **changes: Any) -> ServerPoint:
    """A reading of the metrics page."""
    return ServerPoint(START_US + int(minute * MINUTE_US), **changes)


def a_gpu_reading(minute: float = 0.0, **changes: Any) -> GpuPoint:
    """A reading of a cool GPU."""
    return GpuPoint(
        START_US + int(minute * MINUTE_US), **{"uuid": "GPU-1", "temp_c": 60.0, **changes}
    )
