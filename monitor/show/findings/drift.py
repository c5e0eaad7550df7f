"""Findings of drift detection as text: speed, heat, power, service levels, prompts, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from monitor.model import Cause, Finding, GpuWarning, Kind
from monitor.show.findings import conditions as told
from monitor.show.findings.causes import ACTIONS, CAUSES, lead, proof
from monitor.show.findings.drift_details import details
from monitor.show.findings.effects import ShownEffect, effects_of, felt_since
from monitor.show.findings.fitting import Part, begun, fitted
from monitor.show.findings.phrases import texts, utc
from monitor.show.findings.readings import Reading
from monitor.show.findings.texts import GpuNames, Texts

MOST_MISSING = 2  # readings named in a paragraph
# what is left out first of a paragraph that is too long has the highest rank
READINGS_RANK, MISSING_RANK, OTHERS_RANK, LEVELS_RANK, SECOND_RANK, EXPECTED_RANK = range(1, 7)


def speed(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of `speed`, `thermal`, `power` and `slow_start`."""
    warnings = _warnings(finding)
    effects = effects_of(finding.evidence)
    if not effects and warnings:
        return _texts(finding, names, _condition(finding, names), _early(finding, names))
    parts = [*_measured(finding, effects), *_why(finding, names), *_levels_too(finding)]
    headline = ", ".join([*(e.short() for e in effects[:1]), _short_cause(finding, names)])
    return _texts(finding, names, headline, [*parts, *_do(finding)])


def service_level(finding: Finding, names: GpuNames) -> Texts:
    """Returns the texts of `service_level`."""
    levels: Mapping[str, Mapping[str, Any]] = finding.evidence.get("levels", {})
    if not levels and effects_of(finding.evidence):
        return speed(finding, names)  # first tokens are slow, and no class has a level for them
    others = ", ".join(name for name in levels if name != finding.subject)
    parts = [
        Part(f"first token late for {finding.subject}{_late(levels.get(finding.subject, {}))}"),
        Part(f" and {others}" if others else "", OTHERS_RANK),
        Part(f" since {utc(finding.since)}."),
        *_why(finding, names),
    ]
    classes = ", ".join(filter(None, (finding.subject, others)))
    headline = f"first token late for {classes}, {_short_cause(finding, names)}"
    return _texts(finding, names, headline, [*parts, *_do(finding)])


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
        parts = [*what, Part("in progress."), *_do(finding)]
        return _texts(finding, names, "configuration changed, comparison in progress", parts)
    parts = [
        *_metrics(effects),
        Part(f" since the configuration change at {utc(finding.since)}."),
        *_do(finding),
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
    return [Part(f" First token late for {', '.join(names)}.", LEVELS_RANK)] if names else []


# -- early warnings of GPUs


def _warnings(finding: Finding) -> list[GpuWarning]:
    """The warnings of the GPUs as they are told."""
    warnings = () if finding.detail is None else finding.detail.warnings
    return told.in_order(warnings, finding.subject)


def _early(finding: Finding, names: GpuNames) -> list[Part]:
    warnings = _warnings(finding)
    first = warnings[0]
    calm = "decode" in finding.evidence.get("calm", ())
    effect = "No effect on decode rate yet" if calm else "Effect on decode rate not yet known"
    expected = told.expectation(first)
    return [
        Part(f"{told.gpu_with(first, names)} {told.state(first)} since {utc(finding.since)}."),
        *_sentence(told.readings_of(first)),
        Part(f" {effect}"),
        Part(f"; expected: {expected}" if expected else "", EXPECTED_RANK),
        Part("."),
        Part(_others(warnings, names), OTHERS_RANK),
        Part(f" {told.action(first)}"),
    ]


def _condition(finding: Finding, names: GpuNames) -> str:
    """The GPU and its condition, for a headline: "GPU 0 (H100, GPU-a100…01) thermally throttled".

    A stored finding has both in its evidence, without the GPU that shows it.
    """
    warnings = _warnings(finding)
    if warnings:
        gpus, shown = {warning.uuid for warning in warnings}, warnings[0].condition
        first = names.of(warnings[0].uuid)
    else:
        gpus, first = set(finding.evidence.get("gpus", ())), _gpu(finding, names)
        shown = min(finding.evidence["signs"], key=told.ORDER.index)
    others = f" and {len(gpus) - 1} more" if len(gpus) > 1 else ""
    return f"{first}{others} {told.CONDITIONS[shown].short}"


def _others(warnings: Sequence[GpuWarning], names: GpuNames) -> str:
    others = told.also_affected(warnings, names)
    return f" {others}" if others else ""


# -- why, and what to do


def _why(finding: Finding, names: GpuNames) -> list[Part]:
    """The cause with the readings that show it: as the GPUs warn of it, or else by comparison."""
    warnings = _warnings(finding)
    if warnings:
        return _why_by_gpu(warnings, names)
    if finding.cause is None or finding.cause not in CAUSES:
        return []
    readings, slope = _readings(finding), finding.evidence.get("slope_pct_per_h")
    return [
        Part(f" {begun(lead(finding.cause, _gpu(finding, names), readings))}"),
        *_list(": ", proof(finding.cause, readings, slope)),
        Part("."),
        *_missing(finding),
    ]


def _why_by_gpu(warnings: Sequence[GpuWarning], names: GpuNames) -> list[Part]:
    first = warnings[0]
    expected = told.expectation(first)
    gpu, is_what = told.gpu_with(first, names), told.is_adjective(first)
    return [
        Part(f" {gpu} is {told.state(first)}" if is_what else f" {gpu}: {told.state(first)}"),
        *_list(": " if is_what else ", ", told.readings_of(first)),
        Part("."),
        Part(f" Expected: {expected}." if expected else "", EXPECTED_RANK),
        Part(_others(warnings, names), OTHERS_RANK),
    ]


def _list(joint: str, readings: Sequence[str]) -> list[Part]:
    """The readings behind a clause; the last is left out first."""
    return [
        Part(f"{', ' if n else joint}{reading}", READINGS_RANK)
        for n, reading in enumerate(readings)
    ]


def _sentence(readings: Sequence[str]) -> list[Part]:
    """The readings as a sentence of their own."""
    return [Part(f" {begun(', '.join(readings))}.", READINGS_RANK)] if readings else []


def _missing(finding: Finding) -> list[Part]:
    """The readings without which the cause stays unknown, without how to get them."""
    missing = [str(text).partition(" (")[0] for text in finding.evidence.get("missing", ())]
    if finding.cause is not Cause.UNEXPLAINED or not missing:
        return []
    more = len(missing) - MOST_MISSING
    others = f" and {more} more" if more > 0 else ""
    named = ", ".join(missing[:MOST_MISSING])
    return [Part(f" Missing: {named}{others}.", MISSING_RANK)]


def _do(finding: Finding) -> list[Part]:
    warnings = _warnings(finding)
    if warnings:
        return [Part(f" {told.action(warnings[0])}")]
    action = ACTIONS.get(finding.cause) if finding.cause is not None else None
    return [Part(f" {action}" if action else "")]


def _short_cause(finding: Finding, names: GpuNames) -> str:
    if _warnings(finding) or finding.evidence.get("signs"):
        return _condition(finding, names)
    cause = finding.cause if finding.cause in CAUSES else Cause.UNEXPLAINED
    return CAUSES[cause or Cause.UNEXPLAINED].short.format(gpu=_gpu(finding, names))


def _gpu(finding: Finding, names: GpuNames) -> str:
    """The GPU whose readings are the evidence; of a stored finding the one it is named after."""
    if finding.detail is not None and finding.detail.gpu is not None:
        return names.of(finding.detail.gpu)
    gpus = finding.evidence.get("gpus", ())
    if finding.kind in {Kind.THERMAL, Kind.POWER}:
        return names.of(finding.subject)
    return names.of(gpus[0]) if len(gpus) == 1 else "the GPU"


def _readings(finding: Finding) -> dict[str, Reading]:
    """The readings of the evidence that are known now."""
    found: Mapping[str, Mapping[str, float | None]] = finding.evidence.get("readings", {})
    return {
        name: Reading(pair.get("before"), now)
        for name, pair in found.items()
        if (now := pair.get("now")) is not None
    }
