"""What the daemon would have found in the past: stored history, or a CSV file, through exactly its
judges. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.model import CanaryPoint, GpuPoint, Point
from monitor.replay.csv.points import UNNAMED, ReadingCsv, SampleCsv
from monitor.replay.gpu_owners import Belonging
from monitor.replay.incidents import Entry
from monitor.replay.judges import Rules
from monitor.replay.replay import Judging, Replay, in_order, known_us
from monitor.replay.sidecar_pins import pins_beside
from monitor.store import pins, points
from monitor.store.points import Cursor, HistoryRange
from monitor.store.queries import TargetRow
from monitor.store.times import to_us

Make = Callable[[], Judging]
Watcher = Callable[[str, Point], None]  # is shown every point, for example to draw it


@dataclass(slots=True)
class Past:
    """One target's replay, and from when its incidents count; what comes before is only learnt
    from.
    """

    replay: Replay
    counts_from_us: int = 0
    end: Cursor | None = None  # the last rows that are in it, of a stored history
    pin: int = 0  # the newest pin
    first_us: int | None = None
    classes: set[str] = field(default_factory=set)  # of the samples of a file

    @property
    def begin_us(self) -> int | None:
        """From when on there is something that counts."""
        return None if self.first_us is None else max(self.first_us, self.counts_from_us)

    @property
    def incidents(self) -> list[Entry]:
        """Those that opened in the time that counts."""
        return [
            entry for entry in self.replay.book.entries if entry.opened_us >= self.counts_from_us
        ]


def of_history(
    connection: Connection,
    target: TargetRow,
    settings: DriftSettings,
    rules: Rules,
    since: datetime | None,
    until: datetime | None = None,
    *,
    learn_before: bool = True,
    make: Make = Detector,
    watcher: Watcher | None = None,
) -> Past:
    """One target of a history. Unless told otherwise it learns from before `since` already, as a
    running daemon would have.
    """
    uuids = points.gpus_of(connection, target.id)
    begin_at = (
        since - timedelta(days=settings.remember_days)
        if since is not None and learn_before
        else since
    )
    begin = (
        Cursor() if begin_at is None else points.cursor_at(connection, target.id, uuids, begin_at)
    )
    until_us = (
        points.FOR_EVER_US if until is None else to_us(until)
    )  # rows from a clock that was ahead may stand among the others
    stretch = HistoryRange(
        connection,
        target.id,
        uuids,
        begin,
        points.cursor_at(connection, target.id, uuids, until),
        until_us,
    )
    own = pins.find(connection, target.name, retired=True)
    made_us = sorted(
        to_us(pin.created_at) for pin in own if begin_at is None or pin.created_at > begin_at
    )
    replay = Replay(
        target.name, make(), settings, replace(rules, pins={pin.id: pin for pin in own}), made_us
    )
    past = Past(
        replay,
        0 if since is None else to_us(since),
        stretch.end,
        max((pin.id for pin in own), default=0),
    )
    merged = in_order(stretch.canaries(), stretch.servers(), stretch.gpus())
    replay.run(_shown(target.name, _first_noted(past, merged), watcher))
    replay.finish()
    return past


def _first_noted(past: Past, merged: Iterator[Point]) -> Iterator[Point]:
    for point in merged:
        if past.first_us is None:
            past.first_us = known_us(point)
        yield point


def _shown(target: str, merged: Iterable[Point], watcher: Watcher | None) -> Iterable[Point]:
    if watcher is None:
        return merged

    def showing() -> Iterator[Point]:
        for point in merged:
            watcher(target, point)
            yield point

    return showing()


@dataclass(slots=True)
class _Feed:
    """One target of a file: what was read of it and is not yet fed, since something that was known
    earlier may still come.
    """

    past: Past
    held: list[CanaryPoint] = field(default_factory=list)
    readings: list[Point] = field(default_factory=list)
    gpus: set[str] = field(default_factory=set)

    def take(self, canaries: list[CanaryPoint]) -> None:
        """Take up what was read of the samples."""
        self.held += canaries
        self.gpus.update(p.gpu_uuid for p in canaries if p.gpu_uuid is not None)
        self.past.classes.update({p.traffic_class for p in canaries})

    def run(self, until_us: int | None, watcher: Watcher | None) -> None:
        """Feed what was known by then; None: everything."""
        ready: list[Point] = [p for p in self.held if until_us is None or p.known_us <= until_us]
        self.held = [p for p in self.held if until_us is not None and p.known_us > until_us]
        ready += self.readings
        self.readings = []
        ready.sort(key=known_us)
        if UNNAMED in self.gpus and len(self.gpus) > 1:
            ready = [_identified(point, self.gpus - {UNNAMED}) for point in ready]
        if ready and self.past.first_us is None:
            self.past.first_us = known_us(ready[0])
        self.past.replay.run(_shown(self.past.replay.target, ready, watcher))


def _identified(point: Point, named: Collection[str]) -> Point:
    """A GPU that is named in one place of a file and not in another is one GPU, if there is but
    one; of several nobody knows which.
    """
    gpu = next(iter(named)) if len(named) == 1 else None
    if isinstance(point, CanaryPoint) and point.gpu_uuid == UNNAMED:
        return point._replace(gpu_uuid=gpu)
    if isinstance(point, GpuPoint) and point.uuid == UNNAMED and gpu is not None:
        return point._replace(uuid=gpu)
    return point


def of_file(
    path: Path,
    settings: DriftSettings,
    rules: Rules,
    *,
    make: Make = Detector,
    watcher: Watcher | None = None,
) -> tuple[list[Past], list[str]]:
    """Every target of a CSV file, by name, and what is to be said of the file. FILE.readings.csv
    and FILE.pins.yaml beside it are read when they are there. Raises CsvError and PinFileError.
    """
    samples, pinned = SampleCsv(path), pins_beside(path)

    def past_of(target: str) -> Past:
        return Past(Replay(target, make(), settings, replace(rules, pins=pinned.of(target))))

    beside = path.with_name(f"{path.stem}.readings.csv")
    readings = ReadingCsv(beside) if beside.exists() else None
    gpus = {} if readings is None else samples.gpus()
    belonging = Belonging(gpus, samples.names_targets)
    feeds = {name: _Feed(past_of(name), gpus=set(of)) for name, of in gpus.items()}
    waiting = _Peek(readings, belonging)
    for chunk in samples.chunks():
        for name, canaries in chunk.items():
            if name not in feeds:
                feeds[name] = _Feed(past_of(name))
            pinned.note(name, canaries)
            feeds[name].take(canaries)
        until_us = max(canaries[-1].at_us for canaries in chunk.values())
        waiting.hand_out(feeds, until_us)
        for feed in feeds.values():
            feed.run(until_us, watcher)
    waiting.hand_out(feeds, None)
    for feed in feeds.values():
        feed.run(None, watcher)
        feed.past.replay.finish()
    notes = samples.notes.sentences(samples.name)
    if readings is not None:
        notes += readings.notes.sentences(readings.name) + belonging.sentences(
            readings.name, samples.name
        )
    return [feeds[name].past for name in sorted(feeds)], notes + pinned.notes()


class _Peek:
    """The readings of a file, handed to the targets they belong to, up to a moment at a time."""

    def __init__(self, readings: ReadingCsv | None, belonging: Belonging) -> None:
        self._rows = (
            iter(()) if readings is None else (row for chunk in readings.chunks() for row in chunk)
        )
        self._next = next(self._rows, None)
        self._belonging = belonging

    def hand_out(self, feeds: dict[str, _Feed], until_us: int | None) -> None:
        """Up to that moment; None: all that are left."""
        while self._next is not None and (until_us is None or self._next[1].at_us <= until_us):
            name, point = self._next
            for target in self._belonging.of(name, point):
                feeds[target].readings.append(point)
                if isinstance(point, GpuPoint):
                    feeds[target].gpus.add(point.uuid)
            self._next = next(self._rows, None)
