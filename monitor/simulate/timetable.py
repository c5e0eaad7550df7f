"""The daemon's timetable in virtual time: all probes of a lane due together run back to back in
rotated order, uncapped ones in a lane of their own half an interval later; readings of the server
every 15 s.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from monitor.simulate.leap import LeapingWorld
from monitor.simulate.records import Page
from monitor.simulate.shipped import ShippedProbe
from monitor.simulate.visitor import Visitor

FIRST_S, GATHER_S = 0.5, 0.2
READING_EVERY_S = 15.0
Task = Generator[float, None, Any]  # yields until when it waits


@dataclass
class Timetable:
    """Tasks in virtual time. A task yields until when it waits; one whose request is over goes on
    at once.
    """

    world: LeapingWorld
    visitor: Visitor
    pages: list[tuple[float, Page]] = field(
        default_factory=list
    )  # unix time and what the metrics page said then
    _lanes: list[Task] = field(default_factory=list)
    _heap: list[tuple[float, int, Task]] = field(default_factory=list)
    _numbers: Any = field(default_factory=count)

    def fill(self, probes: Sequence[ShippedProbe]) -> None:
        """Both lanes, and the readings."""
        shortest_s = min(probe.every_s for probe in probes)
        for capped, first_s in ((True, FIRST_S), (False, FIRST_S + shortest_s / 2)):
            lane = self._lane(
                [probe for probe in probes if (probe.max_wait_s is not None) is capped], first_s
            )
            self._lanes.append(lane)
            self._begin(lane, first_s)
        self._begin(self._readings(), FIRST_S)

    def run(self, end_s: float) -> None:
        """Until then."""
        world = self.world
        while self._heap and self._heap[0][0] <= end_s:
            world.advance_until(self._heap[0][0])
            if world.halted:
                self._wake_lanes()
            else:
                self._go_on(heappop(self._heap)[2])
        world.advance(end_s)
        world.settle()

    def _begin(self, task: Task, at_s: float) -> None:
        heappush(self._heap, (at_s, next(self._numbers), task))

    def _wake_lanes(self) -> None:
        """Only lanes have requests out. One that is woken for the other's sake looks a little
        early.
        """
        waiting = [entry for entry in self._heap if any(entry[2] is lane for lane in self._lanes)]
        self._heap = sorted(entry for entry in self._heap if entry not in waiting)
        for _, _, task in sorted(waiting):
            self._go_on(task)

    def _go_on(self, task: Task) -> None:
        until_s = next(task, None)
        if until_s is not None:
            self._begin(task, until_s)

    def _lane(self, probes: Sequence[ShippedProbe], first_s: float) -> Task:
        """Rounds of what is due. A probe that is late runs once, as in the daemon."""
        world, due = self.world, {probe.name: first_s for probe in probes}
        for turn in count():
            moment_s = min(due.values())
            if moment_s > world.now_s:
                yield moment_s
            yield max(moment_s, world.now_s) + GATHER_S
            start = turn % len(probes)
            for probe in [*probes[start:], *probes[:start]]:
                if due[probe.name] <= world.now_s:
                    due[probe.name] += probe.every_s * (
                        1 + (world.now_s - due[probe.name]) // probe.every_s
                    )
                    yield from self.visitor.visit(probe)

    def _readings(self) -> Task:
        while True:
            self.pages.append((self.world.unix_s, self.visitor.look()))
            yield self.world.now_s + READING_EVERY_S
