"""Findings about faulty and unreadable GPUs, as text."""

from __future__ import annotations

from monitor.model import DRIVER, Finding, GpuFault
from monitor.show.findings.phrases import sentence, texts, utc
from monitor.show.findings.texts import GpuNames, Texts

#: The fatal XIDs in plain words, after docs.nvidia.com/deploy/xid-errors.
XIDS = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "failure to retire or remap a memory row",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GPU System Processor (GSP) timeout",
    120: "GPU System Processor (GSP) error",
}
_STATE = {
    GpuFault.LOST: ("is lost", "has been unreachable"),
    GpuFault.RESET: ("requires a reset", "has required a reset"),
}


def gpu_fault(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of `gpu_fault`: a fatal XID, or a GPU that is lost or requires a reset."""
    gpu, fault = _gpu(finding.subject, names), finding.evidence.get("fault")
    xids = " and ".join(_xid(xid) for xid in finding.evidence.get("xids") or ())
    if fault not in set(_STATE):
        return texts(
            f"{finding.target}: {gpu} reported {xids or 'a fatal XID'}",
            f"{finding.target}: {gpu} has had a fatal fault since {utc(finding.since)}.",
            f"The driver reported {xids or 'a fatal XID'}.",
            "Save the kernel log (dmesg), then reset the GPU or reboot; replace it if the fault "
            "returns.",
        )
    short, long = _STATE[GpuFault(fault)]
    return texts(
        f"{finding.target}: {gpu} {short}",
        f"{finding.target}: {gpu} {long} since {utc(finding.since)}.",
        f"The driver reported {xids}." if xids else "",
        sentence(finding.evidence.get("reason") or "reset the GPU or reboot the machine"),
    )


def telemetry_blind(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of `telemetry_blind`."""
    every = finding.subject == DRIVER
    gpu = "the GPUs" if every else _gpu(finding.subject, names)
    have, be = ("have", "are") if every else ("has", "is")
    return texts(
        f"{finding.target}: {gpu} {be} unreadable",
        f"{finding.target}: {gpu} {have} been unreadable since {utc(finding.since)}, so "
        "temperature, power and throttling are unknown.",
        sentence(finding.evidence.get("reason") or "check the driver and the exporter"),
    )


def driver_mismatch(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `driver_mismatch`."""
    return texts(
        f"{finding.target}: NVIDIA kernel driver and library have different versions",
        f"{finding.target}: the NVIDIA kernel driver and its library have had different versions "
        f"since {utc(finding.since)}, for example after an upgrade without a "
        "reboot.",
        "The server keeps running, but may fail to restart.",
        "Reboot, or reload the nvidia kernel modules and restart vllm-canary.",
    )


def _gpu(subject: str, names: GpuNames) -> str:
    """Returns the name of a GPU; one that cannot be listed has only its index ("GPU 0")."""
    return subject if subject.startswith("GPU ") else names.of(subject)


def _xid(xid: int) -> str:
    return f"Xid {xid} ({XIDS[xid]})" if xid in XIDS else f"Xid {xid}"
