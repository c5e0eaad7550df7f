"""What a watch remembers of its server between two readings: the start of its process, how warm it
is, and whether anybody uses it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import Connection

from monitor.judge.phase import Stillness, judge_phase
from monitor.judge.starts import KnownStart, NewStart, judge_start
from monitor.model import Outcome, Phase, Probe, Sample, ServerPage
from monitor.store import queries
from monitor.store.times import from_us, maybe_from_us

UNUSED_AFTER_S = 600.0
SLOWER = 10  # when_idle: slower runs every tenth canary


@dataclass(slots=True)
class IdlePolicy:
    """`when_idle`: while there is no other traffic, canaries run rarely or not at all, so that a
    GPU at home may sleep.

    The engine's step counter shows it: steps between two of our canaries were somebody else's.
    """

    mode: Literal["run", "slower", "skip"]
    _steps: float | None = None
    _used_s: float | None = None  # monotonic; when somebody else was last seen to use the server
    _turns: dict[str, int] = field(default_factory=dict)

    def ours(self, steps: float | None) -> None:
        """Processes the counter after one of our own canaries: this movement is ours."""
        self._steps = steps

    def note(self, steps: float | None, now_s: float) -> None:
        """Processes any other reading. Without a counter the server counts as used."""
        if steps is None or self._steps is None or steps != self._steps or self._used_s is None:
            self._used_s = now_s
        self._steps = steps

    def unused(self, now_s: float) -> bool:
        """Whether the server has had no other traffic for ten minutes."""
        return self._used_s is not None and now_s - self._used_s > UNUSED_AFTER_S

    def wants(self, probe: str, now_s: float) -> bool:
        """Whether this probe should run now."""
        if self.mode == "run" or not self.unused(now_s):
            self._turns.pop(probe, None)
            return True
        if self.mode == "skip":
            return False
        turn = self._turns[probe] = self._turns.get(probe, -1) + 1
        return turn % SLOWER == 0

    def interval_factor(self, now_s: float) -> int | None:
        """Returns how many times longer the intervals are now; None: no canary is expected."""
        if self.mode == "run" or not self.unused(now_s):
            return 1
        return SLOWER if self.mode == "slower" else None


class ServerState:
    """Loaded from the history at the start, so that a restart of the daemon does not look like a
    restart of the server.
    """

    def __init__(self, when_idle: Literal["run", "slower", "skip"]) -> None:
        self.start: KnownStart | None = None
        self.start_id: int | None = None
        self.idle = IdlePolicy(when_idle)
        self._last_good: ServerPage | None = None
        self._away = False
        self._warmed: set[str] = set()  # parameter sets that this start has answered well
        self._stillness = Stillness()
        self._last_canary_s: float | None = None

    def load(self, connection: Connection, target_id: int, start_id: int) -> None:
        """Reads what was known when the last process of ours ended."""
        start = queries.process_start(connection, start_id)
        if start is None:
            return
        seen_at = maybe_from_us(start.seen_at_us) or datetime.now(UTC)
        self.start, self.start_id = (
            KnownStart(maybe_from_us(start.started_at_us), seen_at),
            start_id,
        )
        self._warmed = queries.warmed_parameter_sets(connection, target_id, start_id)
        last = queries.last_counters(connection, target_id)
        if last is not None:
            age_s = (datetime.now(UTC) - from_us(last.at_us)).total_seconds()
            self._stillness.note(last.engine_steps, time.monotonic() - age_s)
            self._last_good = ServerPage(
                at=seen_at,
                state="ok",
                engine_steps=last.engine_steps,
                generation_tokens=last.generation_tokens,
            )

    def new_start(self, page: ServerPage) -> NewStart | None:
        """Returns the start of the process that a page shows, if it is a new one."""
        return judge_start(self.start, self._last_good, page, self._away)

    def begin(self, new: NewStart, start_id: int, now: datetime) -> None:
        """Notes a new start: everything is cold again."""
        self.start, self.start_id, self._warmed = KnownStart(new.started_at, now), start_id, set()

    def note(self, page: ServerPage) -> None:
        """Processes one page."""
        self._away = page.state == "refused" or (self._away and page.state == "timeout")
        if page.state == "ok":
            now_s = time.monotonic()
            self._stillness.note(page.engine_steps, now_s)
            self.idle.note(page.engine_steps, now_s)
            self._last_good = page

    def measured(self, probe: Probe, sample: Sample, after: ServerPage | None) -> None:
        """Processes one canary of ours; the engine steps until `after` were ours."""
        self._last_canary_s = time.monotonic()
        if after is not None:
            self.idle.ours(after.engine_steps)
        if sample.outcome is Outcome.OK:
            self._warmed.add(probe.parameter_set)

    def phase_of(self, probe: Probe, before: ServerPage) -> Phase:
        """Returns how warm the server is for this probe (judge/phase.py)."""
        now_s = time.monotonic()
        since_ours_s = None if self._last_canary_s is None else now_s - self._last_canary_s
        return judge_phase(
            probe.parameter_set not in self._warmed,
            self._stillness,
            now_s,
            before.running,
            since_ours_s,
        )

    def idle_s(self) -> float | None:
        """Returns the seconds without an engine step, at least; None without a counter."""
        return self._stillness.for_s(time.monotonic())

    def shown_start(self) -> datetime | None:
        """Returns when the process started; when it was first seen if the server does not say."""
        return None if self.start is None else self.start.shown
