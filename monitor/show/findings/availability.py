"""Findings about the availability of a server and of its samples, as text."""

from __future__ import annotations

from monitor.model import Finding, Verdict
from monitor.show.findings.phrases import duration, reason, sentence, texts, utc
from monitor.show.findings.texts import GpuNames, Texts


def server_down(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `server_down`."""
    failed = finding.evidence.get("failed_contacts")
    error = reason(str(finding.evidence.get("last_error") or "no answer"))
    return texts(
        f"{finding.target}: server does not answer",
        f"{finding.target}: the server has not answered since {utc(finding.since)}.",
        f"{failed or 'Several'} consecutive contacts failed; last error: {error}.",
        "Check that the vLLM process is running and that its address is reachable.",
    )


def hung(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `hung`."""
    waited_s = (finding.evidence.get("waited_ms") or 0.0) / 1000
    probe = finding.evidence.get("probe")
    return texts(
        f"{finding.target}: engine hung, no step for {waited_s:.0f} s",
        f"{finding.target}: the engine has been hung since {utc(finding.since)}.",
        f"A request of probe {probe} waited {waited_s:.0f} s while the engine's step counter did "
        "not advance.",
        "/health may still return 200. Save the server's log and stack traces, then restart the "
        "server.",
    )


def no_samples(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `no_samples`."""
    probe, every_s = finding.subject, finding.evidence.get("interval_s")
    due = "" if every_s is None else f" although it is due every {duration(every_s)}"
    return texts(
        f"{finding.target}: no samples from probe {probe}",
        f"{finding.target}: probe {probe} has produced no sample since {utc(finding.since)}{due}.",
        "The state of the server is unknown.",
        "Check `vllm-canary status` for a spent token budget, a lease held by another process or a "
        "stopped daemon.",
    )


def unknown_lasting(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `unknown_lasting`: answers are missing, or cannot be judged."""
    if "verdict" in finding.evidence:
        return _unjudged(finding)
    target, probe = finding.target, finding.subject
    outcome = str(finding.evidence.get("outcome"))
    detail = finding.evidence.get("detail")
    return texts(
        f"{target}: no usable answer to probe {probe} ({outcome})",
        f"{target}: probe {probe} has had no usable answer since {utc(finding.since)}.",
        f"The last run ended as {outcome}{f': {reason(detail)}' if detail else ''}.",
        f"Run `vllm-canary probe {probe} --target {target}` to reproduce it.",
    )


def _unjudged(finding: Finding) -> Texts:
    target, probe, evidence = finding.target, finding.subject, finding.evidence
    since = f"{target}: the answers to probe {probe} have not been judged since "
    if evidence["verdict"] == Verdict.UNPINNED:
        return texts(
            f"{target}: answers to probe {probe} are not judged, no pin",
            f"{since}{utc(finding.since)}.",
            f"No pin is valid for the current text of the probe ({evidence.get('runs')} runs).",
            f'Record one: `vllm-canary pin {probe} --target {target} --reason "…"`.',
        )
    return texts(
        f"{target}: answers to probe {probe} cannot be judged",
        f"{since}{utc(finding.since)} ({evidence.get('runs')} runs).",
        sentence(str(evidence.get("detail") or "the judge could not read them")),
    )
