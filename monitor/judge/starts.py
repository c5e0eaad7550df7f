"""Restarts of the server's process, detected from the last known start and one reading of the
metrics page. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from monitor.model import ServerPage

SAME_START_S = 0.05  # process_start_time_seconds is a constant of the process, exact to 10 ms


@dataclass(frozen=True, slots=True)
class KnownStart:
    """The last start of the server's process in the history. `started_at` None: the server does not
    report it.
    """

    started_at: datetime | None
    seen_at: datetime

    @property
    def shown(self) -> datetime:
        """When the process started, or was first seen where the server does not report it."""
        return self.started_at or self.seen_at


@dataclass(frozen=True, slots=True)
class NewStart:
    """A restart, and how it was detected."""

    started_at: datetime | None
    source: str  # metrics | counter_fell | after_outage | first_seen


def judge_start(
    known: KnownStart | None, last: ServerPage | None, page: ServerPage, was_away: bool
) -> NewStart | None:
    """Returns a new start, or None. `last` is the last good page; `was_away`: connections have been
    refused since then.

    With several API servers vLLM exports no start time (multiprocess mode): then a decreased
    counter or an outage shows a restart.
    """
    if page.state in {"refused", "timeout"}:
        return None
    if page.process_start_s is not None:
        started_at = datetime.fromtimestamp(page.process_start_s, UTC)
        if known is None:
            return NewStart(started_at, "metrics")
        if known.started_at is None:  # seen without a time: an earlier start is the known one
            return NewStart(started_at, "metrics") if started_at > known.seen_at else None
        moved = abs((started_at - known.started_at).total_seconds()) > SAME_START_S
        return NewStart(started_at, "metrics") if moved else None
    if known is None:
        return NewStart(None, "first_seen")
    if was_away:
        return NewStart(None, "after_outage")
    return NewStart(None, "counter_fell") if last is not None and _fell(last, page) else None


def _fell(last: ServerPage, page: ServerPage) -> bool:
    pairs = (
        (last.engine_steps, page.engine_steps),
        (last.generation_tokens, page.generation_tokens),
    )
    return any(a is not None and b is not None and b < a for a, b in pairs)
