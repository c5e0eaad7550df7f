"""What canaries have cost in the last hour, and whether one more fits. Pure but for its own memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta

from monitor.model import Probe

HOUR = timedelta(hours=1)


class TokenLedger:
    """Prompt and answer tokens of one target over a sliding hour; filled from the history, so that a restart forgets nothing."""

    def __init__(self, limit: int, spent: Iterable[tuple[datetime, int]] = ()) -> None:
        self.limit = limit
        self._entries: deque[tuple[datetime, int]] = deque(sorted(spent))
        self._prompt_tokens: dict[str, int] = {}

    def spent(self, now: datetime) -> int:
        """Tokens in the hour before `now`."""
        while self._entries and self._entries[0][0] <= now - HOUR:
            self._entries.popleft()
        return sum(tokens for _, tokens in self._entries)

    def allows(self, probe: Probe, now: datetime) -> bool:
        """Whether the most this probe can cost still fits."""
        return self.spent(now) + self._prompt_tokens.get(probe.name, 0) + probe.max_tokens <= self.limit

    def note(self, probe: Probe, at: datetime, prompt_tokens: int | None, received: int | None) -> None:
        """Book a canary. What it cost the server beyond what came back to us is not known and not booked."""
        if prompt_tokens is not None:
            self._prompt_tokens[probe.name] = prompt_tokens
        self._entries.append((at, (prompt_tokens or 0) + (received or 0)))


def hourly_cost(probe: Probe, prompt_tokens: int) -> float | None:
    """Tokens an hour of a probe that answers as long as it may; None for one that runs by a cron line."""
    return None if probe.every_s is None else 3600 / probe.every_s * (prompt_tokens + probe.max_tokens)
