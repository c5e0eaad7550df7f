"""The life of an incident as a pure state machine: an open incident and a finding in, a transition
out.

The daemon applies the transitions to its database (monitor/alert/incidents.py), a replay to its
list (monitor/replay/incidents.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from monitor.judge.evaluator.assessment import Assessment, OpenIncident
from monitor.model import Cause, Change, Finding, Severity

#: Evidence of the first change in a chain: what the server was before it is what to roll back to.
KEPT_EVIDENCE = frozenset({"digest_before", "fingerprint_before"})


class State(OpenIncident, Protocol):
    """An open incident, as its last finding left it."""

    @property
    def key(self) -> tuple[str, str, str]: ...
    @property
    def severity(self) -> Severity: ...
    @property
    def cause(self) -> Cause | None: ...
    @property
    def changes(self) -> tuple[Change, ...]: ...
    @property
    def evidence(self) -> Mapping[str, Any]: ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True)
class Opened:
    """A finding opens an incident."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Updated(Generic[S]):
    """The severity, cause or changes of an incident are new: people are notified."""

    incident: S
    finding: Finding


@dataclass(frozen=True, slots=True)
class Refreshed(Generic[S]):
    """An incident is found again; its figures may have moved. No message is sent."""

    incident: S
    finding: Finding


@dataclass(frozen=True, slots=True)
class Resolved(Generic[S]):
    """An incident is no longer found."""

    incident: S


Transition = Opened | Updated[S] | Refreshed[S] | Resolved[S]


def transition(
    incident: S | None, finding: Finding | None, may_close: bool
) -> Transition[S] | None:
    """Returns the step from an open incident, or none, and what is found now; None for no step.

    The finding of a step is what the incident says from then on.
    """
    if incident is None:
        return None if finding is None else Opened(finding)
    if finding is None:
        return Resolved(incident) if may_close else None
    # A judge that keeps only the last runs sees the onset move: it is no later than the opening.
    dated = replace(finding, since=min(finding.since, incident.opened_at))
    merged = _merged(incident, dated)
    if (merged.severity, merged.cause, merged.changes) != (
        incident.severity,
        incident.cause,
        incident.changes,
    ):
        return Updated(incident, merged)
    return Refreshed(incident, merged)


def reconcile(open_now: Iterable[S], assessment: Assessment) -> Iterator[Transition[S]]:
    """Yields the steps after which the open incidents of the assessment's kinds agree with it.
    `open_now` holds the open incidents of these kinds.
    """
    known = {incident.key: incident for incident in open_now}
    found = {finding.key: finding for finding in assessment.findings}
    for key in {**found, **known}:
        incident = known.get(key)
        may_close = incident is not None and key not in found and assessment.may_close(incident)
        step = transition(incident, found.get(key), may_close)
        if step is not None:
            yield step


def _merged(incident: State, finding: Finding) -> Finding:
    kept = {k: v for k, v in incident.evidence.items() if k in KEPT_EVIDENCE}
    changes = _chained(incident.changes, finding.changes)
    if not kept and changes == finding.changes:
        return finding
    return replace(finding, changes=changes, evidence={**finding.evidence, **kept})


def _chained(earlier: Sequence[Change], later: Sequence[Change]) -> tuple[Change, ...]:
    """Returns successive changes of a field as one: from the first value to the present one."""
    first = {change.field: change.before for change in earlier}
    return tuple(Change(c.field, first.get(c.field, c.before), c.after) for c in later)
