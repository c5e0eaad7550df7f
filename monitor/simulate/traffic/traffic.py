"""Requests of other users, with the arrival pattern and lengths of a real service, at any mean
rate, seeded.

The extract in data/ is a part of the Azure LLM inference trace (licence and changes are stated in
the file). Gaps between requests vary as in a Poisson process, with swells of several minutes, and
lengths have the long tail of real conversations.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import islice
from math import cos, inf, pi
from typing import NamedTuple

from monitor.simulate.settings import Factor, NotNegative, PerSecond, Share

#: Requests per minute relative to their mean, over the 58 whole minutes of the same trace.
MINUTES = (
    0.58,
    0.8,
    1.0,
    1.07,
    0.93,
    0.83,
    0.81,
    0.79,
    0.98,
    0.9,
    0.91,
    0.91,
    1.04,
    0.98,
    0.86,
    0.85,
    0.85,
    0.93,
    1.04,
    1.06,
    1.06,
    1.04,
    1.23,
    1.2,
    1.17,
    1.2,
    1.31,
    1.45,
    1.44,
    1.37,
    1.36,
    1.53,
    1.33,
    1.25,
    1.28,
    1.26,
    1.41,
    0.94,
    1.0,
    0.96,
    1.01,
    1.07,
    0.96,
    1.09,
    1.01,
    1.13,
    1.0,
    0.75,
    0.67,
    0.75,
    0.8,
    0.85,
    0.77,
    0.77,
    0.73,
    0.79,
    0.74,
    0.68,
)
DAY_S = 86_400.0
QUIETEST_AT_S = 4 * 3600.0  # 04:00: least traffic of a day


class Arrival(NamedTuple):
    """One request of another user: its time, and its prompt and output tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class TraceRow(NamedTuple):
    """One request of the extract: its gap relative to the mean gap, and its lengths."""

    gap: float
    prompt_tokens: int
    output_tokens: int


@cache
def trace() -> tuple[TraceRow, ...]:
    """The extract, with gaps whose mean is 1."""
    text = (
        resources.files("monitor.simulate")
        .joinpath("data/azure-conv-extract.csv")
        .read_text(encoding="utf-8")
    )
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    rows = [tuple(map(int, line.split(","))) for line in islice(lines, 1, None)]
    mean_ms = sum(row[0] for row in rows) / len(rows)
    return tuple(TraceRow(gap / mean_ms, prompt, output) for gap, prompt, output in rows)


@dataclass(slots=True)
class TrafficSettings:
    """The settings of the traffic."""

    rate_per_s: PerSecond = 0.0
    prompt_factor: Factor = 1.0  # 2: prompts twice as long
    output_factor: Factor = 1.0
    # 0.5: the quietest hour has half of the mean rate, the busiest half more
    daily_swing: Share = 0.0
    # this many first tokens are the same in every prompt: a system prompt
    shared_tokens: NotNegative = 0.0


@dataclass(slots=True)
class Traffic:
    """A stream of requests in virtual time."""

    settings: TrafficSettings = field(default_factory=TrafficSettings)
    seed: int = 0
    now_s: float = 0.0
    _rows: Iterator[TraceRow] = field(init=False)
    _row: TraceRow = field(init=False)
    _gap: float = field(init=False)  # remaining time to the next request, in mean gaps
    _in_force: tuple[float, float] = (0.0, 0.0)  # rate and daily swing
    _minute_s: float = -1.0  # start of the minute that `_rate` belongs to
    _rate: float = 0.0
    _wants_s: float | None = None  # next_s, if nothing has happened since

    def __post_init__(self) -> None:
        self._in_force = (self.settings.rate_per_s, self.settings.daily_swing)
        self._rows = _replay(random.Random(self.seed))  # noqa: S311 - reproducible, not a secret
        self._take_next()

    def catch_up(self, now_s: float) -> None:
        """Applies a rate that was changed at `now_s`: the time before that passed at the
        old one.
        """
        if self._is_in_force():
            return
        if now_s > self.now_s:
            self._gap = max(0.0, self._gap - (now_s - self.now_s) * self._rate_now())
            self.now_s = now_s
        self._put_in_force()

    def next_s(self) -> float:
        """When to call again: for the next request, or because the rate changes; infinite
        without traffic.
        """
        if not self._is_in_force():
            self._put_in_force()
        if self._wants_s is None:
            rate = self._rate_now()
            self._wants_s = (
                min(self.now_s + self._gap / rate, self._minute_s + 60.0) if rate > 0 else inf
            )
        return self._wants_s

    def advance(self, to_s: float) -> list[Arrival]:
        """The requests up to a time, in order."""
        arrivals: list[Arrival] = []
        while (
            next_s := self.next_s()
        ) <= to_s:  # the next request, or the end of the minute, when the rate changes
            if next_s >= self._minute_s + 60.0:
                self._gap -= (next_s - self.now_s) * self._rate
                self.now_s = next_s
            else:
                self.now_s = next_s
                arrivals.append(self._arrival())
                self._take_next()
            self._wants_s = None
        if to_s > self.now_s:
            self._gap = max(0.0, self._gap - (to_s - self.now_s) * self._rate_now())
            self.now_s, self._wants_s = to_s, None
        return arrivals

    def _arrival(self) -> Arrival:
        row, settings = self._row, self.settings
        prompt, output = (
            round(row.prompt_tokens * settings.prompt_factor),
            round(row.output_tokens * settings.output_factor),
        )
        return Arrival(self.now_s, max(1, prompt), max(1, output))

    def _is_in_force(self) -> bool:
        rate, swing = self._in_force
        return rate == self.settings.rate_per_s and swing == self.settings.daily_swing

    def _put_in_force(self) -> None:
        self._in_force, self._minute_s, self._wants_s = (
            (self.settings.rate_per_s, self.settings.daily_swing),
            -1.0,
            None,
        )

    def _rate_now(self) -> float:
        """Requests per second in the minute of `now_s`."""
        if not self._minute_s <= self.now_s < self._minute_s + 60.0 or self._minute_s < 0:
            self._minute_s = self.now_s // 60 * 60
            self._rate = _rate(self._minute_s, *self._in_force)
        return self._rate

    def _take_next(self) -> None:
        self._row = next(self._rows)
        self._gap = self._row.gap


def _rate(minute_s: float, rate_per_s: float, daily_swing: float) -> float:
    """Requests per second in the minute that begins then."""
    if rate_per_s <= 0:
        return 0.0
    daily = (
        1.0 - daily_swing * cos(2 * pi * (minute_s - QUIETEST_AT_S) / DAY_S) if daily_swing else 1.0
    )
    return rate_per_s * MINUTES[int(minute_s // 60) % len(MINUTES)] * daily


def _replay(chance: random.Random) -> Iterator[TraceRow]:
    """Repeats the extract in blocks of 60 requests in random order: bursts stay bursts."""
    rows, stretch = trace(), 60
    starts = range(0, len(rows), stretch)
    while True:
        for start in chance.sample(starts, len(starts)):
            yield from rows[start : start + stretch]
