"""Many steps of the engine at once, where only the context grows from one to the next.

Bulk stepping takes over the decoding and waiting requests at the start of a step, or begins with an
idle engine. It proceeds from event to event: an answer ends, a request arrives, the limit is
reached. Queue discipline, costs and counters are the engine's own, step for step; but equal steps
are merged, and requests are not entered in the scheduler's lists. What is not plain (a prompt too
long for one step, a cache that may run full) is handed back to the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from monitor.simulate.engine.costs import fitting
from monitor.simulate.engine.requests import Handle, RequestState
from monitor.simulate.protocols import Arrivals, BulkWorld, ForeseeableSource

# request, tokens of some steps, tokens of each step (None: one)
TokenUpdate = tuple[Handle, int, Sequence[int] | None]


@dataclass(slots=True)
class BulkStepper:
    """`now_s` is the end of the last step, or the last arrival."""

    world: BulkWorld
    now_s: float
    active: list[Handle] = field(default_factory=list)  # decoding requests
    # waiting requests
    queue: list[Handle] = field(default_factory=list)
    source: ForeseeableSource | None = None
    plain: bool = True  # False: the engine must continue
    _coming: Arrivals = field(default_factory=deque)  # generated ahead; later than all in the queue
    _limit_s: float = inf
    _context: int = 0
    # active requests with a token callback
    _timed: list[Handle] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Counts the context that was taken over."""
        self._context = sum([handle.known for handle in self.active])
        self._timed = [handle for handle in self.active if handle.request.on_tokens is not None]

    def run(self, limit_s: float) -> None:
        """Runs until `limit_s`, until something is not plain, or until a callback halts the
        world.
        """
        self._limit_s = limit_s
        self._generate_ahead()
        places, goes_on = self.world.engine.config.max_num_seqs, True
        while goes_on and self.plain and not self.world.halted:
            queue, coming = self.queue, self._coming
            due_s = queue[0].arrived_s if queue else coming[0][0] if coming else inf
            if not self.active:
                if due_s > limit_s:
                    return
                self.now_s = max(self.now_s, due_s)
                self.world.worked(self.now_s, self.now_s, 0.0, 0.0)
                if not queue and self._serve_alone():
                    continue
            due_s = inf if len(self.active) >= places else due_s
            goes_on = self._prefill() if due_s <= self.now_s else self._decode(due_s)

    def join(self, handle: Handle) -> None:
        """Queues one more request behind earlier arrivals."""
        self._enqueue_arrived(handle.arrived_s)
        self.queue.append(handle)

    def cancel(self, handle: Handle) -> None:
        """Cancels a request: the client has disconnected."""
        if handle.state not in {RequestState.WAITING, RequestState.RUNNING}:
            return
        if handle in self.queue:
            self.queue.remove(handle)
        elif handle in self.active:
            self.active.remove(handle)
            self._context -= handle.known
            self._timed = [other for other in self._timed if other is not handle]
            self.world.engine.scheduler.free(handle)
        handle.state = RequestState.CANCELLED

    def waiting(self, now_s: float) -> int:
        """How many requests wait then."""
        self._enqueue_arrived(now_s)
        return len(self.queue)

    def hand_over(self) -> None:
        """Hands the decoding requests and the queue back to the engine."""
        self._enqueue_arrived(self.now_s)
        self.world.engine.adopt(self.active, self.queue, self.now_s)

    # -- requests

    def _generate_ahead(self) -> None:
        if self.source is not None:
            self.source.generate_ahead(self.now_s, self._limit_s)
            self._coming = self.source.coming

    def _enqueue_arrived(self, now_s: float) -> None:
        """Moves arrivals up to now into the queue."""
        coming = self._coming
        while coming and coming[0][0] <= now_s:
            at_s, request = coming.popleft()
            self.queue.append(self.world.engine.handle(request, at_s))

    def _admitted(self) -> tuple[list[Handle], int]:
        """The requests admitted to the next step, and their prompt tokens."""
        engine, config = self.world.engine, self.world.engine.config
        self._enqueue_arrived(self.now_s)
        new: list[Handle] = []
        prompts, budget = (
            0,
            config.max_num_batched_tokens - len(self.active) * (1 + config.num_speculative_tokens),
        )
        for handle in self.queue[: config.max_num_seqs - len(self.active)]:
            if handle.arrived_s > self.now_s or prompts + handle.request.prompt_tokens > budget:
                break
            new.append(handle)
            prompts += handle.request.prompt_tokens
        self.plain = bool(new) and engine.fits(self.active, new)
        return new, prompts

    def _retire_finished(self) -> None:
        """Removes requests that have all their tokens."""
        active, engine, missed = self.active, self.world.engine, False
        for handle in [h for h in active if h.generated >= h.wanted]:
            active.remove(handle)
            self._context -= handle.known
            engine.leaves(handle, self.now_s)
            if handle.request.on_end is not None:
                handle.request.on_end(handle)
                missed = True
        if missed:
            self._generate_ahead()  # a client that has its answer may send again at once
        self._timed = [handle for handle in active if handle.request.on_tokens is not None]

    # -- steps

    def _serve_alone(self) -> bool:
        """Serve a request that has the engine to itself from its first token to its last: one
        prefill step, then equal decode steps. Returns False where it does not.
        """
        engine, now_s = self.world.engine, self.now_s
        request, config = self._coming[0][1], engine.config
        if (
            request.on_end is not None
            or config.num_speculative_tokens
            or request.prompt_tokens > config.max_num_batched_tokens
            or not engine.fits_one(request)
        ):
            return False
        prompt, wanted = request.prompt_tokens, request.ending(1).tokens
        rates, longest_s = self.world.pace(now_s)
        prefill_s = prompt * rates.prompt_s
        first_s = max(rates.read_s, prefill_s) + rates.sequence_s + prompt * rates.context_s
        begun_s = now_s + first_s + rates.host_s
        # the context grows evenly
        device_s = rates.read_s + rates.sequence_s + (prompt + wanted / 2) * rates.context_s
        step_s = device_s + rates.host_s
        end_s = begun_s + (wanted - 1) * step_s
        due_s = self._coming[1][0] if len(self._coming) > 1 else inf
        if end_s > self._limit_s or end_s >= due_s or end_s > now_s + longest_s:
            return False
        self._coming.popleft()
        handle = engine.handle(request, now_s)
        self.world.worked(now_s, begun_s, first_s / (begun_s - now_s), prefill_s / first_s)
        engine.joins(handle, now_s)
        engine.first_token(handle, 1, begun_s)
        engine.counters.iteration_tokens.observe(prompt + 1)
        if wanted > 1:
            self.world.worked(begun_s, end_s, device_s / step_s, 0.0)
            self._count_alone(handle, wanted, step_s, end_s)
        self.now_s = end_s
        engine.leaves(handle, end_s)
        return True

    def _count_alone(self, handle: Handle, wanted: int, step_s: float, end_s: float) -> None:
        """Count the decode steps of a request that was served alone."""
        counters = self.world.engine.counters
        handle.generated, handle.last_s = wanted, end_s
        counters.generation_tokens += wanted - 1
        counters.inter_token_latency.observe(step_s, wanted - 1)
        counters.iteration_tokens.observe(1, wanted - 1)

    def _prefill(self) -> bool:
        """Runs one step that prefills the arrivals while the others decode. Returns False
        where it exceeds the limit or is not plain.
        """
        engine, now_s, active = self.world.engine, self.now_s, self.active
        new, prompts = self._admitted()
        if not self.plain:
            return False
        sequences, speculates = len(active) + len(new), engine.config.num_speculative_tokens
        drafts = self._drafts(1) if speculates else ()
        rates = self.world.rates()
        prefill_s = prompts * rates.prompt_s
        device_s = (
            max(rates.read_s, prefill_s)
            + (sequences + sum(drafts)) * rates.sequence_s
            + (self._context + prompts) * rates.context_s
        )
        device_s += speculates * rates.draft_s
        end_s = now_s + device_s + rates.host_s
        if end_s > self._limit_s:
            return False
        self.world.worked(now_s, end_s, device_s / (end_s - now_s), prefill_s / device_s)
        del self.queue[: len(new)]
        updates = self._decoded(1, drafts, end_s)
        for handle in new:
            engine.joins(handle, now_s)
            engine.first_token(handle, sequences, end_s)
            updates += [(handle, 1, None)] if handle.request.on_tokens is not None else []
        engine.counters.iteration_tokens.observe(prompts + sequences)
        self._context += prompts + len(new)
        active += new
        self._timed += [handle for handle in new if handle.request.on_tokens is not None]
        self._deliver(updates)
        return True

    def _decode(self, due_s: float) -> bool:
        """Runs decode steps until an answer ends, until the step after the next arrival, or
        up to the limit. Returns False where not even one fits.
        """
        engine, active, now_s = self.world.engine, self.active, self.now_s
        sequences, drafted = len(active), engine.config.num_speculative_tokens
        most = min([handle.wanted - handle.generated for handle in active]) // (1 + drafted) or 1
        drafts = self._drafts(most) if drafted else ()
        rates, longest_s = self.world.pace(now_s)
        device_s = rates.read_s + sequences * rates.sequence_s + self._context * rates.context_s
        growth = sequences * rates.context_s
        if drafted:
            device_s += drafted * rates.draft_s + sum(drafts) * rates.sequence_s
            growth *= engine.config.tokens_per_draft
        step_s = device_s + rates.host_s
        steps, end_s = fitting(
            most, step_s, growth, now_s, min(self._limit_s, now_s + max(longest_s, step_s * 1.5))
        )
        if due_s < end_s:
            until_due, _ = fitting(most, step_s, growth, now_s, due_s)
            steps, end_s = fitting(until_due + 1, step_s, growth, now_s, inf)
        if steps < 1:
            return False
        self.world.worked(now_s, end_s, device_s / step_s, 0.0)
        generated = engine.counters.generation_tokens
        updates = self._decoded(steps, drafts, end_s)
        engine.counters.iteration_tokens.observe(
            (engine.counters.generation_tokens - generated) / steps, steps
        )
        self._deliver(updates)
        return True

    def _drafts(self, steps: int) -> list[int]:
        """Drafted tokens of each decoding request in each of `steps` steps; fewer where its
        answer ends.
        """
        drafted = self.world.engine.config.num_speculative_tokens
        return [
            drafted if steps > 1 else min(drafted, handle.wanted - handle.generated - 1)
            for handle in self.active
        ]

    def _decoded(self, steps: int, drafts: Sequence[int], end_s: float) -> list[TokenUpdate]:
        """Adds one token a step, and accepted drafted tokens, to each decoding request.
        Returns the updates for token callbacks.
        """
        active, engine, each = self.active, self.world.engine, self.world.watched > 0
        updates: list[TokenUpdate] = []
        whole = 0
        if drafts:
            for handle, drafted in zip(active, drafts, strict=True):
                tokens, chunks = engine.draft(steps, drafted, each)
                handle.generated += tokens
                handle.computed += tokens
                handle.last_s = end_s
                whole += tokens
                updates += (
                    [(handle, tokens, chunks)] if handle.request.on_tokens is not None else []
                )
        else:
            for handle in active:
                handle.generated += steps
                handle.computed += steps
                handle.last_s = end_s
            whole = steps * len(active)
            updates = [(handle, steps, None) for handle in self._timed]
        if active:
            engine.counters.generation_tokens += whole
            engine.counters.inter_token_latency.observe(
                (end_s - self.now_s) / steps, steps * len(active)
            )
            self._context += whole
        self.now_s = end_s
        return updates

    def _deliver(self, updates: Sequence[TokenUpdate]) -> None:
        """Removes finished requests and calls the token callbacks."""
        for handle in self.active:
            if handle.generated >= handle.wanted:
                self._retire_finished()
                break
        for handle, tokens, chunks in updates:
            self.world.deliver_tokens(handle, tokens, self.now_s, chunks)
