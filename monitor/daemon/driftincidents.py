"""From what a target's detector finds to incidents. A change of configuration has its incident
already, by the fields that changed (monitor/daemon/identity.py): what the detector measures of it
is told there, and opens a second one only where the first is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from monitor.alert import incidents
from monitor.daemon.watch import TargetWatch
from monitor.model import Finding, Incident, Kind, Severity
from monitor.replay.replay import KINDS

BY_DIGEST = (
    "fingerprint"  # the subject of a change of which the detector knows only that there was one
)
OFF = "drift detection"  # the subject of its own faults


def judge_drift(
    connection: Connection, watch: TargetWatch, now: datetime, channels: Sequence[str]
) -> None:
    """Let a target's detector take up what is new, and make its incidents agree with it."""
    drift, name = watch.drift, watch.settings.name
    if drift is None:
        return
    view = watch.gpus.view()
    gpus = frozenset[str]() if view is None else view.known
    found = drift.step(connection, watch.target_id, gpus, watch.pins, now, watch.gpus.watches)
    if found is None:
        return
    faults = [finding for finding in found if finding.kind is Kind.MONITOR]
    incidents.reconcile(
        connection,
        name,
        [Kind.MONITOR],
        faults,
        now,
        channels,
        lambda incident: incident.subject == OFF,
    )
    if faults:
        return  # nothing is known of the rest: what is open stays open
    if drift.learnt_anew is not None:
        _close_untellable(connection, name, found, drift.learnt_anew, now, channels)
        drift.learnt_anew = None
    incidents.reconcile(
        connection, name, KINDS, [f for f in found if f.kind in KINDS], now, channels
    )
    _tell_of_change(
        connection, name, [f for f in found if f.kind is Kind.CONFIG_CHANGE], now, channels
    )


def _close_untellable(
    connection: Connection,
    target: str,
    found: Sequence[Finding],
    reason: str,
    now: datetime,
    channels: Sequence[str],
) -> None:
    keys = {finding.key for finding in found}
    for incident in incidents.open_incidents(connection, target, KINDS):
        if incident.key not in keys:
            incidents.close(connection, incident, now, reason, channels)


def _tell_of_change(
    connection: Connection,
    target: str,
    found: Sequence[Finding],
    now: datetime,
    channels: Sequence[str],
) -> None:
    """Slower since a change: told with the change. Still being compared, or as it was: kept there
    without a word.
    """
    finding = max(found, key=lambda f: f.severity is not Severity.INFO, default=None)
    felt = finding is not None and finding.severity is not Severity.INFO
    open_now = incidents.open_incidents(connection, target, [Kind.CONFIG_CHANGE])
    first = next((i for i in reversed(open_now) if i.subject != BY_DIGEST), None)
    own = [finding] if finding is not None and felt and first is None else []
    incidents.reconcile(
        connection,
        target,
        [Kind.CONFIG_CHANGE],
        own,
        now,
        channels,
        lambda incident: incident.subject == BY_DIGEST,
    )
    if first is not None:
        _tell_with(connection, first, finding, felt, now, channels)


def _tell_with(
    connection: Connection,
    incident: Incident,
    finding: Finding | None,
    felt: bool,
    now: datetime,
    channels: Sequence[str],
) -> None:
    told = {"felt": felt, "comparison": None if finding is None else dict(finding.evidence)}
    if finding is not None and felt and not incident.evidence.get("felt"):
        summary = f"{incident.summary}. {finding.summary}"
        severity = max(incident.severity, finding.severity, key=list(Severity).index)
        incidents.tell_more(connection, incident, summary, severity, told, now, channels)
    elif {key: incident.evidence.get(key) for key in told} != told and (
        finding is not None or "felt" in incident.evidence
    ):
        incidents.set_evidence(connection, incident, told)
