"""One target's points through the judges of the daemon. Pure.

The daemon feeds new rows, says the time, and makes the incidents agree with the findings
(monitor/daemon/judging.py). A replay does the same with each canary, and at the latest every ten
seconds while other points come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge

from monitor.judge.drift.settings import SECOND_US
from monitor.judge.evaluator.assessment import Rules
from monitor.judge.evaluator.drift import Drift
from monitor.judge.evaluator.evaluator import Evaluator
from monitor.model import CanaryPoint, Point, ServerPoint, known_us
from monitor.replay.incidents import ReplayedIncidents

TICK_US = 10 * SECOND_US  # monitor/daemon/loops.py: JUDGE_AT_LEAST_EVERY_S
# readings come every 15 s: after a minute without one the monitor was stopped, and silence before
# it was not the server's
UNWATCHED_US = 60 * SECOND_US


def in_order(canaries: Iterable[CanaryPoint], *readings: Iterable[Point]) -> Iterator[Point]:
    """Yields all points in the order in which they were known.

    Canaries are given in the order in which they were sent; one that waited long comes after those
    that were sent later and answered sooner.
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
    """One target's judges and the incidents that they open. `relearn_us`: when pins were recorded,
    in order.
    """

    drift: Drift
    rules: Rules = field(default_factory=Rules)
    relearn_us: Sequence[int] = ()
    incidents: ReplayedIncidents = field(default_factory=ReplayedIncidents)
    now_us: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: {"samples": 0, "server_readings": 0, "gpu_readings": 0}
    )
    _relearned: int = 0
    _due_us: int = 0
    _page_us: int | None = None
    _page_ok: bool = True
    _evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        """Makes the judges."""
        self._evaluator = Evaluator(self.target, self.rules, self.drift)

    @property
    def target(self) -> str:
        """The name of the target."""
        return self.drift.target

    def run(self, points: Iterable[Point]) -> ReplayedIncidents:
        """Processes points, in the order in which they were known, and returns the incidents so
        far. May be called again with later points.
        """
        observe = self._evaluator.observe
        canaries = servers = gpus = 0
        now_us, due_us = self.now_us, self._due_us
        for point in points:
            now_us = max(now_us, known_us(point))
            if (
                self._relearned < len(self.relearn_us)
                and self.relearn_us[self._relearned] <= now_us
            ):
                self._relearn(now_us)
            observe(point)
            is_news = isinstance(point, CanaryPoint)
            if is_news:
                canaries += 1
            elif isinstance(point, ServerPoint):
                servers += 1
                is_news = self._watched(point)
            else:
                gpus += 1
            if is_news or now_us >= due_us:
                due_us = now_us + TICK_US
                self._judge(now_us)
        self.now_us, self._due_us = now_us, due_us
        for name, count in zip(self.counts, (canaries, servers, gpus), strict=True):
            self.counts[name] += count
        return self.incidents

    def finish(self) -> ReplayedIncidents:
        """Judges what the last points lead to."""
        if self.now_us:
            self._judge(self.now_us)
        return self.incidents

    def _relearn(self, now_us: int) -> None:
        self._relearned = sum(at_us <= now_us for at_us in self.relearn_us)
        self.drift.relearn(now_us)

    def _watched(self, page: ServerPoint) -> bool:
        """Notes a reading of the metrics page: the monitor was running. Returns whether it is to
        be judged at once: the daemon judges a failed page, and the first good one after it, within
        two seconds.
        """
        at_us, was_ok = page.at_us, self._page_ok
        if self._page_us is None or at_us - self._page_us > UNWATCHED_US:
            self._evaluator.availability.watch_from(at_us)
            self._evaluator.availability.expect(at_us, self.rules.intervals)
        self._page_us, self._page_ok = at_us, page.state == "ok"
        return not (was_ok and self._page_ok)

    def _judge(self, now_us: int) -> None:
        if self._page_us is not None and now_us - self._page_us > UNWATCHED_US:
            self._evaluator.availability.expect(now_us, {})
        for assessment in self._evaluator.changes(now_us, self.incidents.open_kinds):
            self.incidents.reconcile(assessment, now_us)
