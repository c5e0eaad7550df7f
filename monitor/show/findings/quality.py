"""Findings about answers and pins, as text."""

from __future__ import annotations

from datetime import datetime

from monitor.judge.quality.flips import SEVERAL
from monitor.judge.quality.shift import LOG_PROBABILITIES
from monitor.model import Finding
from monitor.show.findings.phrases import listed, reason, texts, utc
from monitor.show.findings.texts import GpuNames, Texts


def quality(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `quality`: of one probe, over all probes, or of log-probabilities."""
    if finding.subject == SEVERAL:
        return _several(finding)
    return _shifted(finding) if finding.subject == LOG_PROBABILITIES else _probe(finding)


def _probe(finding: Finding) -> Texts:
    target, probe, evidence = finding.target, finding.subject, finding.evidence
    failed = f"{evidence.get('failed')} of the last {evidence.get('of')} runs"
    why = evidence.get("reason")
    if evidence.get("stale"):
        todo = "The pin was recorded under another configuration: check the answers and pin again."
    else:
        todo = (
            f"Inspect the answers with `vllm-canary history --probe {probe}`; if they are correct, "
            "update its conditions or its pin."
        )
    return texts(
        f"{target}: probe {probe} failed {failed}",
        f"{target}: probe {probe} has failed {failed} since {utc(finding.since)}.",
        f"Latest failure: {reason(str(why))}." if why else "",
        todo,
    )


def _several(finding: Finding) -> Texts:
    target, evidence = finding.target, finding.evidence
    failed = f"{evidence.get('failed')} of their last {evidence.get('of')} runs"
    flips = evidence.get("flip_rate")
    flipped = (
        "" if flips is None else f" (up to {flips * 100:.1f} % of answers flip without a fault)"
    )
    return texts(
        f"{target}: several probes failed {failed}",
        f"{target}: several probes have failed {failed} since {utc(finding.since)}{flipped}.",
        f"Probes with two or more failures: {listed(evidence.get('failed_twice') or ())}.",
        "Check for changed weights, quantization, kernels or sampling settings.",
    )


def _shifted(finding: Finding) -> Texts:
    target, evidence = finding.target, finding.evidence
    shift = f"{evidence.get('effect_nat') or 0.0:.3f} nat"
    p_value = evidence.get("p_value")
    sure = "" if p_value is None else f", p = {p_value:.1g}"
    return texts(
        f"{target}: log-probabilities of the pinned answers shifted by {shift}",
        f"{target}: the log-probabilities of the pinned answers have shifted by {shift} since "
        f"{utc(finding.since)}, over {evidence.get('probes')} probes and "
        f"{evidence.get('rounds')} rounds{sure}.",
        "The server probably runs different weights, quantization or kernels than when pinned, "
        "even where texts agree.",
        "Check the model files; if the change was intended, pin the probes again.",
    )


def near_ties(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `near_ties`."""
    target, evidence = finding.target, finding.evidence
    ties = f"{evidence.get('near_ties')} of the last {evidence.get('of')} pinned answers"
    return texts(
        f"{target}: near ties in {ties}",
        f"{target}: {ties} have been near ties since {utc(finding.since)}.",
        f"Affected probes: {listed(evidence.get('probes') or ())}.",
        "Answers are less stable than when pinned, but none is wrong yet.",
        "Check for changed kernels, quantization or batch settings.",
    )


def pin_expired(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `pin_expired`."""
    target, probe, evidence = finding.target, finding.subject, finding.evidence
    created, why = evidence.get("created_at"), evidence.get("reason")
    on = "" if created is None else f" on {datetime.fromisoformat(created):%Y-%m-%d}"
    because = f' with the reason "{reason(why)}"' if why else ""
    return texts(
        f"{target}: pin of probe {probe} has expired",
        f"{target}: the pin of probe {probe} expired at {utc(finding.since)} and is still in use.",
        f"It was recorded{on}{because}.",
        f'Renew it: `vllm-canary pin {probe} --target {target} --reason "…"`.',
    )
