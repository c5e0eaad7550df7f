"""What canaries have cost in the last hour, and whether one more fits. Pure but for its own memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from monitor.model import Probe

HOUR = timedelta(hours=1)
#: Share of the budget that the schedule leaves alone: a suspicion, a retest or a person with `probe` must be able to measure more often.
RESERVE = 0.2


class TokenLedger:
    """Prompt and answer tokens of one target over a sliding hour; filled from the history, so that a restart forgets nothing."""

    def __init__(
        self, limit: int, spent: Iterable[tuple[datetime, int, str]] = (), class_limits: Mapping[str, int] | None = None
    ) -> None:
        self.limit = limit
        self._class_limits = dict(class_limits or {})
        self._entries: deque[tuple[datetime, int, str]] = deque(sorted(spent))
        self._prompt_tokens: dict[str, int] = {}

    def spent(self, now: datetime, traffic_class: str | None = None) -> int:
        """Tokens in the hour before `now`, of one class or of all."""
        while self._entries and self._entries[0][0] <= now - HOUR:
            self._entries.popleft()
        return sum(tokens for _, tokens, of in self._entries if traffic_class in {None, of})

    def allows(self, probe: Probe, now: datetime, from_reserve: bool = False) -> bool:
        """Whether the most this probe can cost still fits into its class's budget and into the target's, less the reserve."""
        cost = self._prompt_tokens.get(probe.name, 0) + probe.max_tokens
        limit = self.limit if from_reserve else self.limit * (1 - RESERVE)
        of_class = self._class_limits.get(probe.traffic_class)
        if of_class is not None and self.spent(now, probe.traffic_class) + cost > of_class:
            return False
        return self.spent(now) + cost <= limit

    def note(self, probe: Probe, at: datetime, prompt_tokens: int | None, received: int | None) -> None:
        """Book a canary. What it cost the server beyond what came back to us is not known and not booked."""
        if prompt_tokens is not None:
            self._prompt_tokens[probe.name] = prompt_tokens
        self._entries.append((at, (prompt_tokens or 0) + (received or 0), probe.traffic_class))


def hourly_cost(probe: Probe, prompt_tokens: int) -> float | None:
    """Tokens an hour of a probe that answers as long as it may; None for one that runs by a cron line."""
    runs = 2 if probe.same_salt_twice else 1
    return None if probe.every_s is None else runs * 3600 / probe.every_s * (prompt_tokens + probe.max_tokens)
