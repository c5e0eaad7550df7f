"""Starts of the process and changes of configuration, in time: which came just before an effect,
did a start land slow, does it decay?

A start that lands slow although nothing changed is known from reports (33 or 26 tokens a second,
decided when the process is spawned), and so is a server that gets slower by the hour until it is
started again. Both are told by what the same server did under earlier starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from monitor.judge.drift.evidence import Effect, Shift
from monitor.judge.drift.settings import HOUR_US, MINUTE_US, DriftSettings
from monitor.judge.drift.speed.offsets import StartOffset
from monitor.model import CanaryPoint, Severity

KEEP = 12
FOLLOWS_US = (
    15 * MINUTE_US
)  # facts/drift.md 3.3 b: what begins within this after a change follows it
LEAST_BLOCKS = 3
LATELY = 12  # blocks
SCATTERS = 3.0  # beyond what starts of this server scatter
PAGE_LOSS = -math.log(0.90)
LEAST_HOURS = 3  # of one start, before a loss by the hour is told from chance
T_VALUE = 4.0  # of the slope: one in thousands by chance, even with few hours
BETTER = 0.6  # a straight line must leave less than this share of what a single step leaves


class Change(NamedTuple):
    """A new start of the process or another digest: when it was, and when a canary first told of
    it.
    """

    at_us: int
    seen_us: int


@dataclass(slots=True)
class StartChannel:
    """When starts and changes of the digest were. Only canaries tell."""

    process_start_us: int | None = None
    digest: str | None = None
    starts: list[Change] = field(default_factory=list)
    digests: list[Change] = field(default_factory=list)
    accepted_us: int | None = None  # starts up to here are what is normal

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:  # noqa: ARG002 - fed like the other parts
        """Take up one canary."""
        if p.process_start_us is not None and p.process_start_us != self.process_start_us:
            if self.process_start_us is not None:
                self.starts = [
                    *self.starts,
                    Change(max(p.process_start_us, self.process_start_us), p.known_us),
                ][-KEEP:]
            self.process_start_us = p.process_start_us
        if p.fingerprint is not None and p.fingerprint != self.digest:
            if self.digest is not None:
                self.digests = [*self.digests, Change(p.at_us, p.known_us)][-KEEP:]
            self.digest = p.fingerprint

    def restarted(self, since_us: int, within_us: int = FOLLOWS_US) -> int | None:
        """The start that something that began at `since_us` follows, if any."""
        return _before(self.starts, since_us, within_us)

    def digest_changed(self, since_us: int, within_us: int = FOLLOWS_US) -> int | None:
        """Likewise the change of the digest."""
        return _before(self.digests, since_us, within_us)

    def effect(
        self,
        offsets: Sequence[StartOffset],
        series: Sequence[tuple[int, float]],
        settings: DriftSettings,
    ) -> Effect | None:
        """The present start, if it is slower than starts of this server are, by more than anybody
        would overlook, and still so.

        `series`: residuals of the decode rate, newest last; what has gone away within an hour was
        warming up.
        """
        now = next((o for o in offsets if o.process_start_us == self.process_start_us), None)
        if (
            now is None
            or now.others == 0
            or now.blocks < LEAST_BLOCKS
            or (self.accepted_us or now.first_us) > now.first_us
        ):
            return None
        practical = -math.log1p(-settings.practical_pct / 100.0)
        if now.offset + now.half_width > -practical or now.offset > -(
            practical + SCATTERS * now.scatter
        ):
            return None
        lately = [value for _, value in series[-LATELY:]]
        if len(lately) == LATELY and median(lately) > -practical:
            return None
        severity = Severity.PAGE if now.offset < -PAGE_LOSS else Severity.WARNING
        statistic = {
            "starts_known": now.others,
            "scatter_pct": round(100 * now.scatter, 2),
            "blocks": now.blocks,
        }
        return Effect(
            "start",
            Shift.of_log("decode_tok_s", now.offset, now.half_width),
            now.process_start_us,
            severity,
            statistic,
        )

    def accept(self, now_us: int) -> None:
        """What runs now is what is normal."""
        self.accepted_us = now_us


def _before(changes: Sequence[Change], since_us: int, within_us: int) -> int | None:
    """The newest change that `since_us` follows. An onset is dated to the begin of its block, so
    the change may be a little later.
    """
    near = [
        change
        for change in changes
        if change.at_us - FOLLOWS_US <= since_us <= change.seen_us + within_us
    ]
    return near[-1].at_us if near else None


def slope_per_h(series: Sequence[tuple[int, float]], start_us: int | None) -> float | None:
    """Loss per hour of uptime (logarithm, below zero), where residuals fall steadily since the
    process began; None where they do not.

    Hourly medians since the start are fitted by a straight line. It is steady where the slope is
    far beyond its error, and the line leaves clearly less than the best single step does: what
    stepped down once did not decay.
    """
    hours = _hours(series, start_us)
    if len(hours) < LEAST_HOURS + 1:
        return None
    x, y = [float(hour) for hour, _ in hours], [value for _, value in hours]
    mean_x, mean_y = fmean(x), fmean(y)
    sxx = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sxx
    left = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    error = math.sqrt(max(left, 1e-9) / (len(x) - 2) / sxx)
    if slope >= 0 or -slope / error < T_VALUE or left > BETTER * _best_step(y):
        return None
    return slope


def _hours(series: Sequence[tuple[int, float]], start_us: int | None) -> list[tuple[int, float]]:
    if start_us is None:
        return []
    grouped: dict[int, list[float]] = {}
    for at_us, value in series:
        if at_us >= start_us:
            grouped.setdefault((at_us - start_us) // HOUR_US, []).append(value)
    return [
        (hour, median(values))
        for hour, values in sorted(grouped.items())
        if len(values) >= LEAST_BLOCKS
    ]


def _best_step(values: Sequence[float]) -> float:
    """Squares that the best single step leaves."""

    def squares(part: Sequence[float]) -> float:
        middle = fmean(part)
        return sum((value - middle) ** 2 for value in part)

    return min(squares(values[:cut]) + squares(values[cut:]) for cut in range(1, len(values)))
