"""The daemon's schedule in virtual time: the probes of a lane that are due together run back to
back, in rotated order; uncapped probes have a lane of their own half an interval later;
the metrics page is read every 15 s.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from monitor.measure.rounds import GATHER_S, READING_EVERY_S, Rounds
from monitor.model import Probe, ServerPage
from monitor.replay.virtual.canary import VirtualWatch
from monitor.simulate.fastforward.world import FastForwardWorld

FIRST_S = 0.5
Task = Generator[float, None, None]  # yields the time until which it waits


@dataclass
class VirtualSchedule:
    """Tasks in virtual time. A task whose request is over continues at once."""

    world: FastForwardWorld
    watch: VirtualWatch
    pages: list[ServerPage] = field(default_factory=list)  # read between canaries
    _lanes: list[Task] = field(default_factory=list)
    _heap: list[tuple[float, int, Task]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def fill(self, probes: Sequence[Probe]) -> None:
        """Starts both lanes and the readings."""
        every_s = {probe.name: probe.every_s for probe in probes if probe.every_s is not None}
        first_s = {True: FIRST_S, False: FIRST_S + min(every_s.values()) / 2}
        for capped, begin_s in first_s.items():
            ours = [probe for probe in probes if probe.capped is capped and probe.name in every_s]
            if ours:
                lane = self._lane(ours, every_s, begin_s)
                self._lanes.append(lane)
                self._begin(lane, begin_s)
        self._begin(self._readings(), FIRST_S)

    def run(self, end_s: float) -> None:
        """Runs the world until then."""
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
        """Wakes both lanes: only they have requests in flight. The other lane checks a little
        early, which does no harm.
        """
        waiting = [entry for entry in self._heap if any(entry[2] is lane for lane in self._lanes)]
        self._heap = sorted(entry for entry in self._heap if entry not in waiting)
        for _, _, task in sorted(waiting):
            self._go_on(task)

    def _go_on(self, task: Task) -> None:
        until_s = next(task, None)
        if until_s is not None:
            self._begin(task, until_s)

    def _lane(self, probes: Sequence[Probe], every_s: dict[str, float], first_s: float) -> Task:
        """Runs due probes in rounds. Runs that fall due while their probe's round lasts are
        skipped.
        """
        world, due_s = self.world, {probe.name: first_s for probe in probes}
        rounds = Rounds([probe.name for probe in probes])
        while True:
            moment_s = min(due_s.values())
            if moment_s > world.now_s:
                yield moment_s
            yield max(moment_s, world.now_s) + GATHER_S
            due = [probe for probe in probes if due_s[probe.name] <= world.now_s]
            for probe in rounds.next(due):
                yield from self.watch.run_all(probe)
            for name in (probe.name for probe in due):
                late_s, interval_s = world.now_s - due_s[name], every_s[name]
                due_s[name] += interval_s * (1 + late_s // interval_s)

    def _readings(self) -> Task:
        while True:
            self.pages.append(self.watch.read_page())
            yield self.world.now_s + READING_EVERY_S
