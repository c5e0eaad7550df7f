"""What a judge concludes, and the incident that is made of it."""

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
    """What a judge concludes now. `evidence` carries the numbers it rests on, in JSON values.

    `summary` is the text of the judges that write their own; of all others the text is made when
    it is shown (monitor/show/findings).
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
        """Identifies the incident: kind, target and subject."""
        return (self.kind.value, self.target, self.subject)


@dataclass(frozen=True, slots=True)
class Incident:
    """Findings of one key from opening to closing, stored; open while `closed_at` is None."""

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
