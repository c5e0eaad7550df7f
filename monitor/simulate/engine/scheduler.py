"""Allocates the tokens of each step to requests, as vLLM's v1/core/sched/scheduler.py does.

Running requests come first, then waiting ones, under one token budget; a long prompt is split
(chunked prefill); when the cache is full, the youngest (or least urgent) running request is
preempted and starts again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.simulate.engine.blocks import BlockPool
from monitor.simulate.engine.costs import EngineConfig, StepBatch, StepCost
from monitor.simulate.engine.counters import Counters
from monitor.simulate.engine.requests import Handle, RequestState


class StepPart(NamedTuple):  # a tuple: one is made for each request in each step
    """The share of one request in one step. `brings`: its last known token is computed, so that
    a new one follows.
    """

    handle: Handle
    tokens: int
    drafted: int
    brings: bool
    decodes: bool


@dataclass(slots=True)
class Scheduler:
    """The queue, the running requests and their cache."""

    config: EngineConfig
    pool: BlockPool
    counters: Counters
    running: list[Handle] = field(default_factory=list)
    waiting: list[Handle] = field(default_factory=list)

    def enqueue(self, handle: Handle, again: bool = False) -> None:
        """Queues a request; a preempted one goes to the front, or to its place under the
        priority policy.
        """
        handle.state = RequestState.WAITING
        if self.config.scheduling_policy == "priority":
            insort(self.waiting, handle, key=lambda other: other.rank)
        elif again:
            self.waiting.insert(0, handle)
        else:
            self.waiting.append(handle)

    def schedule(self, now_s: float) -> list[StepPart]:
        """The parts of the next step; empty when there is no work."""
        thrown_out = self.counters.num_preemptions
        parts, budget = self._continue()
        if (
            self.counters.num_preemptions == thrown_out
        ):  # otherwise the cache is full, and no request is admitted
            self._admit(parts, budget, now_s)
        return parts

    def remove(self, handle: Handle) -> None:
        """Removes a request from wherever it is and frees its blocks."""
        (self.running if handle.state is RequestState.RUNNING else self.waiting).remove(handle)
        self.free(handle)

    def publish(self, handle: Handle) -> None:
        """Publishes blocks that are full now."""
        keys = handle.request.prefix
        if handle.published >= len(keys) or not self.config.enable_prefix_caching:
            return
        full = handle.computed // self.config.block_size
        while handle.published < min(full, len(keys)):
            if self.pool.publish(keys[handle.published]):
                handle.held.append(keys[handle.published])
                handle.private -= 1
            handle.published += 1

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.config.block_size)

    # -- running requests

    def _continue(self) -> tuple[list[StepPart], int]:
        """The parts of running requests, and the remaining budget."""
        parts: list[StepPart] = []
        budget, index = self.config.max_num_batched_tokens, 0
        while index < len(self.running) and budget > 0:
            handle = self.running[index]
            part = self._part(handle, budget)
            while handle.state is RequestState.RUNNING and not self._allocate(
                handle, handle.computed + part.tokens + part.drafted
            ):
                victim = self._throw_out()
                undone = [p for p in parts if p.handle is victim]
                parts = [p for p in parts if p.handle is not victim]
                budget += sum(p.tokens + p.drafted for p in undone)
                index -= len(undone)
            if handle.state is not RequestState.RUNNING:
                # it was preempted itself, as the least urgent; those behind it
                # still get their part
                continue
            parts.append(part)
            budget -= part.tokens + part.drafted
            index += 1
        return parts, budget

    def _throw_out(self) -> Handle:
        """Preempts the youngest request, or under the priority policy the least urgent one;
        all of it is computed again.
        """
        victim = (
            max(self.running, key=lambda h: h.rank)
            if self.config.scheduling_policy == "priority"
            else self.running[-1]
        )
        self.remove(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.counters.num_preemptions += 1
        self.enqueue(victim, again=True)
        return victim

    def _part(self, handle: Handle, budget: int) -> StepPart:
        rest = handle.known - handle.computed
        tokens = min(rest, budget)
        decodes = rest == 1 and handle.generated > 0
        drafted = 0
        if decodes and handle.ending is not None:
            drafted = max(
                0,
                min(
                    self.config.num_speculative_tokens,
                    handle.ending.tokens - handle.generated - 1,
                    budget - 1,
                ),
            )
        return StepPart(handle, tokens, drafted, brings=tokens == rest, decodes=decodes)

    # -- waiting requests

    def _admit(self, parts: list[StepPart], budget: int, now_s: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            handle = self.waiting[0]
            if not self._look_up(handle):
                return
            part = self._part(handle, budget)
            if not self._allocate(handle, handle.computed + part.tokens):
                self.free(handle)
                handle.computed = 0
                return
            self.waiting.pop(0)
            self.running.append(handle)
            handle.state = RequestState.RUNNING
            handle.published = len(handle.held)
            if handle.scheduled_s is None:
                handle.scheduled_s, handle.cached = now_s, handle.computed
                self._count_lookup(handle)
            parts.append(part)
            budget -= part.tokens

    def _look_up(self, handle: Handle) -> bool:
        """Takes cached blocks. Returns False where even they do not fit."""
        request = handle.request
        if not self.config.enable_prefix_caching or request.skip_cache:
            return True
        keys = request.prefix[: self.pool.hits(request.prefix)]
        if not self.pool.hold(keys):
            return False
        handle.held = list(keys)
        handle.computed = len(keys) * self.config.block_size
        return True

    def _count_lookup(self, handle: Handle) -> None:
        if self.config.enable_prefix_caching and not handle.request.skip_cache:
            self.counters.looked_up(handle)

    # -- the cache

    def _allocate(self, handle: Handle, tokens: int) -> bool:
        lacking = self.blocks_for(tokens) - len(handle.held) - handle.private
        if lacking > 0:
            if not self.pool.take(lacking):
                return False
            handle.private += lacking
        return True

    def free(self, handle: Handle) -> None:
        """Frees all blocks of a request."""
        self.pool.give_back(handle.held, handle.private)
        handle.held, handle.private, handle.published = [], 0, 0


class RunningStep(NamedTuple):
    """The running step."""

    start_s: float
    end_s: float
    cost: StepCost
    batch: StepBatch
    parts: Sequence[StepPart]

    @property
    def busy(self) -> float:
        """Share of the step in which the GPU is busy, 0..1."""
        return self.cost.busy

    @property
    def prefill_share(self) -> float:
        """Share of the GPU's work that is prefill, 0..1."""
        return self.cost.prefill_share


class StepResult(NamedTuple):
    """A finished step: its work, and how many tokens each request got."""

    start_s: float
    end_s: float
    busy: float
    prefill_share: float
    prefill_tokens: int
    produced: Sequence[tuple[Handle, int]]

    @property
    def duration_s(self) -> float:
        """Duration of the step."""
        return self.end_s - self.start_s


class Gauges(NamedTuple):
    """Gauges of the metrics page as of the end of the last step, as in vLLM: a frozen engine
    shows old figures.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # 0..1
