"""From the findings of a target's detector to its incidents.

A change of configuration already has an incident, with the fields that changed
(monitor/daemon/identity.py). What the detector measures of the change is added there; only if that
incident is closed does it open one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from monitor.alert.incidents import IncidentLog
from monitor.daemon.watch import TargetWatch
from monitor.judge.evaluator import drift
from monitor.judge.evaluator.assessment import Assessment
from monitor.model import Finding, Incident, Kind, Severity

BY_DIGEST = "fingerprint"  # the subject of a change that the detector knows only by its digest
OFF = "drift detection"  # the subject of its own faults


def assess_drift(log: IncidentLog, watch: TargetWatch) -> Iterator[Assessment]:
    """Feeds a target's detector with what is new, and yields what it finds."""
    if watch.drift is None:
        return
    view = watch.gpus.view()
    gpus = frozenset[str]() if view is None else view.known
    found = watch.drift.step(
        log.connection, watch.target_id, gpus, watch.pins, log.now, watch.gpus.watches
    )
    if found is None:
        return
    faults = [finding for finding in found if finding.kind is Kind.MONITOR]
    yield Assessment([Kind.MONITOR], faults, lambda incident: incident.subject == OFF)
    if faults:
        return  # nothing is known about the rest: what is open stays open
    if watch.drift.relearned is not None:
        _close_unknown(log, found, watch.drift.relearned)
        watch.drift.relearned = None
    yield Assessment(drift.KINDS, [f for f in found if f.kind in drift.KINDS])
    yield from _assess_change(log, [f for f in found if f.kind is Kind.CONFIG_CHANGE])


def _close_unknown(log: IncidentLog, found: Sequence[Finding], reason: str) -> None:
    keys = {finding.key for finding in found}
    for incident in log.open(drift.KINDS):
        if incident.key not in keys:
            log.close(incident, reason)


def _assess_change(log: IncidentLog, found: Sequence[Finding]) -> Iterator[Assessment]:
    """Slower since a change: added to the incident of the change, with a message. Still being
    compared, or not slower: noted there without one.
    """
    finding = max(found, key=lambda f: f.severity is not Severity.INFO, default=None)
    felt = finding is not None and finding.severity is not Severity.INFO
    changes = [i for i in log.open([Kind.CONFIG_CHANGE]) if i.subject != BY_DIGEST]
    own = [finding] if finding is not None and felt and not changes else []
    yield Assessment([Kind.CONFIG_CHANGE], own, lambda incident: incident.subject == BY_DIGEST)
    if changes:
        _add_comparison(log, changes[-1], finding, felt)


def _add_comparison(
    log: IncidentLog, incident: Incident, finding: Finding | None, felt: bool
) -> None:
    comparison = None if finding is None else dict(finding.evidence)
    evidence = {"felt": felt, "comparison": comparison}
    if finding is not None and felt and not incident.evidence.get("felt"):
        severity = max(incident.severity, finding.severity, key=lambda s: s.rank)
        held = {**incident.evidence, **evidence}
        changed = replace(incident.as_finding(), severity=severity, evidence=held)
        log.extend(incident, log.text(changed), severity, evidence)
    elif {key: incident.evidence.get(key) for key in evidence} != evidence and (
        finding is not None or "felt" in incident.evidence
    ):
        log.note(incident, evidence)
