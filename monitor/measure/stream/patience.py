"""How long a canary waits, and its outcome when it gives up. Pure: every decision takes the time
and the engine's step counter.

A long wait alone proves nothing: behind a queue the engine moves, in a hang it does not. So at
`max_wait` the counter decides. The canary keeps waiting until it moves (a queue) or
`hang_after` has passed without a step (a hang). Without a counter the outcome can only be
`timeout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.model import Outcome

READ_EVERY_S = 2.0  # between two readings of the step counter


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. `max_wait_s` None: the true wait is measured, up to `give_up_s`."""

    max_wait_s: float | None
    hang_after_s: float = 10.0
    give_up_s: float = 3600.0  # ends the wait of an uncapped probe too
    answer_s: float = 300.0  # from the first token to the end


@dataclass(slots=True)
class Patience:
    """The state of one wait: when the engine last moved, and when a token last came. Times are
    monotonic seconds.
    """

    limits: Limits
    sent_s: float
    steps: float | None  # the step counter just before the request was sent; None = unknown
    moved: bool = False
    moved_s: float | None = None  # when the counter was first read at its present value
    first_token_s: float | None = None
    last_token_s: float | None = None

    def token(self, now_s: float) -> None:
        """Notes that a token came."""
        self.first_token_s = now_s if self.first_token_s is None else self.first_token_s
        self.last_token_s = now_s

    def next_reading_s(self, now_s: float) -> float:
        """When to read the step counter next; not while tokens flow."""
        quiet_since = self.last_token_s or self.sent_s
        times = [max(now_s, quiet_since) + READ_EVERY_S, self._end_s()]
        cap_s = self._cap_s()
        if cap_s is not None and now_s < cap_s:
            times.append(cap_s)
        return min((time for time in times if time > now_s), default=now_s)

    def needs_reading(self, now_s: float) -> bool:
        """Whether the wait has lasted long enough for the step counter to matter."""
        quiet_s = now_s - (self.last_token_s or self.sent_s)
        cap_s = self._cap_s()
        return (
            quiet_s >= READ_EVERY_S
            or (cap_s is not None and now_s >= cap_s)
            or now_s >= self._end_s()
        )

    def conclude(self, now_s: float, steps: float | None) -> Outcome | None:
        """The outcome at `now_s`, given the counter just read (None = the page could not be read);
        None: wait on.
        """
        self._note(now_s, steps)
        counted = steps is not None and self.steps is not None
        still_s = now_s - max(self.moved_s or self.sent_s, self.last_token_s or self.sent_s)
        if counted and still_s >= self.limits.hang_after_s:
            return Outcome.HUNG
        cap_s = self._cap_s()
        if cap_s is not None and now_s >= cap_s:
            if self.moved:
                return Outcome.QUEUE_CAP
            if not counted and (self.steps is None or now_s >= cap_s + self.limits.hang_after_s):
                return Outcome.TIMEOUT
        if now_s >= self._end_s() and not (counted and self._waits_for_counter(now_s)):
            return Outcome.TIMEOUT
        return None

    def _waits_for_counter(self, now_s: float) -> bool:
        """Whether a counter that has stopped at the very end has not yet proved a hang."""
        return not self.moved and now_s - self.sent_s < self.limits.hang_after_s

    def _note(self, now_s: float, steps: float | None) -> None:
        if steps is None or steps == self.steps:
            return
        # A first reading is not a move, but nothing is known to stand still before it.
        self.moved = self.moved or self.steps is not None
        self.moved_s, self.steps = now_s, steps

    def _cap_s(self) -> float | None:
        if self.first_token_s is not None or self.limits.max_wait_s is None:
            return None
        return self.sent_s + self.limits.max_wait_s

    def _end_s(self) -> float:
        if self.first_token_s is None:
            return self.sent_s + self.limits.give_up_s
        return self.first_token_s + self.limits.answer_s
