"""Sentences from findings: the one place where a finding becomes text for a person.

A stored finding keeps the paragraph that was sent, in its `summary`; headline and details are made
from its evidence.
"""

from __future__ import annotations

from dataclasses import replace

from monitor.model import Finding
from monitor.show.findings.kinds import RENDERERS
from monitor.show.findings.phrases import texts
from monitor.show.findings.texts import GpuName, GpuNames, Texts, short_model

__all__ = [
    "GpuName",
    "GpuNames",
    "Texts",
    "details",
    "headline",
    "paragraph",
    "render",
    "short_model",
]


def render(finding: Finding, names: GpuNames | None = None) -> Texts:
    """Returns the texts of a finding."""
    renderer = RENDERERS.get(finding.kind)
    if renderer is None:
        return texts(finding.summary, finding.summary)
    found = renderer(finding, names or GpuNames())
    return replace(found, paragraph=finding.summary) if finding.summary else found


def headline(finding: Finding, names: GpuNames | None = None) -> str:
    """Returns the finding as one line of at most 100 characters."""
    return render(finding, names).headline


def paragraph(finding: Finding, names: GpuNames | None = None) -> str:
    """Returns the finding as the paragraph of an alert, of at most 60 words."""
    return render(finding, names).paragraph


def details(finding: Finding, names: GpuNames | None = None) -> tuple[str, ...]:
    """Returns the evidence of the finding as lines of text."""
    return render(finding, names).details
