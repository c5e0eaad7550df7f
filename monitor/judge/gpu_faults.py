"""Faults that a GPU or its driver reports, and GPUs that cannot be read. No baseline is needed.

A finding holds until the GPU answers again (for the driver: until any GPU does), so that neither a
restart of vllm-canary nor a GPU that has vanished closes its incident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from monitor.model import (
    DRIVER,
    Finding,
    GpuEvent,
    GpuFault,
    GpusView,
    Incident,
    Kind,
    ReadProblem,
    Severity,
)

KINDS = (Kind.GPU_FAULT, Kind.TELEMETRY_BLIND, Kind.DRIVER_MISMATCH)
#: XIDs that require a reset of the GPU, a reboot or a replacement
#: (docs.nvidia.com/deploy/xid-errors); the selection is that of the alert documented by
#: utkuozdemir/nvidia_gpu_exporter. All other XIDs are stored and open nothing: most are faults of
#: an application (13, 31, 43) or notes (63, 92).
FATAL_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
XID_LASTS = timedelta(minutes=30)
# reloading a driver or restarting an exporter takes less
BLIND_FOR = timedelta(seconds=60)
_UNUSABLE = frozenset({GpuFault.LOST, GpuFault.RESET})


def judge_gpus(
    target: str,
    view: GpusView,
    events: Sequence[GpuEvent],
    open_now: Sequence[Incident],
    now: datetime,
) -> list[Finding]:
    """Returns all findings about a target's GPUs. `events`: those of the last XID_LASTS;
    `open_now`: the open incidents of KINDS.
    """
    evidence_of = {incident.key: incident.evidence for incident in open_now}
    found = [
        _steady(finding, evidence_of.get(finding.key, {}))
        for finding in (
            *judge_gpu_faults(target, view, events, now),
            *judge_telemetry_blind(target, view, now),
            *judge_driver_mismatch(target, view),
        )
    ]
    keys = {finding.key for finding in found}
    lasting = [
        _unchanged(incident)
        for incident in open_now
        if incident.key not in keys and not _answers(view, incident.subject)
    ]
    # After a restart of vllm-canary, a GPU that cannot be listed has no UUID, but its incident has
    # one: it is the same GPU.
    gone = {
        finding.kind
        for finding in lasting
        if finding.subject not in view.known | {DRIVER} and not _nameless(finding.subject)
    }
    return [
        finding for finding in found if not (_nameless(finding.subject) and finding.kind in gone)
    ] + lasting


def judge_gpu_faults(
    target: str, view: GpusView, events: Sequence[GpuEvent], now: datetime
) -> list[Finding]:
    """Returns GPUs that are lost or require a reset, and GPUs for which the driver reported a fatal
    XID in the last half hour.
    """
    fatal: dict[str, list[GpuEvent]] = {}
    for event in events:
        if event.xid in FATAL_XIDS and event.uuid in view.known and event.at > now - XID_LASTS:
            fatal.setdefault(event.uuid, []).append(event)
    broken = {gpu: problem for gpu, problem in view.problems.items() if problem.fault in _UNUSABLE}
    return [
        _gpu_fault(target, gpu, broken.get(gpu), fatal.get(gpu, []))
        for gpu in sorted(broken.keys() | fatal.keys())
    ]


def _gpu_fault(
    target: str, gpu: str, problem: ReadProblem | None, events: Sequence[GpuEvent]
) -> Finding:
    starts = [event.at for event in events] + ([problem.since] if problem is not None else [])
    return Finding(
        kind=Kind.GPU_FAULT,
        target=target,
        subject=gpu,
        severity=Severity.PAGE,
        since=min(starts),
        evidence={
            "fault": "xid" if problem is None else problem.fault.value,
            "xids": sorted({event.xid for event in events}),
            "last_xid_at": events[-1].at.isoformat() if events else None,
            "reason": None if problem is None else problem.reason,
        },
    )


def judge_telemetry_blind(target: str, view: GpusView, now: datetime) -> list[Finding]:
    """Returns GPUs, or the whole driver or exporter, that have been unreadable for a minute.
    Meanwhile a thermal cause cannot be distinguished from others.
    """
    return [
        Finding(
            kind=Kind.TELEMETRY_BLIND,
            target=target,
            subject=gpu,
            severity=Severity.WARNING,
            since=problem.since,
            evidence={
                "fault": problem.fault.value,
                "blind_since": problem.since.isoformat(),
                "reason": problem.reason,
            },
        )
        for gpu, problem in sorted(view.problems.items())
        if now - problem.since > BLIND_FOR
    ]


def judge_driver_mismatch(target: str, view: GpusView) -> list[Finding]:
    """Returns a mismatch between the kernel driver and its user-space library. Running processes
    continue; a process that starts now finds no GPU.
    """
    return [
        Finding(
            kind=Kind.DRIVER_MISMATCH,
            target=target,
            subject=DRIVER,
            severity=Severity.WARNING,
            since=problem.since,
            evidence={"blind_since": problem.since.isoformat()},
        )
        for problem in view.problems.values()
        if problem.fault is GpuFault.MISMATCH
    ]


def _answers(view: GpusView, subject: str) -> bool:
    """Whether the subject is known to be readable: the GPU itself; or, for the driver and a GPU
    without a UUID, any GPU once the problem is gone.
    """
    if subject == DRIVER or _nameless(subject):
        return bool(view.answering) and subject not in view.problems
    return subject in view.answering


def _nameless(subject: str) -> bool:
    return subject.startswith("GPU ")


def _steady(finding: Finding, known: Mapping[str, Any]) -> Finding:
    """Keeps the reason that the open incident has for the same fault: a reason may count seconds,
    and must not cause a database write every time it is judged.
    """
    if known.get("reason") is None or known.get("fault") != finding.evidence.get("fault"):
        return finding
    return replace(finding, evidence={**finding.evidence, "reason": known["reason"]})


def _unchanged(incident: Incident) -> Finding:
    """Returns the finding of an open incident again: nothing is new, and it is not resolved."""
    return Finding(
        kind=incident.kind,
        target=incident.target,
        subject=incident.subject,
        severity=incident.severity,
        since=incident.opened_at,
        cause=incident.cause,
        changes=incident.changes,
        evidence=incident.evidence,
    )
