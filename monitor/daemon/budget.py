"""The tokens that canaries have cost in the last hour, and whether the budget suffices for one
more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from monitor.model import Probe

HOUR = timedelta(hours=1)
#: Share of the budget that the schedule does not use: it is for extra runs, retests and a person
#: with `probe`.
RESERVE = 0.2


class Payment(NamedTuple):
    """The cost of one canary. `extra`: it was not on the schedule and was paid from the reserve."""

    at: datetime
    tokens: int
    traffic_class: str
    extra: bool = False


class TokenLedger:
    """Prompt and answer tokens of one target over a sliding hour, filled from the history at the
    start.
    """

    def __init__(
        self,
        limit: int,
        spent: Iterable[tuple[datetime, int, str]] = (),
        class_limits: Mapping[str, int] | None = None,
    ) -> None:
        self.limit = limit
        self._class_limits = dict(class_limits or {})
        self._payments: deque[Payment] = deque(self._classified(spent))
        self._prompt_tokens: dict[str, int] = {}

    def _classified(self, spent: Iterable[tuple[datetime, int, str]]) -> list[Payment]:
        """Returns the payments. The history does not say which were extra: those beyond the
        schedule's share were.
        """
        payments, scheduled = [], 0
        for at, tokens, traffic_class in sorted(spent):
            extra = scheduled + tokens > self.limit * (1 - RESERVE)
            scheduled += 0 if extra else tokens
            payments.append(Payment(at, tokens, traffic_class, extra))
        return payments

    def spent(
        self, now: datetime, traffic_class: str | None = None, extra: bool | None = None
    ) -> int:
        """Returns the tokens of the hour before `now`, of one class or of all, on the schedule,
        outside it or both. Payments dated in the future by a clock that was ahead do not count:
        they would block canaries until then.
        """
        while self._payments and self._payments[0].at <= now - HOUR:
            self._payments.popleft()
        recent = [e for e in self._payments if now - HOUR < e.at <= now]
        return sum(
            e.tokens
            for e in recent
            if traffic_class in {None, e.traffic_class} and extra in {None, e.extra}
        )

    def allows(self, probe: Probe, now: datetime, from_reserve: bool = False) -> bool:
        """Whether the budgets of the class and of the target, less the reserve, suffice for the
        most that this probe can cost.
        """
        cost = self._most(probe)
        of_class = self._class_limits.get(probe.traffic_class)
        if of_class is not None and self.spent(now, probe.traffic_class) + cost > of_class:
            return False
        if from_reserve:
            return self.spent(now) + cost <= self.limit
        return self.spent(now, extra=False) + cost <= self.limit * (1 - RESERVE)

    def allows_extra(self, probe: Probe, now: datetime, others: Iterable[Probe] = ()) -> bool:
        """Whether the reserve, and the class's budget less the schedule's share, suffice for an
        extra run. `others` were just allowed and have not run yet.
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
        """Records a canary. Only tokens that came back to us are known and recorded."""
        if prompt_tokens is not None:
            self._prompt_tokens[probe.name] = prompt_tokens
        self._payments.append(
            Payment(at, (prompt_tokens or 0) + (received or 0), probe.traffic_class, extra)
        )

    def clock_set_back(self, by: timedelta) -> None:
        """Moves the payments back with the clock."""
        self._payments = deque(payment._replace(at=payment.at - by) for payment in self._payments)

    def _most(self, probe: Probe) -> int:
        return self._prompt_tokens.get(probe.name, 0) + probe.max_tokens


def hourly_cost(probe: Probe, prompt_tokens: int) -> float | None:
    """Returns the most tokens that a probe can cost in an hour; None if it runs by a cron line."""
    runs = 2 if probe.same_salt_twice else 1
    return (
        None
        if probe.every_s is None
        else runs * 3600 / probe.every_s * (prompt_tokens + probe.max_tokens)
    )
