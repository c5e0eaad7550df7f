"""A world that takes many equal steps at once: days of virtual time in seconds of work.

While the same sequences decode, nobody arrives and none of them ends, step follows step with only the
context growing. Those steps are taken as one, with the time, the counters, the cache blocks and the heat that they would have had.
Everything else goes step by step, as always.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from monitor.simulate.costs import cost_of
from monitor.simulate.counters import Histogram
from monitor.simulate.engine import Engine, Running
from monitor.simulate.requests import State
from monitor.simulate.speeds import Speeds
from monitor.simulate.world import World

FEWEST = 4  # steps that are worth a leap
RESTED_S = 9.9  # a rest after which the clocks have to come up again (card.py)
LONGEST_S = 2.0  # after which the cards' clocks are asked again


@dataclass
class LeapingWorld(World):
    """A World for virtual time only. In a leap `on_tokens` comes once, with all the tokens of a request and the time of the last."""

    leaping: bool = field(default=False, init=False)  # true while `on_tokens` tells of a leap
    _worked_since_s: float = field(default=0.0, init=False)
    _stepped_s: float = field(default=0.0, init=False)

    def advance(self, to_s: float) -> None:
        """As World.advance."""
        self.advance_until(to_s, lambda: False)

    def advance_until(self, to_s: float, over: Callable[[], bool]) -> None:
        """As `advance`, but no further than to the moment at which `over` becomes true."""
        while not over():
            source_s = min(source.next_s() for source in self.sources) if self.sources else inf
            limit_s = min(to_s, source_s)
            if self.engine.current is not None and limit_s > self.now_s:
                self._leap(limit_s)
            step_s = self.engine.next_step_s()
            if source_s > to_s and (step_s is None or step_s > to_s):
                self.now_s = max(self.now_s, to_s)
                self._account()
                return
            super().advance(source_s if step_s is None else min(source_s, step_s))

    def _leap(self, limit_s: float) -> None:
        running = self.engine.current
        if running is None or self.engine.next_step_s() is None:
            return
        if running.start_s > self._stepped_s + RESTED_S:
            self._worked_since_s = running.start_s
        self._stepped_s = running.end_s
        # Clocks that come up after a rest change the steps fast at first, and later hardly.
        longest_s = min(LONGEST_S, (running.start_s - self._worked_since_s) / 4)
        speeds = self.speeds()
        steps, end_s = _room(self.engine, running, speeds, min(limit_s, running.start_s + longest_s))
        if steps < FEWEST or not _take_blocks(self.engine, running, steps):
            return
        self._account()
        _take_steps(self.engine, running, steps, end_s, speeds)
        self._note(running.start_s, 0.0, 0.0)
        self._note(end_s, running.busy, running.prefill_share)
        self.now_s, self._stepped_s = max(self.now_s, end_s), end_s
        self.leaping = True
        for part in running.parts:
            if part.handle.request.on_tokens is not None:
                part.handle.request.on_tokens(part.handle, steps, end_s)
        self.leaping = False


def _room(engine: Engine, running: Running, speeds: Speeds, limit_s: float) -> tuple[int, float]:
    """How many steps like the running one follow, it included, and when the last of them ends."""
    config, waiting = engine.config, engine.scheduler.waiting
    if waiting and len(engine.scheduler.running) < config.max_num_seqs:
        return 0, 0.0  # somebody may be let in
    steps = 1 << 30
    for part in running.parts:
        handle = part.handle
        if not part.decodes or part.drafted or handle.state is not State.RUNNING or handle.ending is None:
            return 0, 0.0
        steps = min(steps, handle.ending.tokens - handle.generated - 1)
    first_s = running.cost.duration_s
    more = replace(running.batch, context_tokens=running.batch.context_tokens + running.batch.decodes)
    growth_s = cost_of(more, config, speeds, running.start_s - engine.started_s).duration_s - first_s
    growth_s = max(0.0, min(growth_s, first_s / 100))  # a change of clocks since the step began is no growth
    steps = min(steps, int((limit_s - running.start_s) / first_s))
    while steps > 0 and (end_s := running.start_s + steps * first_s + growth_s * steps * (steps - 1) / 2) > limit_s:
        steps -= max(1, int((end_s - limit_s) / first_s))
    return (steps, end_s) if steps > 0 else (0, 0.0)


def _take_blocks(engine: Engine, running: Running, steps: int) -> bool:
    """Blocks for the tokens to come; False where the cache is too full, which is a matter for single steps."""
    scheduler = engine.scheduler
    lacking = {}
    for part in running.parts:
        handle = part.handle
        lacking[handle] = max(0, scheduler.blocks_for(handle.computed + steps + 1) - len(handle.held) - handle.private)
    if not scheduler.pool.take(sum(lacking.values())):
        return False
    for handle, blocks in lacking.items():
        handle.private += blocks
    return True


def _take_steps(engine: Engine, running: Running, steps: int, end_s: float, speeds: Speeds) -> None:
    """Do what `Engine.step` does, `steps` times; the step after them is then the running one."""
    counters, sequences = engine.counters, len(running.parts)
    for part in running.parts:
        handle = part.handle
        handle.computed += steps
        handle.generated += steps
        if handle.last_s is not None:
            _observe(counters.inter_token_latency, (end_s - handle.last_s) / steps, steps)
        handle.last_s = end_s
        engine.scheduler.publish(handle)
    counters.generation_tokens += steps * sequences
    _observe(counters.iteration_tokens, sequences, steps)
    batch = replace(running.batch, context_tokens=running.batch.context_tokens + steps * sequences)
    cost = cost_of(batch, engine.config, speeds, end_s - engine.started_s)
    engine.current = Running(end_s, end_s + cost.duration_s, cost, batch, running.parts)
    engine._note_gauges()


def _observe(histogram: Histogram, value: float, times: int) -> None:
    histogram.counts[bisect_left(histogram.edges, value)] += times
    histogram.count += times
    histogram.sum += value * times
