"""Findings, and the incidents that record them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from monitor.model.gpu_warning import DriftDetail
from monitor.model.identity import Change
from monitor.model.words import Cause, Kind, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """The conclusion of a judge at one moment.

    `evidence` holds the figures it rests on, as JSON values; `monitor/show/findings/` turns a
    finding into text. `summary` is set only by judges that still write their own sentence.
    """

    kind: Kind
    target: str
    subject: str
    severity: Severity
    since: datetime
    summary: str = ""
    cause: Cause | None = None
    changes: tuple[Change, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    detail: DriftDetail | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, target and subject: findings with one key belong to one incident."""
        return (self.kind.value, self.target, self.subject)


@dataclass(frozen=True, slots=True)
class Incident:
    """All findings with one key from opening to closing; `closed_at` None = open."""

    id: int
    kind: Kind
    target: str
    subject: str
    severity: Severity
    summary: str
    opened_at: datetime
    cause: Cause | None = None
    acknowledged_at: datetime | None = None
    closed_at: datetime | None = None
    close_reason: str | None = None
    changes: tuple[Change, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """Kind, target and subject."""
        return (self.kind.value, self.target, self.subject)

    def as_finding(self, summary: str = "") -> Finding:
        """Returns what the incident holds now as a finding, with or without its stored text."""
        return Finding(
            kind=self.kind,
            target=self.target,
            subject=self.subject,
            severity=self.severity,
            since=self.opened_at,
            summary=summary,
            cause=self.cause,
            changes=self.changes,
            evidence=self.evidence,
        )
