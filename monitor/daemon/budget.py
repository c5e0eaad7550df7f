"""What canaries have cost in the last hour, and whether one more fits. Pure but for its own
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from monitor.model import Probe

HOUR = timedelta(hours=1)
#: Share of the budget that the schedule leaves alone: a suspicion, a retest or a person with
#: `probe` must be able to measure more often.
RESERVE = 0.2


class Entry(NamedTuple):
    """What one canary cost. `extra`: it was not on the schedule, and paid from the reserve."""

    at: datetime
    tokens: int
    traffic_class: str
    extra: bool = False


class TokenLedger:
    """Prompt and answer tokens of one target over a sliding hour; filled from the history, so that
    a restart forgets nothing.
    """

    def __init__(
        self,
        limit: int,
        spent: Iterable[tuple[datetime, int, str]] = (),
        class_limits: Mapping[str, int] | None = None,
    ) -> None:
        self.limit = limit
        self._class_limits = dict(class_limits or {})
        self._entries: deque[Entry] = deque(self._sorted_out(spent))
        self._prompt_tokens: dict[str, int] = {}

    def _sorted_out(self, spent: Iterable[tuple[datetime, int, str]]) -> list[Entry]:
        """The history does not tell which were extra: what the schedule could not have spent
        was.
        """
        entries, scheduled = [], 0
        for at, tokens, traffic_class in sorted(spent):
            extra = scheduled + tokens > self.limit * (1 - RESERVE)
            scheduled += 0 if extra else tokens
            entries.append(Entry(at, tokens, traffic_class, extra))
        return entries

    def spent(
        self, now: datetime, traffic_class: str | None = None, extra: bool | None = None
    ) -> int:
        """Tokens in the hour before `now`, of one class or of all, on the schedule or beside it or
        both. What a clock that was ahead dated to the future counts for nothing: it would keep
        canaries out for as long.
        """
        while self._entries and self._entries[0].at <= now - HOUR:
            self._entries.popleft()
        recent = [e for e in self._entries if now - HOUR < e.at <= now]
        return sum(
            e.tokens
            for e in recent
            if traffic_class in {None, e.traffic_class} and extra in {None, e.extra}
        )

    def allows(self, probe: Probe, now: datetime, from_reserve: bool = False) -> bool:
        """Whether the most this probe can cost still fits into its class's budget and into the
        target's, less the reserve.
        """
        cost = self._most(probe)
        of_class = self._class_limits.get(probe.traffic_class)
        if of_class is not None and self.spent(now, probe.traffic_class) + cost > of_class:
            return False
        if from_reserve:
            return self.spent(now) + cost <= self.limit
        return self.spent(now, extra=False) + cost <= self.limit * (1 - RESERVE)

    def allows_extra(self, probe: Probe, now: datetime, others: Iterable[Probe] = ()) -> bool:
        """Whether a run beside the schedule fits into the reserve, and into its class's budget with
        something left for the schedule. `others` were just allowed and have not run yet.
        """
        cost = self._most(probe) + sum(self._most(other) for other in others)
        of_class = self._class_limits.get(probe.traffic_class)
        if of_class is not None and self.spent(now, probe.traffic_class) + cost > of_class * (
            1 - RESERVE
        ):
            return False
        return (
            self.spent(now, extra=True) + cost <= self.limit * RESERVE
            and self.spent(now) + cost <= self.limit
        )

    def note(
        self,
        probe: Probe,
        at: datetime,
        prompt_tokens: int | None,
        received: int | None,
        extra: bool = False,
    ) -> None:
        """Book a canary. What it cost the server beyond what came back to us is not known and not
        booked.
        """
        if prompt_tokens is not None:
            self._prompt_tokens[probe.name] = prompt_tokens
        self._entries.append(
            Entry(at, (prompt_tokens or 0) + (received or 0), probe.traffic_class, extra)
        )

    def clock_set_back(self, by: timedelta) -> None:
        """What was spent in the last hour was not spent in the future."""
        self._entries = deque(entry._replace(at=entry.at - by) for entry in self._entries)

    def _most(self, probe: Probe) -> int:
        return self._prompt_tokens.get(probe.name, 0) + probe.max_tokens


def hourly_cost(probe: Probe, prompt_tokens: int) -> float | None:
    """Tokens an hour of a probe that answers as long as it may; None for one that runs by a cron
    line.
    """
    runs = 2 if probe.same_salt_twice else 1
    return (
        None
        if probe.every_s is None
        else runs * 3600 / probe.every_s * (prompt_tokens + probe.max_tokens)
    )
