"""A replay of a CSV file: what the daemon's judges find in it. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.evaluator.assessment import Rules
from monitor.judge.evaluator.drift import Drift
from monitor.model import CanaryPoint, GpuPoint, Point, known_us
from monitor.replay.csv.points import UNNAMED, ReadingCsv, SampleCsv
from monitor.replay.history import MakeDetector, ReplayedTarget, Watcher
from monitor.replay.owners import ReadingOwners
from monitor.replay.replay import Replay
from monitor.replay.sidecar_pins import SidecarPins, read_sidecar_pins


def replay_file(
    path: Path,
    settings: DriftSettings,
    *,
    rules: Rules | None = None,
    make: MakeDetector = Detector,
    watcher: Watcher | None = None,
) -> tuple[list[ReplayedTarget], list[str]]:
    """Replays every target of a CSV file. Returns the targets by name, and notes about the file.

    FILE.readings.csv and FILE.pins.yaml next to it are read if they exist. Raises CsvError and
    PinFileError.
    """
    samples, pins = SampleCsv(path), read_sidecar_pins(path)

    def start(target: str) -> ReplayedTarget:
        own = replace(rules or Rules(), pins=pins.of(target))
        return ReplayedTarget(Replay(Drift(target, make(), settings), own))

    file = _File(samples, _readings_of(path), pins, start, watcher)
    file.run()
    return file.replayed(), file.notes()


def _readings_of(path: Path) -> ReadingCsv | None:
    sidecar = path.with_name(f"{path.stem}.readings.csv")
    return ReadingCsv(sidecar) if sidecar.exists() else None


@dataclass(slots=True)
class _Feed:
    """One target of a file: the points that were read and wait, because one that was known
    earlier may still come.
    """

    target: ReplayedTarget
    held: list[CanaryPoint] = field(default_factory=list)
    readings: list[Point] = field(default_factory=list)
    gpus: set[str] = field(default_factory=set)

    def take(self, canaries: list[CanaryPoint]) -> None:
        """Processes samples."""
        self.held += canaries
        self.gpus.update(p.gpu_uuid for p in canaries if p.gpu_uuid is not None)
        self.target.classes.update({p.traffic_class for p in canaries})

    def run(self, until_us: int | None, watcher: Watcher | None) -> None:
        """Replays what was known by a time; None: everything."""
        ready: list[Point] = [p for p in self.held if until_us is None or p.known_us <= until_us]
        self.held = [p for p in self.held if until_us is not None and p.known_us > until_us]
        ready += self.readings
        self.readings = []
        ready.sort(key=known_us)
        if UNNAMED in self.gpus and len(self.gpus) > 1:
            ready = [_identified(point, self.gpus - {UNNAMED}) for point in ready]
        self.target.run(ready, watcher)


class _File:
    """The rows of a file, handed to the targets that they belong to."""

    def __init__(
        self,
        samples: SampleCsv,
        readings: ReadingCsv | None,
        pins: SidecarPins,
        start: Callable[[str], ReplayedTarget],
        watcher: Watcher | None,
    ) -> None:
        self._samples, self._readings, self._pins = samples, readings, pins
        self._start, self._watcher = start, watcher
        gpus = {} if readings is None else samples.gpus()
        self._owners = ReadingOwners(gpus, samples.names_targets)
        self._feeds = {name: _Feed(start(name), gpus=set(own)) for name, own in gpus.items()}
        chunks = () if readings is None else readings.chunks()
        self._rows = (row for chunk in chunks for row in chunk)
        self._next = next(self._rows, None)

    def run(self) -> None:
        """Replays the whole file."""
        for chunk in self._samples.chunks():
            for name, canaries in chunk.items():
                self._take(name, canaries)
            self._run_until(max(canaries[-1].at_us for canaries in chunk.values()))
        self._run_until(None)
        for feed in self._feeds.values():
            feed.target.replay.finish()

    def replayed(self) -> list[ReplayedTarget]:
        """Returns the targets, by name."""
        return [self._feeds[name].target for name in sorted(self._feeds)]

    def notes(self) -> list[str]:
        """Returns sentences about what was left out or looks wrong."""
        notes = self._samples.notes.sentences(self._samples.name)
        if self._readings is not None:
            notes += self._readings.notes.sentences(self._readings.name)
            notes += self._owners.sentences(self._readings.name, self._samples.name)
        return notes + self._pins.notes()

    def _take(self, name: str, canaries: list[CanaryPoint]) -> None:
        if name not in self._feeds:
            self._feeds[name] = _Feed(self._start(name))
        self._pins.note(name, canaries)
        self._feeds[name].take(canaries)

    def _run_until(self, until_us: int | None) -> None:
        self._hand_out_readings(until_us)
        for feed in self._feeds.values():
            feed.run(until_us, self._watcher)

    def _hand_out_readings(self, until_us: int | None) -> None:
        while self._next is not None and (until_us is None or self._next[1].at_us <= until_us):
            name, point = self._next
            for target in self._owners.of(name, point):
                self._feeds[target].readings.append(point)
                if isinstance(point, GpuPoint):
                    self._feeds[target].gpus.add(point.uuid)
            self._next = next(self._rows, None)


def _identified(point: Point, named: Collection[str]) -> Point:
    """Returns a point of an unnamed GPU under the name that the rest of the file gives it, if
    there is only one.
    """
    gpu = next(iter(named)) if len(named) == 1 else None
    if isinstance(point, CanaryPoint) and point.gpu_uuid == UNNAMED:
        return point._replace(gpu_uuid=gpu)
    if isinstance(point, GpuPoint) and point.uuid == UNNAMED and gpu is not None:
        return point._replace(uuid=gpu)
    return point
