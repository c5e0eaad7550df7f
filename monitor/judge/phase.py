"""The phase of the next canary: how warm the server is. Pure; each phase is a cohort of its own."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.model import Phase

# GPU clocks ramp down after some seconds without an engine step (docs/units.md, phase)
IDLE_AFTER_S = 10.0


@dataclass(slots=True)
class Stillness:
    """The time since the engine's step counter last changed: a lower bound, from the first reading
    with its current value.
    """

    steps: float | None = None
    since_s: float | None = None  # monotonic
    moved: bool = False  # whether the counter has ever changed; before, the bound means little

    def note(self, steps: float | None, now_s: float) -> None:
        """Records one reading of the counter."""
        if steps is not None and steps == self.steps:
            return
        self.moved = self.moved or (steps is not None and self.steps is not None)
        self.steps, self.since_s = steps, None if steps is None else now_s

    def for_s(self, now_s: float) -> float | None:
        """Returns the least number of seconds without a step; None without a counter."""
        return None if self.since_s is None else now_s - self.since_s


def judge_phase(
    is_new: bool,
    stillness: Stillness,
    now_s: float,
    running: float | None,
    since_ours_s: float | None,
) -> Phase:
    """Returns cold before the first good answer of this process start and parameter set (`is_new`),
    idle after 10 s without an engine step, otherwise warm.

    Without a counter, only the time since the last canary is known (`since_ours_s`).
    """
    if is_new:
        return Phase.COLD
    idle_s = stillness.for_s(now_s)
    if idle_s is None:
        idle_s = since_ours_s
    if idle_s is None or (not stillness.moved and not running):
        return Phase.IDLE
    return Phase.IDLE if idle_s > IDLE_AFTER_S else Phase.WARM
