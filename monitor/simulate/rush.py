"""Many steps of the engine at once, where nothing but the context changes from one to the next.

A rush takes over what decodes at the begin of a step, or begins with an idle engine. It goes from event to event: an answer ends, the
request of another user comes, the time is up. Queue discipline, costs and counters are the engine's own, step for step; but equal steps
are one, and requests are not entered in the scheduler's lists. What is not plain (a prompt too long for one step, more requests than the
batch has places for, a cache that may run full) is handed to the engine as it stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from monitor.simulate.costs import Rates, fitting
from monitor.simulate.engine import Engine
from monitor.simulate.requests import EngineRequest, Handle

Coming = deque[tuple[float, EngineRequest]]  # in the order of their times


class Senders(Protocol):
    """Who sends the requests of others."""

    @property
    def coming(self) -> Coming:
        """What is foreseen."""

    def foresee(self, now_s: float, to_s: float) -> None:
        """Work out what comes until then, if nothing changes."""


class Worker(Protocol):
    """What a rush needs of the world."""

    engine: Engine
    halted: bool
    watched: int

    def rates(self) -> Rates:
        """Of a step that begins now."""

    def pace(self, start_s: float) -> tuple[Rates, float]:
        """Rates for steps from then on, and for how long they hold."""

    def worked(self, start_s: float, end_s: float, busy: float, prefill_share: float) -> None:
        """The card did this then, and nothing since the last time."""

    def tell(self, handle: Handle, tokens: int, now_s: float, chunks: Sequence[int] | None) -> None:
        """Tokens of equal steps, the last of them now; `chunks`: how many at each, None for one."""


@dataclass(slots=True)
class Rush:
    """`now_s` is the end of the last step, or the last arrival; `active` are those that decode then."""

    world: Worker
    now_s: float
    active: list[Handle] = field(default_factory=list)
    senders: Senders | None = None
    guests: list[Handle] = field(default_factory=list)  # those who have come and wait for the next step
    plain: bool = True  # False: the engine must have what is left
    _coming: Coming = field(default_factory=deque)
    _limit_s: float = inf
    _context: int = 0
    _heard: list[Handle] = field(default_factory=list)  # those of the active that somebody listens to

    def __post_init__(self) -> None:
        """What was taken over."""
        self._context = sum([handle.known for handle in self.active])
        self._heard = [handle for handle in self.active if handle.request.on_tokens is not None]

    def run(self, limit_s: float) -> None:
        """Until then, until something is not plain, or until somebody who listens has halted the world."""
        self._limit_s = limit_s
        self._foresee()
        goes_on = True
        while goes_on and self.plain and not self.world.halted:
            coming, guests = self._coming, self.guests
            due_s = coming[0][0] if coming else inf
            if guests and guests[0].arrived_s < due_s:
                due_s = guests[0].arrived_s
            if not self.active:
                if due_s > limit_s:
                    return
                self.now_s = max(self.now_s, due_s)
                self.world.worked(self.now_s, self.now_s, 0.0, 0.0)
                if not guests and self._lone():
                    continue
            goes_on = self._prefill() if due_s <= self.now_s else self._decode(due_s)

    def hand_over(self) -> None:
        """Give the engine what decodes, and what has come meanwhile."""
        engine, waiting = self.world.engine, [*self.guests]
        while self._coming and self._coming[0][0] <= self.now_s:
            at_s, request = self._coming.popleft()
            waiting.append(engine.handle(request, at_s))
        engine.adopt(self.active, waiting, self.now_s)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _foresee(self) -> None:
        if self.senders is not None:
            self.senders.foresee(self.now_s, self._limit_s)
            self._coming = self.senders.coming

    def _lone(self) -> bool:
        """A request that has the engine to itself from the first token to the last: two kinds of steps, then it is gone. False: it has not."""
        engine, coming, now_s = self.world.engine, self._coming, self.now_s
        (_, request), config = coming[0], engine.config
        prompt, batched = request.prompt_tokens, config.max_num_batched_tokens
        if request.on_end is not None or prompt > batched or config.num_speculative_tokens or engine.waiting or not engine.holds_one(request):
            return False
        wanted = request.ending(1).tokens
        rates, longest_s = self.world.pace(now_s)
        prefill_s = prompt * rates.prompt_s
        first_s = max(rates.read_s, prefill_s) + rates.sequence_s + prompt * rates.context_s
        begun_s = now_s + first_s + rates.host_s
        step_s = rates.read_s + rates.sequence_s + (prompt + wanted / 2) * rates.context_s  # the context grows evenly
        end_s = begun_s + (wanted - 1) * (step_s + rates.host_s)
        due_s = coming[1][0] if len(coming) > 1 else inf
        if end_s > self._limit_s or end_s >= due_s or end_s > now_s + longest_s:
            return False
        coming.popleft()
        handle, counters = engine.handle(request, now_s), engine.counters
        self.world.worked(now_s, begun_s, first_s / (begun_s - now_s), prefill_s / first_s)
        engine.joins(handle, now_s)
        engine.first_token(handle, 1, begun_s)
        counters.iteration_tokens.observe(prompt + 1)
        if wanted > 1:
            self.world.worked(begun_s, end_s, step_s / (step_s + rates.host_s), 0.0)
            handle.generated, handle.last_s = wanted, end_s
            counters.generation_tokens += wanted - 1
            counters.inter_token_latency.observe(step_s + rates.host_s, wanted - 1)
            counters.iteration_tokens.observe(1, wanted - 1)
        self.now_s = end_s
        engine.leaves(handle, end_s)
        return True

    def _prefill(self) -> bool:
        """One step for those who have come, in which the others decode; False where it takes too long, or is not for us."""
        engine, now_s = self.world.engine, self.now_s
        config, active = engine.config, self.active
        new = [handle for handle in self.guests if handle.arrived_s <= now_s]
        guests = len(new)
        for at_s, request in self._coming:
            if at_s > now_s:
                break
            new.append(engine.handle(request, at_s))
        prompts = sum([handle.request.prompt_tokens for handle in new])
        sequences = len(active) + len(new)
        too_many = prompts + len(active) > config.max_num_batched_tokens or sequences > config.max_num_seqs
        if too_many or engine.waiting or config.num_speculative_tokens or not engine.holds(active, new):
            self.plain = False
            return False
        rates = self.world.rates()
        prefill_s = prompts * rates.prompt_s
        device_s = max(rates.read_s, prefill_s) + sequences * rates.sequence_s + (self._context + prompts) * rates.context_s
        end_s = now_s + device_s + rates.host_s
        if end_s > self._limit_s:
            return False
        self.world.worked(now_s, end_s, device_s / (end_s - now_s), prefill_s / device_s)
        least = min([handle.wanted - handle.generated for handle in active]) if active else 2
        self._count(1, end_s)
        del self.guests[:guests]
        for _ in range(guests, len(new)):
            self._coming.popleft()
        for handle in new:
            engine.joins(handle, now_s)
            engine.first_token(handle, sequences, end_s)
            if handle.request.on_tokens is not None:
                self._heard.append(handle)
        engine.counters.iteration_tokens.observe(prompts + sequences)
        self._context += prompts + len(new)
        active += new
        self._tell(self._heard, 1, least == 1 or any(handle.wanted == 1 for handle in new))
        return True

    def _decode(self, due_s: float) -> bool:
        """Steps until one ends, until the one after the next arrival, or as many as there is time for; False: not even one."""
        engine, active, now_s = self.world.engine, self.active, self.now_s
        drafted, sequences = engine.config.num_speculative_tokens, len(active)
        left = min([handle.wanted - handle.generated for handle in active])
        most = left // (1 + drafted)
        rates, longest_s = self.world.pace(now_s)
        device_s = rates.read_s + sequences * rates.sequence_s + self._context * rates.context_s
        growth = sequences * rates.context_s
        if drafted:
            device_s += drafted * (rates.draft_s + sequences * rates.sequence_s)
            growth *= engine.config.tokens_per_draft
        step_s = device_s + rates.host_s
        steps, end_s = fitting(most, step_s, growth, now_s, min(self._limit_s, now_s + max(longest_s, step_s * 1.5)))
        if due_s < end_s:
            until_due, _ = fitting(most, step_s, growth, now_s, due_s)
            steps, end_s = fitting(until_due + 1, step_s, growth, now_s, inf)
        if steps < 1:
            self.plain = most > 0
            return False
        self.world.worked(now_s, end_s, device_s / step_s, 0.0)
        if drafted:
            self._draft(steps, drafted, end_s)
        else:
            self._count(steps, end_s)
            engine.counters.iteration_tokens.observe(sequences, steps)
            self._tell(self._heard, steps, steps == left)
        return True

    def _count(self, steps: int, end_s: float) -> None:
        """A token a step for each that decodes."""
        active = self.active
        for handle in active:
            handle.generated += steps
            handle.computed += steps
            handle.last_s = end_s
        if active:
            counters, tokens = self.world.engine.counters, steps * len(active)
            counters.generation_tokens += tokens
            counters.inter_token_latency.observe((end_s - self.now_s) / steps, tokens)
            self._context += tokens
        self.now_s = end_s

    def _draft(self, steps: int, drafted: int, end_s: float) -> None:
        """A token a step for each that decodes, and those of the drafted ones that are taken."""
        active, engine = self.active, self.world.engine
        told = [(handle, *engine.draft(steps, drafted, self.world.watched > 0)) for handle in active]
        whole = 0
        for handle, tokens, _ in told:
            handle.generated += tokens
            handle.computed += tokens
            handle.last_s = end_s
            whole += tokens
        engine.counters.generation_tokens += whole
        engine.counters.inter_token_latency.observe((end_s - self.now_s) / steps, steps * len(active))
        engine.counters.iteration_tokens.observe(whole / steps, steps)
        self._context += whole
        self.now_s = end_s
        self._leave()
        for handle, tokens, chunks in told:
            if handle.request.on_tokens is not None:
                self.world.tell(handle, tokens, end_s, chunks)

    def _tell(self, heard: Sequence[Handle], steps: int, ended: bool) -> None:
        """Those that have all their tokens go; who listens is told."""
        if ended:
            self._leave()
        for handle in heard:
            self.world.tell(handle, steps if handle.generated > 1 else 1, self.now_s, None)

    def _leave(self) -> None:
        active, engine, missed = self.active, self.world.engine, False
        for handle in [h for h in active if h.generated >= h.wanted]:
            active.remove(handle)
            self._context -= handle.known
            engine.leaves(handle, self.now_s)
            if handle.request.on_end is not None:
                handle.request.on_end(handle)
                missed = True
        if missed:
            self._foresee()  # who has an answer may ask again at once
        self._heard = [handle for handle in active if handle.request.on_tokens is not None]
        self.plain = not engine.waiting  # a place in the batch is free
