"""A world for virtual time, in which days pass in seconds: bulk stepping (bulk.py), and GPUs that
advance in longer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

from monitor.simulate.engine.costs import StepRates, rates_of
from monitor.simulate.engine.counters import Counters, FewCounters
from monitor.simulate.engine.requests import EngineRequest, Handle, RequestState
from monitor.simulate.engine.scheduler import Gauges, StepPart
from monitor.simulate.fastforward.bulk import BulkStepper
from monitor.simulate.protocols import ForeseeableSource
from monitor.simulate.world import GPU_STEP_S, World

RESTED_S = 9.9  # after an idle time this long the clocks ramp up again (gpu/physics.py)
# time after which the ramp is certainly over; until then the GPUs advance every tenth of a second,
# afterwards every second
RAMPED_S = 1.0
# how long rates are reused: while a request is being timed, and otherwise
WATCHED_S, LONGEST_S = (
    2.0,
    15.0,
)
NOTHING = Gauges()
DRIFT = 0.002  # rates that change by this much are read again earlier


@dataclass
class FastForwardWorld(World):
    """Calls `on_tokens` once for many steps, with all the tokens of a request and the time of
    the last.
    """

    counters_kind: ClassVar[type[Counters]] = FewCounters
    # requests in flight that are being timed: rates are read more often
    watched: int = field(default=0, init=False)
    # set by a callback: `advance_until` returns at this time
    halted: bool = field(default=False, init=False)
    # true while `on_tokens` reports equal steps
    in_bulk: bool = field(default=False, init=False)
    # then: tokens of each step; None: one a step
    chunks: Sequence[int] | None = field(default=None, init=False)
    _worked_since_s: float = field(default=0.0, init=False)
    _stepped_s: float = field(default=-inf, init=False)
    # when the rates were last read, and their read_s
    _asked: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    # None: a setting has changed since
    _rates: StepRates | None = field(default=None, init=False)
    # what limited the clocks then
    _clock_state: list[tuple[float, ...]] = field(default_factory=list, init=False)
    _stale: bool = field(default=False, init=False)  # the GPUs may have changed since
    _bulk: BulkStepper | None = field(default=None, init=False)  # holds the decoding requests

    def advance(self, to_s: float) -> None:
        """As World.advance."""
        self.advance_until(to_s)
        while self.halted:
            self.advance_until(to_s)
        self._give_back()

    def advance_until(self, to_s: float) -> None:
        """As `advance`, but stops at the time at which a callback sets `halted`."""
        self.halted = False
        while not self.halted:
            if self._bulk is None and self.engine.current is None and self._source_s() > to_s:
                self.now_s = max(self.now_s, to_s)  # the GPUs advance when they are read
                return
            if self._step_in_bulk(to_s):
                continue
            # its requests are queued by bulk stepping for the next step
            sent_for: object = None if self._bulk is None else self._bulk.source
            source_s = self._source_s(sent_for)
            step_s = self.engine.next_step_s()
            if step_s is not None and step_s <= min(to_s, source_s):
                self.now_s = max(self.now_s, step_s)
                self._step()
            elif source_s <= to_s:
                self.now_s = max(self.now_s, source_s)
                for source in list(self.sources):
                    if source is not sent_for and source.next_s() <= self.now_s:
                        source.advance(self.now_s)
            else:
                self.now_s = max(self.now_s, to_s)
                return

    # Whatever touches the engine's lists needs all requests in them.

    def submit(self, request: EngineRequest) -> Handle | None:
        """As World.submit. A request that may join bulk stepping bypasses the engine's queue."""
        engine, config = self.engine, self.config
        plain = (
            config.scheduling_policy == "fcfs"
            and config.max_num_queued_reqs is None
            and self._may_join(request)
        )
        if (
            plain
            and (self._bulk is not None or (engine.current is None and self._can_step()))
            and self.refusal() is None
        ):
            if self._bulk is None:
                self._account()
                self._bulk = BulkStepper(self, self.now_s)
            handle = engine.handle(request, self.now_s)
            self._bulk.join(handle)
            return handle
        self._give_back()
        return super().submit(request)

    def cancel(self, handle: Handle) -> None:
        """As World.cancel."""
        if self._bulk is not None:
            self._bulk.cancel(handle)
        else:
            super().cancel(handle)

    def set(self, name: str, value: Any) -> None:
        """As World.set."""
        self._give_back()
        super().set(name, value)
        self._rates = None

    def restart(self, down_s: float = 0.0, **changes: Any) -> None:
        """As World.restart."""
        self._give_back()
        super().restart(down_s, **changes)
        self._rates = None

    def gauges(self) -> Gauges:
        """As World.gauges."""
        if self._bulk is not None:
            self.engine.note_gauges(self._bulk.active, self._bulk.waiting(self.now_s))
        return super().gauges()

    # -- for bulk stepping

    def rates(self) -> StepRates:
        """Rates of a step that begins now."""
        if self._stale or self._rates is None:
            clock_state = [gpu.clock_state() for gpu in self.gpus]
            if (
                self._rates is None
                or clock_state != self._clock_state
                or self.config.uptime_decay_per_h
            ):
                self._rates, self._clock_state = self._rates_after(0.0), clock_state
            self._stale = False
        return self._rates

    def pace(self, start_s: float) -> tuple[StepRates, float]:
        """Rates of steps that begin then, and how long they remain valid. After an idle
        time clocks ramp up fast at first and slowly later, and count as they are in the
        middle; those of a hot GPU always change.
        """
        worked_s, watched = start_s - self._worked_since_s, self.watched > 0
        if worked_s < RAMPED_S:
            self._advance_gpus()
            longest_s = max(0.04, worked_s) if watched else max(0.3, 2 * worked_s)
            return self._rates_after(longest_s / 2), longest_s
        rates = self.rates()
        if watched:
            return rates, WATCHED_S
        asked_s, before_s = self._asked
        self._asked = (start_s, rates.read_s)
        change = abs(rates.read_s / before_s - 1.0) if before_s else 0.0
        return rates, min(
            LONGEST_S, max(WATCHED_S, (start_s - asked_s) * DRIFT / change)
        ) if change > 0 else LONGEST_S

    def worked(self, start_s: float, end_s: float, busy: float, prefill_share: float) -> None:
        """Accounts for the GPUs' work in this interval; between two calls they were idle."""
        if start_s > self._stepped_s + RESTED_S:
            self._worked_since_s = start_s
        self._stepped_s = end_s
        if start_s > self._accounted_s:
            self._account_span(start_s, 0.0, 0.0)
        dt_s = end_s - self._accounted_s
        if dt_s > 0:
            self._accounted_s, self._span_s = end_s, self._span_s + dt_s
            self._busy_s += dt_s * busy
            self._prefill_s += dt_s * busy * prefill_share
            if self._span_s >= RAMPED_S or (
                self._span_s >= GPU_STEP_S and end_s < self._worked_since_s + RAMPED_S
            ):
                self._advance_gpus()

    def deliver_tokens(
        self, handle: Handle, tokens: int, now_s: float, chunks: Sequence[int] | None
    ) -> None:
        """Delivers the tokens of equal steps, the last of them now."""
        self.in_bulk, self.chunks = True, chunks
        if handle.request.on_tokens is not None:
            handle.request.on_tokens(handle, tokens, now_s)
        self.in_bulk = False

    # -- internals

    def _source_s(self, but: object = None) -> float:
        soonest = inf
        for source in self.sources:
            if source is but:
                continue
            next_s = source.next_s()
            soonest = min(soonest, next_s)
        return soonest

    def _step(self) -> None:
        current = self.engine.current
        if current is not None:
            if current.start_s > self._stepped_s + RESTED_S:
                self._worked_since_s = current.start_s
            self._stepped_s = self.now_s
        super()._step()

    def _rates_after(self, work_s: float) -> StepRates:
        return rates_of(self.config, self.speeds(work_s), self.now_s - self.engine.started_s)

    def _step_in_bulk(self, to_s: float) -> bool:
        """Runs many steps at once. Returns whether any was run."""
        background, config = self.background, self.config
        if config.scheduling_policy != "fcfs" or config.max_num_queued_reqs is not None:
            return False
        if background is not None and not (
            background.plain and "" in self.engine.warmed and self.refusal() is None
        ):
            background = None
        limit_s = min(to_s, self._source_s(background))
        bulk = self._bulk or self._begun(background, limit_s)
        if bulk is None:
            return False
        before_s, bulk.source = bulk.now_s, background
        bulk.run(limit_s)
        moved = bulk.now_s > before_s
        if moved:
            self.now_s = max(self.now_s, bulk.now_s)
        self._bulk = bulk
        if not bulk.plain:
            self._give_back()
        elif not (bulk.active or bulk.queue):
            self._bulk = None
            self.engine.gauges = NOTHING
        return moved

    def _begun(self, background: ForeseeableSource | None, limit_s: float) -> BulkStepper | None:
        """Bulk stepping that begins now; None where nothing can be merged."""
        current = self.engine.current
        if current is not None:
            if current.end_s > limit_s or not self._is_plain(current.parts):
                return None
            return BulkStepper(self, current.start_s, *self.engine.release())
        if (
            background is None
            or not self.now_s <= background.next_s() <= limit_s
            or not self._can_step()
        ):
            return None
        return BulkStepper(self, self.now_s)

    def _give_back(self) -> None:
        """Gives all requests back to the engine."""
        if self._bulk is not None:
            bulk, self._bulk = self._bulk, None
            bulk.hand_over()

    def _account(self) -> None:
        if (
            self._bulk is None or not self._bulk.active
        ):  # otherwise the running step is accounted for when it ends
            super()._account()

    def _can_step(self) -> bool:
        config = self.config
        return not (config.frozen or config.asleep or config.dead or self.engine.waiting)

    def _is_plain(self, parts: Sequence[StepPart]) -> bool:
        """Whether all running requests decode and all waiting ones are plain."""
        engine, config = self.engine, self.config
        running = engine.scheduler.running
        if config.frozen or config.dead or config.asleep or len(parts) != len(running):
            return False
        if not all(part.decodes and part.handle.state is RequestState.RUNNING for part in parts):
            return False
        return all(
            self._may_join(handle.request) and not handle.generated
            for handle in engine.scheduler.waiting
        ) and engine.fits(running)

    def _may_join(self, request: EngineRequest) -> bool:
        return (
            not request.prefix
            and not request.skip_cache
            and request.parameter_set in self.engine.warmed
        )

    def _advance_gpus(self) -> None:
        span_s, busy_s = self._span_s, self._busy_s
        if span_s > 0:
            prefill_share = self._prefill_s / busy_s if busy_s else 0.0
            self._span_s = self._busy_s = self._prefill_s = 0.0
            self._stale = True
            for gpu in self.gpus:
                gpu.advance(span_s, busy_s / span_s, prefill_share)

    def _account_span(self, to_s: float, busy: float, prefill_share: float) -> None:
        """As World._account_span, in longer steps where that makes no difference."""
        dt_s = to_s - self._accounted_s
        if dt_s <= 0:
            return
        self._accounted_s = to_s
        if not busy and dt_s > GPU_STEP_S:
            # otherwise a short burst would be averaged over a long idle time, or the
            # idle time over the work that follows
            self._advance_gpus()
            self._stale = True
            for gpu in self.gpus:
                gpu.advance(dt_s, 0.0)
            return
        self._span_s += dt_s
        self._busy_s += dt_s * busy
        self._prefill_s += dt_s * busy * prefill_share
        if self._span_s >= GPU_STEP_S and (
            self._span_s >= RAMPED_S or to_s < self._worked_since_s + RAMPED_S
        ):
            self._advance_gpus()
