"""Sentences from findings: the one place where a finding becomes text for a person."""

from __future__ import annotations

from monitor.model import Finding, Kind
from monitor.show.findings.kinds import RENDERERS
from monitor.show.findings.phrases import texts
from monitor.show.findings.texts import GpuNames, Texts


def render(finding: Finding, names: GpuNames | None = None) -> Texts:
    """Returns the texts of a finding; those of a judge that writes its own are its summary."""
    renderer = RENDERERS.get(finding.kind)
    # A change that only the drift detector knows of has no fields to show.
    by_digest = finding.kind is Kind.CONFIG_CHANGE and not finding.changes
    if renderer is None or by_digest:
        return texts(finding.summary, finding.summary)
    return renderer(finding, names or GpuNames())


def paragraph(finding: Finding, names: GpuNames | None = None) -> str:
    """Returns the finding as the paragraph of an alert."""
    return render(finding, names).paragraph
