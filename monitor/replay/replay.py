"""A replay: stored points through the judges of the daemon, and what they would have opened. Pure;
`backtest` and `calibrate` run it.

The daemon does the same with new rows (monitor/daemon/drift.py): it feeds them, says the time, and
makes the incidents agree with what is found. A replay says the time with each canary, and at the
latest every ten seconds while other points come in, as the daemon does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from typing import Protocol

from monitor.judge.drift.evidence import Armed
from monitor.judge.drift.settings import SECOND_US, DriftSettings
from monitor.model import CanaryPoint, Finding, Kind, Point, ServerPoint
from monitor.replay.incidents import Book
from monitor.replay.judges import Answers, Liveness, Rules

TICK_US = 10 * SECOND_US  # monitor/daemon/service.py: JUDGE_AT_LEAST_EVERY_S
#: The kinds that a detector finds; the incidents of these are its alone.
KINDS = (
    Kind.SPEED,
    Kind.THERMAL,
    Kind.POWER,
    Kind.SERVICE_LEVEL,
    Kind.SLOW_START,
    Kind.WORKLOAD_SHIFT,
)
_KINDS = (*(kind.value for kind in KINDS), Kind.CONFIG_CHANGE.value)


class Judging(Protocol):
    """What is asked of a detector (monitor/judge/drift/detector.py)."""

    def observe(self, point: Point, settings: DriftSettings) -> None:
        """Take up one point."""

    def advance(self, now_us: int, settings: DriftSettings) -> bool | None:
        """Close what is over by now. Whether what is found may have changed; None: it may."""

    def findings(self, target: str, now_us: int, settings: DriftSettings) -> list[Finding]:
        """What holds now."""

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Which parts work already, and which still learn."""

    def suspicion(self, settings: DriftSettings) -> float:
        """How near the sequential tests are to an alarm, 0..1."""

    def relearn(self, now_us: int) -> None:
        """Learn what is normal from now on."""


def known_us(point: Point) -> int:
    """When a point was known: a canary when its answer had ended."""
    return point.known_us if isinstance(point, CanaryPoint) else point.at_us


def in_order(canaries: Iterable[CanaryPoint], *readings: Iterable[Point]) -> Iterator[Point]:
    """All points in the order in which they were known. Canaries come in the order in which they
    were sent; one that waited long comes after those that were sent later and answered sooner.
    """
    return merge(_as_known(canaries), *readings, key=known_us)


def _as_known(canaries: Iterable[CanaryPoint]) -> Iterator[CanaryPoint]:
    held: list[tuple[int, int, CanaryPoint]] = []
    for number, point in enumerate(canaries):
        while held and held[0][0] <= point.at_us:
            yield heappop(held)[2]
        heappush(held, (point.known_us, number, point))
    while held:
        yield heappop(held)[2]


@dataclass(slots=True)
class Replay:
    """One target's points through a detector and the judges beside it. `relearn_us`: when something
    was pinned, in order.
    """

    target: str
    detector: Judging
    settings: DriftSettings
    rules: Rules = field(default_factory=Rules)
    relearn_us: Sequence[int] = ()
    book: Book = field(default_factory=Book)
    now_us: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: {"samples": 0, "server_readings": 0, "gpu_readings": 0}
    )
    _pins: int = 0
    _due_us: int = 0
    _liveness: Liveness = field(init=False)
    _answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        """The judges beside the detector write into the same book."""
        self._liveness = Liveness(self.target, self.rules, self.book)
        self._answers = Answers(self.target, self.rules, self.book)

    def run(self, points: Iterable[Point]) -> Book:
        """Feed points, in the order in which they were known; the incidents so far. It may be
        called again with those that follow.
        """
        observe, settings, liveness, answers = (
            self.detector.observe,
            self.settings,
            self._liveness,
            self._answers,
        )
        canaries = servers = gpus = 0
        now_us, due_us = self.now_us, self._due_us
        for point in points:
            now_us = max(now_us, known_us(point))
            if self._pins < len(self.relearn_us) and self.relearn_us[self._pins] <= now_us:
                self._relearn(now_us)
            observe(point, settings)
            if isinstance(point, CanaryPoint):
                canaries += 1
                liveness.canary(point, now_us)
                answers.canary(point, now_us)
            elif isinstance(point, ServerPoint):
                servers += 1
                liveness.server(point, now_us)
            else:
                gpus += 1
            if isinstance(point, CanaryPoint) or now_us >= due_us:
                due_us = now_us + TICK_US
                self._judge(now_us)
        self.now_us, self._due_us = now_us, due_us
        for name, count in zip(self.counts, (canaries, servers, gpus), strict=True):
            self.counts[name] += count
        return self.book

    def finish(self) -> Book:
        """No more points come: what the last ones lead to is judged too."""
        if self.now_us:
            self._judge(self.now_us)
        return self.book

    def _relearn(self, now_us: int) -> None:
        while self._pins < len(self.relearn_us) and self.relearn_us[self._pins] <= now_us:
            self._pins += 1
        self.detector.relearn(now_us)

    def _judge(self, now_us: int) -> None:
        changed = self.detector.advance(now_us, self.settings)
        if changed is not False:
            self.book.reconcile(
                _KINDS, self.detector.findings(self.target, now_us, self.settings), now_us
            )
