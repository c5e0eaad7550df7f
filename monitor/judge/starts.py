"""Has the server's process been started anew? Pure: from what is known and one reading of its
metrics page.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from monitor.model import ServerPage

SAME_START_S = 0.05  # process_start_time_seconds is a constant of the process, exact to 10 ms


@dataclass(frozen=True, slots=True)
class Start:
    """A start of the server's process as the history knows it. `started_at` None: the server does
    not tell.
    """

    started_at: datetime | None
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class NewStart:
    """A start not seen before, and how it was noticed."""

    started_at: datetime | None
    source: str  # metrics | counter_fell | after_outage | first_seen


def judge_start(
    known: Start | None, last: ServerPage | None, page: ServerPage, was_away: bool
) -> NewStart | None:
    """A new start, or None. `last` is the last good page; `was_away`: connections were refused
    since then.

    With several API servers there is no start time (vLLM's multiprocess mode): then a counter that
    fell, or an outage, tells it.
    """
    if page.state in {"refused", "timeout"}:
        return None
    if page.process_start_s is not None:
        started_at = datetime.fromtimestamp(page.process_start_s, UTC)
        if known is None:
            return NewStart(started_at, "metrics")
        if (
            known.started_at is None
        ):  # seen before it could be dated: an earlier start is the one that was seen
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
