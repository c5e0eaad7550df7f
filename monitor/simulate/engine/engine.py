"""A vLLM V1 engine in virtual time: no clock, no I/O; time is an argument. It counts tokens and
knows no text.

    engine.submit(request, now_s)         begins a step if none runs
    engine.next_step_s()                  when the running step ends; None: nothing runs
    engine.step(now_s)                    ends it and begins the next

Ends of steps are exact: a driver that wakes late calls `step` with the times that were due, one
after the other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from monitor.simulate.engine.blocks import BlockPool
from monitor.simulate.engine.costs import (
    EngineConfig,
    Speeds,
    StepBatch,
    StepCost,
    cost_of,
    rates_of,
)
from monitor.simulate.engine.counters import Counters
from monitor.simulate.engine.requests import EngineRequest, Handle, RequestState
from monitor.simulate.engine.scheduler import Gauges, RunningStep, Scheduler, StepPart, StepResult


class Engine:
    """One engine. `speed` is read at the start of each step; `seed` decides which drafted
    tokens are accepted.
    """

    def __init__(
        self,
        config: EngineConfig,
        speed: Callable[[], Speeds],
        max_model_len: int = 8192,
        seed: int = 0,
        counters: type[Counters] = Counters,
    ) -> None:
        self.config = config
        self._counters = counters
        self.seed = seed
        self._speed = speed
        self._order = 0
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not a secret
        self._fresh(0.0, max_model_len)

    def _fresh(self, now_s: float, max_model_len: int) -> None:
        self.started_s = now_s
        self.max_model_len = max_model_len
        self.counters = self._counters(max_model_len)
        self.scheduler = Scheduler(
            self.config, BlockPool(self.config.num_gpu_blocks), self.counters
        )
        self.current: RunningStep | None = None
        self.warmed: set[str] = set()  # parameter sets that this process has compiled
        self.gauges = Gauges()

    @property
    def running(self) -> int:
        """Requests in the batch now."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in the queue now."""
        return len(self.scheduler.waiting)

    def submit(self, request: EngineRequest, now_s: float) -> Handle:
        """Queues a request. Raises ValueError for one that could never fit into the cache."""
        if (
            self.scheduler.blocks_for(request.prompt_tokens + request.max_tokens)
            > self.scheduler.pool.total
        ):
            raise ValueError(
                f"{request.prompt_tokens} + {request.max_tokens} tokens are more than the "
                "cache holds"
            )
        handle = self.handle(request, now_s)
        self.scheduler.enqueue(handle)
        self.kick(now_s)
        return handle

    def handle(self, request: EngineRequest, arrived_s: float) -> Handle:
        """The next request in order of arrival."""
        self._order += 1
        return Handle(request, arrived_s, self._order)

    def cancel(self, handle: Handle) -> None:
        """Cancels a request: its blocks are free at once, and it is not counted (vLLM #31503)."""
        if handle.state in {RequestState.RUNNING, RequestState.WAITING}:
            self.scheduler.remove(handle)
            handle.state = RequestState.CANCELLED
            if self.current is None:
                self.note_gauges()

    def kick(self, now_s: float) -> None:
        """Begins a step if none runs and there is work: after a submit, or when a fault is
        cleared.
        """
        if self.current is None and not (self.config.dead or self.config.asleep):
            self._begin(now_s)

    def next_step_s(self) -> float | None:
        """When the running step ends; None: none runs, or it never ends."""
        return (
            None
            if self.current is None or self.config.frozen or self.config.dead
            else self.current.end_s
        )

    def step(self, now_s: float) -> StepResult:
        """Ends the running step and begins the next."""
        done = self.current
        if done is None or now_s < done.end_s:
            raise ValueError("no step ends now")
        self.current = None
        produced = self._finish(done, now_s)
        self.kick(now_s)
        return StepResult(
            done.start_s,
            now_s,
            done.busy,
            done.prefill_share,
            done.batch.prefill_tokens,
            produced,
        )

    def lose_all(self) -> list[Handle]:
        """Returns all requests, which are lost: the engine died. Counters and gauges stay,
        as a dead engine's page shows them.
        """
        scheduler = self.scheduler
        lost = [*scheduler.running, *scheduler.waiting]
        for handle in lost:
            handle.state = RequestState.LOST
        self.scheduler = Scheduler(
            self.config, BlockPool(self.config.num_gpu_blocks), self.counters
        )
        self.current = None
        return lost

    def restart(self, now_s: float, max_model_len: int) -> list[Handle]:
        """Starts a new process; returns the requests that were lost."""
        lost = self.lose_all()
        self._fresh(now_s, max_model_len)
        return lost

    # -- one step

    def _begin(self, now_s: float) -> None:
        parts = self.scheduler.schedule(now_s)
        if not parts:
            return
        prefill = decodes = context = drafted = 0
        for part in parts:
            drafted += part.drafted
            if not part.decodes:
                prefill += part.tokens
            if part.brings:
                decodes += 1
                context += part.handle.known
        batch = StepBatch(prefill, decodes, context, drafted)
        cost = cost_of(
            batch, self.config, rates_of(self.config, self._speed(), now_s - self.started_s)
        )
        if prefill:
            cost = StepCost(cost.device_s, cost.prefill_s, cost.host_s + self._compile(parts))
        self.current = RunningStep(now_s, now_s + cost.duration_s, cost, batch, parts)

    def _compile(self, parts: Sequence[StepPart]) -> float:
        """Compilation time of parameter sets that are new to this process; the whole engine
        waits.
        """
        new = {p.handle.request.parameter_set for p in parts if p.brings} - self.warmed
        self.warmed |= new
        return self.config.cold_s * len(new)

    def _finish(self, done: RunningStep, now_s: float) -> list[tuple[Handle, int]]:
        produced: list[tuple[Handle, int]] = []
        prompts = 0
        for part in done.parts:
            handle = part.handle
            if handle.state is not RequestState.RUNNING:
                continue  # cancelled meanwhile
            taken = self._taken(part.drafted)
            handle.computed += part.tokens + taken
            self.scheduler.publish(handle)
            if part.brings:
                if handle.first_s is None:
                    prompts += handle.request.prompt_tokens
                self._produce(handle, 1 + taken, done.batch.decodes, now_s)
                produced.append((handle, 1 + taken))
        # a step that yields nothing is not counted (v1/engine/async_llm.py: no iteration
        # stats without outputs)
        if produced:
            self.counters.iteration_tokens.observe(prompts + sum(count for _, count in produced))
        self.note_gauges()
        return produced

    def draft(self, steps: int, drafted: int, each: bool) -> tuple[int, Sequence[int] | None]:
        """Tokens that one request gets in `steps` steps with `drafted` drafted tokens in
        each; `each`: also the tokens of every step.
        """
        if not drafted:
            return steps, None
        if each:
            chunks = [1 + self._taken(drafted) for _ in range(steps)]
            return sum(chunks), chunks
        left, reached = steps, []
        for _ in range(drafted):
            left = _successes(self._random, left, self.config.spec_acceptance)
            reached.append(left)
        self.counters.speculated(drafted, reached, steps)
        return steps + sum(reached), None

    def _taken(self, drafted: int) -> int:
        """How many drafted tokens are accepted: those before the first rejected one."""
        taken = 0
        while taken < drafted and self._random.random() < self.config.spec_acceptance:
            taken += 1
        if drafted:
            self.counters.speculated(drafted, [1] * taken)
        return taken

    def _produce(self, handle: Handle, count: int, batch: int, now_s: float) -> None:
        if handle.last_s is None:
            self.first_token(handle, batch, now_s)
        else:
            handle.generated += count
            self.counters.generation_tokens += count
            self.counters.inter_token_latency.observe(now_s - handle.last_s)
            handle.last_s = now_s
        if handle.generated >= handle.wanted:
            self.scheduler.remove(handle)
            self.finished(handle, now_s)

    def first_token(self, handle: Handle, batch: int, now_s: float) -> None:
        """Records a first token, from a step with `batch` sequences."""
        handle.generated = 1
        handle.first_s = handle.last_s = now_s
        handle.batch = batch
        handle.ending = ending = handle.request.ending(batch)
        handle.wanted = ending.tokens
        self.counters.generation_tokens += 1
        self.counters.first_token(handle, now_s)

    def finished(self, handle: Handle, now_s: float) -> None:
        """Records the end of an answer."""
        handle.state = RequestState.FINISHED
        self.counters.finished(
            handle, "length" if handle.ending is None else handle.ending.reason, now_s
        )

    # -- requests handed to bulk stepping (fastforward/bulk.py)

    def release(self) -> tuple[list[Handle], list[Handle]]:
        """Hands over the decoding requests of the running step, which is undone, and the
        waiting ones.
        """
        self.current = None
        running, waiting = self.scheduler.running, self.scheduler.waiting
        self.scheduler.running, self.scheduler.waiting = [], []
        return running, waiting

    def fits(self, *some: Sequence[Handle]) -> bool:
        """Whether these requests fit into the cache at their largest possible size."""
        handles = [handle for few in some for handle in few]
        total, blocks_for = self.scheduler.pool.total, self.scheduler.blocks_for
        if len(handles) * blocks_for(self.max_model_len) <= total:
            return True
        return (
            sum([blocks_for(h.request.prompt_tokens + h.request.max_tokens) for h in handles])
            <= total
        )

    def fits_one(self, request: EngineRequest) -> bool:
        """Whether this request alone fits."""
        return (
            self.scheduler.blocks_for(request.prompt_tokens + request.max_tokens)
            <= self.scheduler.pool.total
        )

    def joins(self, handle: Handle, now_s: float) -> None:
        """Admits a request and computes its prompt. Its blocks are taken from unused prefixes."""
        handle.state, handle.scheduled_s, handle.computed = (
            RequestState.RUNNING,
            now_s,
            handle.request.prompt_tokens,
        )
        if self.config.enable_prefix_caching:
            self.counters.looked_up(handle)
        self.scheduler.pool.forget_for(
            self.scheduler.blocks_for(handle.request.prompt_tokens + handle.request.max_tokens)
        )

    def leaves(self, handle: Handle, now_s: float) -> None:
        """Frees a finished request."""
        self.scheduler.free(handle)
        self.finished(handle, now_s)

    def adopt(self, decoding: Sequence[Handle], waiting: Sequence[Handle], now_s: float) -> None:
        """Takes requests back, at the end of a step. Later arrivals wait for the next one."""
        self.scheduler.running.extend(decoding)
        for handle in waiting:
            if handle.arrived_s > now_s:
                self.kick(now_s if decoding else handle.arrived_s)
            self.scheduler.enqueue(handle)
        if decoding or waiting:
            self.kick(now_s if decoding else max(now_s, waiting[0].arrived_s))
        self.note_gauges()

    # -- the metrics page's view

    def note_gauges(self, elsewhere: Sequence[Handle] = (), waiting: int = 0) -> None:
        """Updates the gauges of the metrics page; `elsewhere`: requests held by bulk stepping."""
        scheduler = self.scheduler
        usage = scheduler.pool.usage
        for handle in elsewhere:
            usage += (
                scheduler.blocks_for(handle.computed + 1) - len(handle.held) - handle.private
            ) / scheduler.pool.total
        self.gauges = Gauges(
            len(scheduler.running) + len(elsewhere), len(scheduler.waiting) + waiting, usage
        )


def _successes(chance: random.Random, trials: int, probability: float) -> int:
    """A draw from the binomial distribution; from its normal approximation for many trials."""
    mean = trials * probability
    if mean > 30 and trials - mean > 30:
        return min(trials, max(0, round(chance.gauss(mean, (mean * (1.0 - probability)) ** 0.5))))
    return sum(chance.random() < probability for _ in range(trials))
