"""History in virtual time: what a daemon would have stored in hours or days, in seconds of work.

The same engine, cards and scenarios as the server in real time, and a canary that keeps the daemon's timetable: all probes of a lane due
together run back to back in rotated order, uncapped ones in a lane of their own half an interval later; server readings every 15 s,
looks at the cards every second in windows of five.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from monitor.errors import USAGE, Told
from monitor.simulate.assemble import make_world, switch
from monitor.simulate.card import CardReading
from monitor.simulate.leap import LeapingWorld
from monitor.simulate.noise import Noise
from monitor.simulate.records import READING_FIELDS, SAMPLE_FIELDS, SERVER_FIELDS, Row, gpu_row, iso
from monitor.simulate.scenario import Scenario
from monitor.simulate.shipped import ShippedProbe, shipped_probes
from monitor.simulate.visitor import Visitor

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)  # a Monday; a fixed one, so that the same seed writes the same file
FIRST_S, GATHER_S = 0.5, 0.2
READING_EVERY_S, LOOK_EVERY_S, WINDOW = 15.0, 1.0, 5
COLD_S = 1.0  # as `simulate` has it
ONSET_SHARE = 0.5  # a scenario begins when half of the time has passed: what is normal must be known first
Task = Generator[float, None, Any]


class ExportError(Told):
    """A file that cannot be written."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. `str` tells it to a person."""

    file: Path
    readings_file: Path
    samples: int
    readings: int
    hours: float
    took_s: float
    scenario: Scenario
    onset: str

    def __str__(self) -> str:
        raises = self.scenario.raises
        cause = f" ({raises.cause})" if raises is not None and raises.cause else ""
        must = f"from {self.onset} on it must raise {raises.kind}{cause}" if raises is not None else "it must raise nothing"
        return (
            f"{self.file}: {self.samples} samples of {self.hours:g} h, {self.readings_file}: {self.readings} readings, "
            f"in {self.took_s:.1f} s\nscenario {self.scenario.name}: {self.scenario.about}; {must}"
        )


@dataclass
class Timetable:
    """Tasks in virtual time. A task yields until when it waits; one whose request is over goes on at once."""

    world: LeapingWorld
    visitor: Visitor
    lanes: list[Task] = field(default_factory=list)
    _heap: list[tuple[float, int, Task]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)

    def begin(self, task: Task, at_s: float) -> None:
        """Let a task start."""
        heappush(self._heap, (at_s, next(self._numbers), task))

    def run(self, end_s: float) -> None:
        """Until then."""
        world = self.world
        while self._heap and self._heap[0][0] <= end_s:
            due_s = self._heap[0][0]
            world.advance_until(due_s, lambda: any(sent.over for sent in self.visitor.out))
            if world.now_s < due_s:
                self._wake_lanes()
                continue
            self._go_on(heappop(self._heap)[2])

    def _wake_lanes(self) -> None:
        """Only lanes have requests out. One that is woken for the other's sake looks a little early."""
        waiting = [entry for entry in self._heap if any(entry[2] is lane for lane in self.lanes)]
        self._heap = sorted(entry for entry in self._heap if entry not in waiting)
        for _, _, task in sorted(waiting):
            self._go_on(task)

    def _go_on(self, task: Task) -> None:
        until_s = next(task, None)
        if until_s is not None:
            self.begin(task, until_s)


def export(
    file: Path, hours: float, gpus: Sequence[str] = ("h100",), scenario: str = "calm", seed: int = 0, thermal_speed: float = 1.0
) -> Exported:
    """Write FILE.csv and FILE.readings.csv. Raises ScenarioError, UnknownCardError and ExportError."""
    began_s = time.perf_counter()
    world = make_world(gpus, seed, thermal_speed, EPOCH.timestamp(), LeapingWorld)
    assert isinstance(world, LeapingWorld)  # noqa: S101 - for the type checker
    world.set("cold_s", COLD_S)
    onset_s = hours * 3600 * ONSET_SHARE
    story = switch(world, scenario, onset_s)
    visitor = Visitor(world, "simulated", Noise(seed))
    readings: list[Row] = []
    timetable = Timetable(world, visitor)
    _fill(timetable, readings)
    timetable.run(hours * 3600)
    samples = sorted(visitor.rows, key=lambda row: str(row["started_at"]))
    readings_file = file.with_name(f"{file.stem}.readings.csv")
    _write(file, SAMPLE_FIELDS, [{"id": number, **row} for number, row in enumerate(samples, 1)])
    _write(readings_file, READING_FIELDS, readings)
    took_s = time.perf_counter() - began_s
    return Exported(file, readings_file, len(samples), len(readings), hours, took_s, story, iso(EPOCH.timestamp() + onset_s))


def _fill(timetable: Timetable, readings: list[Row]) -> None:
    """Both lanes, the readings of the server, and the looks at the cards."""
    probes = shipped_probes()
    shortest_s = min(probe.every_s for probe in probes)
    for capped, first_s in ((True, FIRST_S), (False, FIRST_S + shortest_s / 2)):
        lane = _lane(timetable, [probe for probe in probes if (probe.max_wait_s is not None) is capped], first_s)
        timetable.lanes.append(lane)
        timetable.begin(lane, first_s)
    timetable.begin(_server_readings(timetable, readings), FIRST_S)
    timetable.begin(_card_looks(timetable, readings), 0.0)


def _lane(timetable: Timetable, probes: Sequence[ShippedProbe], first_s: float) -> Task:
    """Rounds of what is due. A probe that is late runs once, as in the daemon."""
    world, due = timetable.world, {probe.name: first_s for probe in probes}
    for turn in count():
        moment_s = min(due.values())
        if moment_s > world.now_s:
            yield moment_s
        yield max(moment_s, world.now_s) + GATHER_S
        start = turn % len(probes)
        for probe in [*probes[start:], *probes[:start]]:
            if due[probe.name] <= world.now_s:
                due[probe.name] += probe.every_s * (1 + (world.now_s - due[probe.name]) // probe.every_s)
                yield from timetable.visitor.visit(probe)


def _server_readings(timetable: Timetable, readings: list[Row]) -> Task:
    while True:
        page = timetable.visitor.look()
        row: Row = {"kind": "server", "target": timetable.visitor.target, "at": iso(timetable.world.unix_s)}
        readings.append(row | {name: getattr(page, name) for name in SERVER_FIELDS})
        yield timetable.world.now_s + READING_EVERY_S


def _card_looks(timetable: Timetable, readings: list[Row]) -> Task:
    looks: list[list[CardReading]] = []
    if not timetable.world.cards:
        return
    for number in count(1):
        looks.append(timetable.visitor.cards())
        if len(looks) == WINDOW:
            at = iso(timetable.world.unix_s)
            readings += [{"kind": "gpu", "at": at} | gpu_row(of_one) for of_one in zip(*looks, strict=True)]
            looks.clear()
        yield number * LOOK_EVERY_S


def _write(file: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    try:
        with file.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None
