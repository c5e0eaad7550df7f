"""A replay of stored history: what the daemon's judges find in it. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.evaluator.assessment import Rules
from monitor.judge.evaluator.drift import Drift, DriftDetector
from monitor.model import Pin, Point, known_us
from monitor.replay.incidents import ReplayedIncident
from monitor.replay.replay import Replay, in_order
from monitor.store import pins, points
from monitor.store.points import Cursor, HistoryRange
from monitor.store.queries import TargetRow
from monitor.store.times import to_us

MakeDetector = Callable[[], DriftDetector]
Watcher = Callable[[str, Point], None]  # called with every point, for example to draw it


@dataclass(slots=True)
class ReplayedTarget:
    """One target's replay, and the time from which its incidents count: what comes before is only
    learned from.
    """

    replay: Replay
    counts_from_us: int = 0
    end: Cursor | None = None  # of stored history: the last rows that were replayed
    pin: int = 0  # of stored history: the newest pin
    first_us: int | None = None
    classes: set[str] = field(default_factory=set)  # of a file: the classes of its samples

    @property
    def begin_us(self) -> int | None:
        """The time of the first point that counts."""
        return None if self.first_us is None else max(self.first_us, self.counts_from_us)

    @property
    def incidents(self) -> list[ReplayedIncident]:
        """The incidents that opened in the time that counts."""
        opened = self.replay.incidents.all
        return [incident for incident in opened if incident.opened_us >= self.counts_from_us]

    def run(self, points: Iterable[Point], watcher: Watcher | None) -> None:
        """Processes points, in the order in which they were known."""
        self.replay.run(self._noted(points, watcher))

    def _noted(self, points: Iterable[Point], watcher: Watcher | None) -> Iterator[Point]:
        for point in points:
            if self.first_us is None:
                self.first_us = known_us(point)
            if watcher is not None:
                watcher(self.replay.target, point)
            yield point


@dataclass(frozen=True, slots=True)
class Period:
    """The time that is replayed. `learn_before`: also learn from the time before `since`, as a
    running daemon would have.
    """

    since: datetime | None = None
    until: datetime | None = None
    learn_before: bool = True

    def begin(self, settings: DriftSettings) -> datetime | None:
        """Returns the time from which points are read; None: from the first one."""
        if self.since is None or not self.learn_before:
            return self.since
        return self.since - timedelta(days=settings.remember_days)


def replay_history(
    connection: Connection,
    target: TargetRow,
    settings: DriftSettings,
    *,
    rules: Rules | None = None,
    period: Period | None = None,
    make: MakeDetector = Detector,
    watcher: Watcher | None = None,
) -> ReplayedTarget:
    """Replays one target of a history."""
    period = period or Period()
    own = pins.find(connection, target.name, retired=True)
    interval = _interval(connection, target, settings, period)
    replay = Replay(
        Drift(target.name, make(), settings),
        replace(rules or Rules(), pins={pin.id: pin for pin in own}),
        relearn_us=_recorded_us(own, period.begin(settings)),
    )
    replayed = ReplayedTarget(
        replay,
        counts_from_us=0 if period.since is None else to_us(period.since),
        end=interval.end,
        pin=max((pin.id for pin in own), default=0),
    )
    merged = in_order(interval.canaries(), interval.servers(), interval.gpus())
    replayed.run(merged, watcher)
    replay.finish()
    return replayed


def _interval(
    connection: Connection, target: TargetRow, settings: DriftSettings, period: Period
) -> HistoryRange:
    uuids = points.gpus_of(connection, target.id)
    begin, until = period.begin(settings), period.until
    return HistoryRange(
        connection,
        target.id,
        uuids,
        begin=Cursor() if begin is None else points.cursor_at(connection, target.id, uuids, begin),
        end=points.cursor_at(connection, target.id, uuids, until),
        # rows from a clock that was ahead may stand among the others
        until_us=points.FOR_EVER_US if until is None else to_us(until),
    )


def _recorded_us(own: Sequence[Pin], begin: datetime | None) -> list[int]:
    return sorted(to_us(pin.created_at) for pin in own if begin is None or pin.created_at > begin)
