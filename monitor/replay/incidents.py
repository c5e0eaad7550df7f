"""The incidents of a replay: opened, updated and closed by the rules of the daemon's own
(monitor/alert/incidents.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from monitor.model import Finding, Severity

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOUDNESS = {Severity.INFO: 0, Severity.WARNING: 1, Severity.PAGE: 2}
Key = tuple[str, str, str]


def as_us(at: datetime) -> int:
    """Integer UTC microseconds."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def as_time(us: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(microseconds=us)


@dataclass(slots=True)
class Entry:
    """One incident as the daemon would have opened it. `finding` is the last one with its key;
    `severity` the loudest it reached.
    """

    opened_us: int
    severity: Severity
    finding: Finding
    closed_us: int | None = None
    pages_us: int | None = None  # when it first was a page, which is what wakes a person
    updates: int = 0  # how often it changed severity, cause or what had changed: each is a message

    @property
    def key(self) -> Key:
        """Kind, target and subject."""
        return self.finding.key

    def figure(self, name: str) -> Any:
        """`metric`, `change_pct`, `low_pct` or `high_pct`, where the finding has such a figure;
        else None.
        """
        return self.finding.evidence.get(name)


@dataclass(slots=True)
class Book:
    """All incidents of a replay in the order in which they opened."""

    entries: list[Entry] = field(default_factory=list)
    _open: dict[Key, Entry] = field(default_factory=dict)

    def is_open(self, kinds: Iterable[str]) -> bool:
        """Whether one of these kinds is open now."""
        if not self._open:
            return False
        wanted = set(kinds)
        return any(key[0] in wanted for key in self._open)

    def reconcile(
        self,
        kinds: Iterable[str],
        findings: Sequence[Finding],
        now_us: int,
        is_over: Callable[[Entry], bool] = lambda _entry: True,
    ) -> None:
        """Make the open incidents of these kinds agree with what was found just now."""
        for finding in findings:
            self._report(finding, now_us)
        if len(self._open) == 0:
            return
        wanted, keys = set(kinds), {finding.key for finding in findings}
        for key, entry in list(self._open.items()):
            if key[0] in wanted and key not in keys and is_over(entry):
                entry.closed_us = now_us
                del self._open[key]

    def _report(self, finding: Finding, now_us: int) -> None:
        entry = self._open.get(finding.key)
        if entry is None:
            entry = self._open[finding.key] = Entry(now_us, finding.severity, finding)
            self.entries.append(entry)
        else:
            before = entry.finding
            entry.updates += (finding.severity, finding.cause, finding.changes) != (
                before.severity,
                before.cause,
                before.changes,
            )
            entry.finding = finding
            entry.severity = max(entry.severity, finding.severity, key=_LOUDNESS.__getitem__)
        if finding.severity is Severity.PAGE and entry.pages_us is None:
            entry.pages_us = now_us
