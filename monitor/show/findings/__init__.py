"""Sentences from findings: the one place where a finding becomes text for a person."""

from __future__ import annotations

from monitor.model import Finding


def paragraph(finding: Finding) -> str:
    """Returns the finding as the paragraph of an alert."""
    return finding.summary
