"""Are the GPUs well, as far as they and their driver say it themselves, and can they be seen? No
learning needed.

A lack of news is not good news here: what was found is over only once the GPU answers (or, of the
driver, any GPU does), so that neither a restart of ours nor a GPU that vanished altogether closes
its incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

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
#: XIDs after which a GPU must be reset, the machine restarted or the GPU replaced, in the words
#: of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors); the choice is that of
#: nvidia_gpu_exporter's documented alert, utkuozdemir/nvidia_gpu_exporter. What is not here is kept
#: in the history and opens nothing: most are faults of a program (13, 31, 43) or notes (63, 92).
FATAL_XIDS = {
    48: "a double-bit ECC error",
    62: "the GPU's own controller halted",
    64: "a memory row that could not be retired or remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "a memory error that could not be contained",
    119: "the GPU's system processor (GSP) does not answer",
    120: "an error of the GPU's system processor (GSP)",
}
XID_LASTS = timedelta(minutes=30)
BLIND_FOR = timedelta(
    seconds=60
)  # a driver that is reloaded, or an exporter that is restarted, takes less
_NEEDS_HANDS = {GpuFault.LOST: "cannot be reached", GpuFault.RESET: "must be reset"}


def judge_gpus(
    target: str,
    view: GpusView,
    events: Sequence[GpuEvent],
    open_now: Sequence[Incident],
    now: datetime,
) -> list[Finding]:
    """All that is wrong with a target's GPUs. `events` of the last XID_LASTS; `open_now` has the
    open incidents of KINDS.
    """
    found = [
        *judge_gpu_faults(target, view, events, now),
        *judge_telemetry_blind(target, view, now),
        *judge_driver_mismatch(target, view),
    ]
    keys = {finding.key for finding in found}
    lasting = [
        _still(incident)
        for incident in open_now
        if incident.key not in keys and not _answers(view, incident.subject)
    ]
    # After a restart of ours a GPU that cannot be listed has no UUID, and its incident has: it is
    # the same GPU.
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
    """GPUs that are lost or must be reset, and GPUs for which the driver reported a fatal XID in
    the last half hour.
    """
    fatal: dict[str, list[GpuEvent]] = {}
    for event in events:
        if event.xid in FATAL_XIDS and event.uuid in view.known and event.at > now - XID_LASTS:
            fatal.setdefault(event.uuid, []).append(event)
    broken = {
        gpu: trouble for gpu, trouble in view.troubles.items() if trouble.fault in _NEEDS_HANDS
    }
    return [
        _gpu_fault(target, gpu, broken.get(gpu), fatal.get(gpu, []))
        for gpu in sorted(broken.keys() | fatal.keys())
    ]


def _gpu_fault(
    target: str, gpu: str, trouble: ReadProblem | None, events: Sequence[GpuEvent]
) -> Finding:
    if trouble is not None:
        what, fault = f"{_NEEDS_HANDS[trouble.fault]}: {trouble.reason}", trouble.fault.value
    else:
        last = events[-1].xid
        what, fault = (
            (
                f"reported Xid {last}, {FATAL_XIDS[last]}; look at the kernel log (dmesg) before "
                "you reset it"
            ),
            "xid",
        )
    starts = [event.at for event in events] + ([trouble.since] if trouble is not None else [])
    return Finding(
        kind=Kind.GPU_FAULT,
        target=target,
        subject=gpu,
        severity=Severity.PAGE,
        summary=f"{_name(gpu)} of {target} {what}",
        since=min(starts),
        evidence={
            "fault": fault,
            "xids": sorted({event.xid for event in events}),
            "last_xid_at": events[-1].at.isoformat() if events else None,
        },
    )


def judge_telemetry_blind(target: str, view: GpusView, now: datetime) -> list[Finding]:
    """GPUs, or a whole driver or exporter, that have not been readable for a minute: heat cannot
    be told from other causes meanwhile.
    """
    return [
        Finding(
            kind=Kind.TELEMETRY_BLIND,
            target=target,
            subject=gpu,
            severity=Severity.WARNING,
            summary=(
                f"{_name(gpu)} of {target} cannot be read, so heat and power are unknown: "
                f"{why.reason}"
            ),
            since=why.since,
            evidence={"fault": why.fault.value, "blind_since": why.since.isoformat()},
        )
        for gpu, why in sorted(view.troubles.items())
        if now - why.since > BLIND_FOR
    ]


def judge_driver_mismatch(target: str, view: GpusView) -> list[Finding]:
    """The kernel's driver and its library are of different versions. What runs goes on; what starts
    now finds no GPU.
    """
    return [
        Finding(
            kind=Kind.DRIVER_MISMATCH,
            target=target,
            subject=DRIVER,
            severity=Severity.WARNING,
            summary=(
                f"{why.reason}; {target} runs on with what it has loaded and may not come "
                "back after a restart"
            ),
            since=why.since,
            evidence={"blind_since": why.since.isoformat()},
        )
        for why in view.troubles.values()
        if why.fault is GpuFault.MISMATCH
    ]


def _answers(view: GpusView, subject: str) -> bool:
    """Whether it is seen to be well: the GPU itself; or, of the driver and of a GPU without a
    UUID, any GPU, the trouble being gone.
    """
    if subject == DRIVER or _nameless(subject):
        return bool(view.answering) and subject not in view.troubles
    return subject in view.answering


def _nameless(subject: str) -> bool:
    return subject.startswith("GPU ")


def _name(subject: str) -> str:
    return "the GPUs" if subject == DRIVER else subject if _nameless(subject) else f"GPU {subject}"


def _still(incident: Incident) -> Finding:
    """What an open incident says, once more: nothing new, and not over."""
    return Finding(
        kind=incident.kind,
        target=incident.target,
        subject=incident.subject,
        severity=incident.severity,
        summary=incident.summary,
        since=incident.opened_at,
        cause=incident.cause,
        changes=incident.changes,
        evidence=incident.evidence,
    )
