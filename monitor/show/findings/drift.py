"""Findings of drift detection as text: speed, heat, power, service levels, prompts, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from monitor.model import Finding
from monitor.show.findings import conditions
from monitor.show.findings.drift_details import details
from monitor.show.findings.effects import ShownEffect, effects_of, felt_since
from monitor.show.findings.explanation import (
    EXPECTED_RANK,
    LEVELS_RANK,
    OTHERS_RANK,
    SECOND_RANK,
    condition,
    others_too,
    sentence_of,
    short_cause,
    warnings_of,
    what_to_do,
    why,
)
from monitor.show.findings.fitting import Part, fitted
from monitor.show.findings.phrases import texts, utc
from monitor.show.findings.texts import GpuNames, Texts


def speed(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of `speed`, `thermal`, `power` and `slow_start`."""
    warnings = warnings_of(finding)
    effects = effects_of(finding.evidence)
    if not effects and warnings:
        return _texts(finding, names, condition(finding, names), _early(finding, names))
    parts = [*_measured(finding, effects), *why(finding, names), *_levels_too(finding)]
    headline = ", ".join([*(e.short() for e in effects[:1]), short_cause(finding, names)])
    return _texts(finding, names, headline, [*parts, *what_to_do(finding)])


def service_level(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of `service_level`."""
    levels: Mapping[str, Mapping[str, Any]] = finding.evidence.get("levels", {})
    if not levels and effects_of(finding.evidence):
        return speed(finding, names)  # first tokens are slow, and no class has a level for them
    others = [name for name in levels if name != finding.subject]
    parts = [
        Part(f"first token late for {finding.subject}{_late(levels.get(finding.subject, {}))}"),
        Part(f" and {_all(others)}" if others else "", OTHERS_RANK),
        Part(f" since {utc(finding.since)}."),
        *why(finding, names),
    ]
    classes = _all([finding.subject, *others])
    headline = f"first token late for {classes}, {short_cause(finding, names)}"
    return _texts(finding, names, headline, [*parts, *what_to_do(finding)])


def workload_shift(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of `workload_shift`."""
    now, before = (finding.evidence.get(name, "–") for name in ("tokens", "usual_tokens"))
    parts = [
        Part(
            f"prompt length {now} tokens per request in the last hour (baseline at most {before})"
        ),
        Part(f" since {utc(finding.since)}."),
        Part(" Check that the probes still match the traffic: longer prompts need a probe of "),
        Part("their length and a new pin."),
    ]
    headline = f"prompt length {before} → {now} tokens per request"
    return _texts(finding, names, headline, parts)


def config_change(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of a `config_change` of which only the fingerprint is known."""
    effects = effects_of(finding.evidence)
    if not effects:
        at = utc(finding.since)
        what = [Part(f"configuration changed at {at}. Comparison with the previous configuration ")]
        parts = [*what, Part("in progress."), *what_to_do(finding)]
        return _texts(finding, names, "configuration changed, comparison in progress", parts)
    parts = [
        *_metrics(effects),
        Part(f" since the configuration change at {utc(finding.since)}."),
        *what_to_do(finding),
    ]
    return _texts(finding, names, f"{effects[0].short()}, configuration changed", parts)


def _texts(finding: Finding, names: GpuNames, headline: str, parts: Sequence[Part]) -> Texts:
    target = f"{finding.target}: "
    paragraph = fitted([Part(target), *parts])
    found = texts(f"{target}{headline}", paragraph)
    return replace(found, details=tuple(details(finding, names)))


# -- what, how much, since when


def _measured(finding: Finding, effects: Sequence[ShownEffect]) -> list[Part]:
    if not effects:
        return [Part(f"slower since {utc(finding.since)}.")]
    return [*_metrics(effects), Part(f" since {utc(felt_since(effects, finding.since))}.")]


def _metrics(effects: Sequence[ShownEffect]) -> list[Part]:
    """The first effect with its interval, and the second."""
    second = [Part(f", {effect.short()}", SECOND_RANK) for effect in effects[1:2]]
    return [Part(effects[0].whole()), *second]


def _late(level: Mapping[str, Any]) -> str:
    """The late canaries of a class: " (9 of the last 10 canaries, median wait 2.0 s)"."""
    if "of" not in level:
        return ""
    waited = level.get("waited_ms")
    wait = "" if waited is None else f", median wait {waited / 1000:.1f} s"
    return f" ({level.get('over')} of the last {level['of']} canaries{wait})"


def _levels_too(finding: Finding) -> list[Part]:
    """Classes that wait too long for the same reason."""
    names = sorted(finding.evidence.get("levels", ()))
    return [Part(f" First token late for {_all(names)}.", LEVELS_RANK)] if names else []


def _all(names: Sequence[str]) -> str:
    """Returns "a", "a and b" or "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


# -- early warnings of GPUs


def _early(finding: Finding, names: GpuNames) -> list[Part]:
    warnings = warnings_of(finding)
    first = warnings[0]
    calm = "decode" in finding.evidence.get("calm", ())
    effect = "No effect on decode rate yet" if calm else "Effect on decode rate not yet known"
    expected = conditions.expectation(first)
    gpu = conditions.gpu_with(first, names)
    return [
        Part(f"{gpu} {conditions.state(first)} since {utc(finding.since)}."),
        *sentence_of(conditions.readings_of(first)),
        Part(f" {effect}"),
        Part(f"; expected: {expected}" if expected else "", EXPECTED_RANK),
        Part("."),
        Part(others_too(warnings, names), OTHERS_RANK),
        Part(f" {conditions.action(first)}"),
    ]
