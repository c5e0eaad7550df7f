"""What one watch remembers of its server between two looks: which start of the process it is, how
warm it is, and who uses it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import Connection

from monitor.daemon.idle import IdleLeave
from monitor.judge.phase import Stillness, judge_phase
from monitor.judge.starts import KnownStart, NewStart, judge_start
from monitor.model import Outcome, Phase, Probe, Sample, ServerPage
from monitor.store import queries
from monitor.store.times import from_us, maybe_from_us


class ServerState:
    """Taken up from the history at the start, so that a restart of the daemon is no restart of the
    server.
    """

    def __init__(self, when_idle: Literal["run", "slower", "skip"]) -> None:
        self.start: KnownStart | None = None
        self.start_id: int | None = None
        self.leave = IdleLeave(when_idle)
        self._last_good: ServerPage | None = None
        self._away = False
        self._warmed: set[str] = set()  # parameter sets that this start has answered well
        self._stillness = Stillness()
        self._last_canary_s: float | None = None

    def take_up(self, connection: Connection, target_id: int, start_id: int) -> None:
        """Read from the history what was known when the last process of ours ended."""
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
        """Whether this page shows a start of the process that was not known."""
        return judge_start(self.start, self._last_good, page, self._away)

    def begin(self, new: NewStart, start_id: int, now: datetime) -> None:
        """A new start: everything is cold again."""
        self.start, self.start_id, self._warmed = KnownStart(new.started_at, now), start_id, set()

    def note(self, page: ServerPage) -> None:
        """Take up one page."""
        self._away = page.state == "refused" or (self._away and page.state == "timeout")
        if page.state == "ok":
            now_s = time.monotonic()
            self._stillness.note(page.engine_steps, now_s)
            self.leave.note(page.engine_steps, now_s)
            self._last_good = page

    def measured(self, probe: Probe, sample: Sample, after: ServerPage | None) -> None:
        """Take up one canary of ours; the engine steps until `after` were ours."""
        self._last_canary_s = time.monotonic()
        if after is not None:
            self.leave.ours(after.engine_steps)
        if sample.outcome is Outcome.OK:
            self._warmed.add(probe.parameter_set)

    def phase_of(self, probe: Probe, before: ServerPage) -> Phase:
        """How warm the server is for this probe (judge/phase.py)."""
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
        """Seconds without an engine step, at least; None without a counter."""
        return self._stillness.for_s(time.monotonic())

    def shown_start(self) -> datetime | None:
        """When the process started; when it was first seen, where the server does not tell."""
        return None if self.start is None else self.start.started_at or self.start.seen_at
