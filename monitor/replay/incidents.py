"""The incidents of a replay: what the daemon would have opened, updated and closed
(monitor/alert/lifecycle.py), in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from monitor.alert.lifecycle import Opened, Refreshed, Resolved, Transition, Updated, reconcile
from monitor.judge.evaluator.assessment import Assessment
from monitor.model import Cause, Change, Finding, Kind, Severity, from_us

Key = tuple[str, str, str]


@dataclass(slots=True)
class ReplayedIncident:
    """One incident. `finding` is its last one, `loudest` the highest severity that it reached."""

    opened_us: int
    finding: Finding
    loudest: Severity
    closed_us: int | None = None
    paged_us: int | None = None  # when its severity first was `page`
    updates: int = 0  # changes of severity, cause or changed fields: each is a message

    @property
    def key(self) -> Key:
        """Kind, target and subject."""
        return self.finding.key

    @property
    def kind(self) -> Kind:
        """What was seen."""
        return self.finding.kind

    @property
    def subject(self) -> str:
        """The probe, GPU or channel that it is about."""
        return self.finding.subject

    @property
    def severity(self) -> Severity:
        """The severity now."""
        return self.finding.severity

    @property
    def cause(self) -> Cause | None:
        """The cause now."""
        return self.finding.cause

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changed fields of the configuration."""
        return self.finding.changes

    @property
    def evidence(self) -> Mapping[str, Any]:
        """The figures of the last finding."""
        return self.finding.evidence

    @property
    def opened_at(self) -> datetime:
        """When it opened."""
        return from_us(self.opened_us)


@dataclass(slots=True)
class ReplayedIncidents:
    """All incidents of a replay, in the order in which they opened."""

    all: list[ReplayedIncident] = field(default_factory=list)
    _open: dict[Key, ReplayedIncident] = field(default_factory=dict)
    open_kinds: set[Kind] = field(default_factory=set)

    def reconcile(self, assessment: Assessment, now_us: int) -> None:
        """Makes the open incidents of the assessment's kinds agree with it."""
        open_now = [i for i in self._open.values() if i.kind in assessment.kinds]
        for step in reconcile(open_now, assessment):
            self._apply(step, now_us)

    def _apply(self, step: Transition[ReplayedIncident], now_us: int) -> None:
        match step:
            case Opened(finding):
                self._note(self._opened(finding, now_us), finding, now_us)
            case Updated(incident, finding):
                incident.updates += 1
                self._note(incident, finding, now_us)
            case Refreshed(incident, finding):
                self._note(incident, finding, now_us)
            case Resolved(incident):
                incident.closed_us = now_us
                del self._open[incident.key]
                self.open_kinds = {each.kind for each in self._open.values()}

    def _opened(self, finding: Finding, now_us: int) -> ReplayedIncident:
        incident = ReplayedIncident(now_us, finding, finding.severity)
        self.all.append(incident)
        self._open[incident.key] = incident
        self.open_kinds.add(incident.kind)
        return incident

    def _note(self, incident: ReplayedIncident, finding: Finding, now_us: int) -> None:
        incident.finding = finding
        incident.loudest = max(incident.loudest, finding.severity, key=lambda s: s.rank)
        if finding.severity is Severity.PAGE and incident.paged_us is None:
            incident.paged_us = now_us
