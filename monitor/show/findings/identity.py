"""Findings about a changed configuration, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor.model import Finding
from monitor.show.changes import differences, value_text
from monitor.show.findings.effects import METRICS
from monitor.show.findings.phrases import texts, utc
from monitor.show.findings.readings import change, signed
from monitor.show.findings.texts import GpuNames, Texts

MOST_FIELDS = 3
LONGEST_VALUE = 30  # characters


def config_change(finding: Finding, _names: GpuNames) -> Texts:
    """Returns the texts of `config_change`: the fields that differ, and the effect if known."""
    changes = differences(finding.changes)
    named = [
        f"{c.field} {value_text(c.before, LONGEST_VALUE)} → {value_text(c.after, LONGEST_VALUE)}"
        for c in changes[:MOST_FIELDS]
    ]
    more = len(changes) - MOST_FIELDS
    fields = ", ".join(named) + (f" and {more} more fields" if more > 0 else "")
    several = len(finding.changes) > 1
    return texts(
        f"{finding.target}: configuration changed: {fields}",
        f"{finding.target}: the configuration changed at {utc(finding.since)}: {fields}.",
        _effect(finding.evidence),
        "Effects cannot be attributed to a single change." if several else "",
        "If this was not intended, compare `vllm-canary fingerprint` with the deployment.",
    )


def _effect(evidence: Mapping[str, Any]) -> str:
    """Returns the measured effect, once the drift detector has found one."""
    comparison = evidence.get("comparison") or {}
    if not evidence.get("felt") or comparison.get("change_pct") is None:
        return ""
    metric = METRICS.get(comparison.get("metric", ""), "speed")
    low, high = comparison.get("low_pct"), comparison.get("high_pct")
    interval = "" if low is None or high is None else f" ({signed(low)} to {signed(high)})"
    return f"Effect since then: {metric} {change(comparison['change_pct'])}{interval}."
