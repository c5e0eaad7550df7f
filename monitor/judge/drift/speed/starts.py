"""Starts of the process and changes of configuration: which one precedes an effect, is a start
slow, does speed decay with uptime?

A start that is slow although nothing changed is known from reports (33 or 26 tokens per second,
decided when the process is spawned), and so is a server that gets slower by the hour until it is
restarted. Both are judged by the earlier starts of the same server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from monitor.judge.drift.evidence import Effect, Shift
from monitor.judge.drift.settings import HOUR_US, MINUTE_US, DriftSettings
from monitor.judge.drift.speed.metric import DECODE_PAGE, practical_log
from monitor.judge.drift.speed.start_offsets import LEAST_BLOCKS, StartOffset
from monitor.model import CanaryPoint, Severity

KEEP = 12
# an effect that begins within this after a change follows it (docs/detection.md)
FOLLOWS_US = 15 * MINUTE_US
RECENT_BLOCKS = 12
SCATTERS = 3.0  # beyond the scatter of this server's starts
LEAST_HOURS = 3  # of one start, before a loss by the hour can be distinguished from chance
T_VALUE = 4.0  # of the slope: one in thousands by chance, even with few hours
LINE_SHARE = 0.6  # a straight line must leave less than this share of what a single step leaves

Series = Sequence[tuple[int, float]]  # time (us) and residual of each block


class ChangeTime(NamedTuple):
    """Time of a start of the process or a change of the digest, and of the first canary after
    it.
    """

    at_us: int
    seen_us: int


@dataclass(slots=True)
class StartChannel:
    """Times of starts and of changes of the digest, as canaries report them."""

    process_start_us: int | None = None
    digest: str | None = None
    starts: list[ChangeTime] = field(default_factory=list)
    digests: list[ChangeTime] = field(default_factory=list)
    accepted_us: int | None = None  # starts up to here belong to the baseline

    def canary(self, p: CanaryPoint) -> None:
        """Processes one canary."""
        if p.process_start_us is not None and p.process_start_us != self.process_start_us:
            if self.process_start_us is not None:
                at_us = max(p.process_start_us, self.process_start_us)
                self.starts = [*self.starts, ChangeTime(at_us, p.known_us)][-KEEP:]
            self.process_start_us = p.process_start_us
        if p.fingerprint is not None and p.fingerprint != self.digest:
            if self.digest is not None:
                self.digests = [*self.digests, ChangeTime(p.at_us, p.known_us)][-KEEP:]
            self.digest = p.fingerprint

    def restarted(self, since_us: int, within_us: int = FOLLOWS_US) -> int | None:
        """The start that an effect since `since_us` follows, if any."""
        return _before(self.starts, since_us, within_us)

    def digest_changed(self, since_us: int) -> int | None:
        """The change of the digest that an effect since `since_us` follows, if any."""
        return _before(self.digests, since_us, FOLLOWS_US)

    def effect(
        self, offsets: Sequence[StartOffset], series: Series, settings: DriftSettings
    ) -> Effect | None:
        """The present start, if it is slower than the starts of this server scatter, by more than
        the practical limit, and still slow.

        `series`: residuals of the decode rate, newest last; a loss that is gone within an hour was
        a warm-up.
        """
        now = next((o for o in offsets if o.process_start_us == self.process_start_us), None)
        if now is None or now.others == 0 or now.blocks < LEAST_BLOCKS:
            return None
        practical = practical_log(settings)
        if (self.accepted_us or now.first_us) > now.first_us or not _is_slow(now, practical):
            return None
        recent = [value for _, value in series[-RECENT_BLOCKS:]]
        if len(recent) == RECENT_BLOCKS and median(recent) > -practical:
            return None
        return Effect(
            channel="start",
            shift=Shift.of_log("decode_tok_s", now.offset, now.half_width),
            since_us=now.process_start_us,
            severity=Severity.PAGE if now.offset < -DECODE_PAGE else Severity.WARNING,
            statistic={
                "starts_known": now.others,
                "scatter_pct": round(100 * now.scatter, 2),
                "blocks": now.blocks,
            },
        )

    def accept(self, now_us: int) -> None:
        """Makes the present start part of the baseline."""
        self.accepted_us = now_us


def _is_slow(start: StartOffset, practical: float) -> bool:
    surely = start.offset + start.half_width <= -practical
    return surely and start.offset <= -(practical + SCATTERS * start.scatter)


def _before(changes: Sequence[ChangeTime], since_us: int, within_us: int) -> int | None:
    """The newest change that `since_us` follows. An onset is dated to the start of its block, so
    the change may be a little later.
    """
    near = [
        change
        for change in changes
        if change.at_us - FOLLOWS_US <= since_us <= change.seen_us + within_us
    ]
    return near[-1].at_us if near else None


def slope_per_h(series: Series, start_us: int | None) -> float | None:
    """Loss per hour of uptime (logarithm, below zero), where residuals fall steadily since the
    process started; else None.

    Hourly medians since the start are fitted by a straight line. The loss is steady where the slope
    is far beyond its error, and the line leaves clearly less than the best single step does.
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
    if slope >= 0 or -slope / error < T_VALUE or left > LINE_SHARE * _best_step(y):
        return None
    return slope


def _hours(series: Series, start_us: int | None) -> list[tuple[int, float]]:
    """Hours since the start, and the median of each."""
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
    """Squared error that the best single step leaves."""

    def squares(part: Sequence[float]) -> float:
        middle = fmean(part)
        return sum((value - middle) ** 2 for value in part)

    return min(squares(values[:cut]) + squares(values[cut:]) for cut in range(1, len(values)))
