"""A target's judges of availability and answers, kept up with what is stored.

They are rebuilt from the history at the start of the daemon: from the newest runs, and from
earlier ones of the probes that run rarely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from sqlalchemy import Connection

from monitor.config.target import TargetSettings
from monitor.judge.availability import LASTING_RUNS
from monitor.judge.evaluator.assessment import Rules
from monitor.judge.evaluator.evaluator import Evaluator
from monitor.judge.quality.gate import with_second_runs
from monitor.judge.quality.verdicts import JUDGED
from monitor.model import CanaryPoint, Pin, Point, Probe, from_us, known_us
from monitor.store import points
from monitor.store.points import Cursor

NEWEST_WITHIN = timedelta(hours=24)
NEWEST_RUNS = 400
READINGS_WITHIN = timedelta(minutes=6)
# of a probe that runs rarely: enough for its own rule and for the model shift, which needs runs on
# an idle server
EARLIER_RUNS = 10
Rows = list[tuple[int, CanaryPoint]]


def same_address(settings: TargetSettings) -> bool:
    """Whether API and metrics page have one address: a refusal of one is then one of the other."""
    return urlsplit(settings.url).netloc == urlsplit(settings.metrics_page).netloc


class Feed:
    """The evaluator of one target, and the last rows that it has processed."""

    def __init__(self, target: str, probes: Sequence[Probe], same_address: bool) -> None:
        self._probes = list(probes)
        self._pins: dict[int, Pin] = {}
        self._rules = Rules(
            probes={probe.name: probe for probe in probes},
            pins=self._pins,
            same_address=same_address,
            only_known=True,
        )
        self._target = target
        self._evaluator: Evaluator | None = None
        self._cursor = Cursor()

    def take_up(
        self, connection: Connection, target_id: int, pins: Iterable[Pin], now: datetime
    ) -> Evaluator:
        """Feeds the rows that are new and returns the evaluator."""
        self._pins.clear()
        self._pins.update({pin.id: pin for pin in pins})
        if self._evaluator is None:
            self._evaluator = self._rebuilt(connection, target_id, now)
        else:
            self._feed(self._evaluator, *self._new_rows(connection, target_id))
        return self._evaluator

    def _new_rows(
        self, connection: Connection, target_id: int
    ) -> tuple[Sequence[tuple[int, Point]], Sequence[tuple[int, Point]]]:
        return (
            points.canaries_after(connection, target_id, self._cursor.sample),
            points.servers_after(connection, target_id, self._cursor.server_reading),
        )

    def _feed(
        self,
        evaluator: Evaluator,
        canaries: Sequence[tuple[int, Point]],
        readings: Sequence[tuple[int, Point]],
    ) -> None:
        for point in sorted((point for _, point in [*canaries, *readings]), key=known_us):
            evaluator.observe(point)
        self._cursor = Cursor(
            sample=max([self._cursor.sample, *(row for row, _ in canaries)]),
            server_reading=max([self._cursor.server_reading, *(row for row, _ in readings)]),
        )

    def _rebuilt(self, connection: Connection, target_id: int, now: datetime) -> Evaluator:
        evaluator = Evaluator(self._target, self._rules)
        evaluator.availability.last_us.update(points.last_starts(connection, target_id))
        self._cursor = points.newest(connection)
        newest = points.newest_canaries(connection, target_id, now - NEWEST_WITHIN, NEWEST_RUNS)
        for _, point in self._earlier(connection, target_id, newest, now):
            evaluator.remember(point)
        begin = points.cursor_at(connection, target_id, (), now - READINGS_WITHIN)
        readings = points.servers_after(connection, target_id, begin.server_reading)
        self._feed(evaluator, newest, readings)
        return evaluator

    def _earlier(self, connection: Connection, target_id: int, newest: Rows, now: datetime) -> Rows:
        """Returns the last runs, from before the newest ones, of probes with few among them."""
        before = min([now, *(from_us(point.at_us) for _, point in newest[:1])])
        runs = Counter(point.probe for _, point in newest)
        judged = Counter(point.probe for _, point in newest if point.verdict in JUDGED)
        found: dict[int, CanaryPoint] = {}
        for probe in with_second_runs(self._probes):
            name, missing = probe.name, max(probe.repeats, EARLIER_RUNS) - judged[probe.name]
            if missing > 0 and (probe.expect or probe.pinned):
                own = points.last_runs(connection, target_id, name, before, missing, JUDGED)
                found.update(own)
            if probe.pinned and runs[name] < LASTING_RUNS:
                found.update(points.last_runs(connection, target_id, name, before, LASTING_RUNS))
        return sorted(found.items())
