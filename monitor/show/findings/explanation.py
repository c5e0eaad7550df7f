"""Why something drifted and what to do, as parts of a paragraph and of a headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monitor.model import Cause, Finding, GpuWarning, Kind
from monitor.show.findings import conditions
from monitor.show.findings.causes import ACTIONS, CAUSES, lead, shown_by
from monitor.show.findings.fitting import Part, begun
from monitor.show.findings.readings import BeforeAndNow
from monitor.show.findings.texts import GpuNames

MOST_MISSING = 2  # readings named in a paragraph
# what is left out first of a paragraph that is too long has the highest rank
READINGS_RANK, MISSING_RANK, OTHERS_RANK, LEVELS_RANK, SECOND_RANK, EXPECTED_RANK = range(1, 7)


def warnings_of(finding: Finding) -> list[GpuWarning]:
    """Returns the warnings of the GPUs in the order in which they are reported."""
    warnings = () if finding.detail is None else finding.detail.warnings
    return conditions.in_order(warnings, finding.subject)


def why(finding: Finding, names: GpuNames) -> list[Part]:
    """Returns the cause with the readings that show it: from the warnings, or by comparison."""
    warnings = warnings_of(finding)
    if warnings:
        return _why_by_gpu(warnings, names)
    if finding.cause is None or finding.cause not in CAUSES:
        return []
    readings, slope = _readings(finding), finding.evidence.get("slope_pct_per_h")
    return [
        Part(f" {begun(lead(finding.cause, _gpu(finding, names), readings))}"),
        *_list(": ", shown_by(finding.cause, readings, slope)),
        Part("."),
        *_missing(finding),
    ]


def _why_by_gpu(warnings: Sequence[GpuWarning], names: GpuNames) -> list[Part]:
    first = warnings[0]
    expected = conditions.expectation(first)
    gpu, is_what = conditions.gpu_with(first, names), conditions.is_adjective(first)
    return [
        Part(
            f" {gpu} is {conditions.state(first)}"
            if is_what
            else f" {gpu}: {conditions.state(first)}"
        ),
        *_list(": " if is_what else ", ", conditions.readings_of(first)),
        Part("."),
        Part(f" Expected: {expected}." if expected else "", EXPECTED_RANK),
        Part(others_too(warnings, names), OTHERS_RANK),
    ]


def _list(joint: str, readings: Sequence[str]) -> list[Part]:
    """The readings behind a clause; the last is left out first."""
    return [
        Part(f"{', ' if n else joint}{reading}", READINGS_RANK)
        for n, reading in enumerate(readings)
    ]


def sentence_of(readings: Sequence[str]) -> list[Part]:
    """Returns the readings as a sentence of their own."""
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


def what_to_do(finding: Finding) -> list[Part]:
    """Returns the last sentence: where to look first."""
    warnings = warnings_of(finding)
    if warnings:
        return [Part(f" {conditions.action(warnings[0])}")]
    action = ACTIONS.get(finding.cause) if finding.cause is not None else None
    return [Part(f" {action}" if action else "")]


def others_too(warnings: Sequence[GpuWarning], names: GpuNames) -> str:
    """Returns the sentence about the other GPUs that warn, if there are any."""
    others = conditions.also_affected(warnings, names)
    return f" {others}" if others else ""


def short_cause(finding: Finding, names: GpuNames) -> str:
    """Returns the cause in a few words, for a headline."""
    if warnings_of(finding) or finding.evidence.get("signs"):
        return condition(finding, names)
    cause = finding.cause if finding.cause in CAUSES else Cause.UNEXPLAINED
    return CAUSES[cause or Cause.UNEXPLAINED].short.format(gpu=_gpu(finding, names))


def condition(finding: Finding, names: GpuNames) -> str:
    """Returns the GPU and its condition: "GPU 0 (H100, GPU-a100…01) thermally throttled".

    A stored finding has both in its evidence, without the GPU that shows it.
    """
    warnings = warnings_of(finding)
    if warnings:
        gpus, shown = {warning.uuid for warning in warnings}, warnings[0].condition
        first = names.of(warnings[0].uuid)
    else:
        gpus, first = set(finding.evidence.get("gpus", ())), _gpu(finding, names)
        shown = min(finding.evidence["signs"], key=conditions.ORDER.index)
    others = f" and {len(gpus) - 1} more" if len(gpus) > 1 else ""
    return f"{first}{others} {conditions.CONDITIONS[shown].short}"


def _gpu(finding: Finding, names: GpuNames) -> str:
    """The GPU whose readings are the evidence; of a stored finding the one it is named after."""
    if finding.detail is not None and finding.detail.gpu is not None:
        return names.of(finding.detail.gpu)
    gpus = finding.evidence.get("gpus", ())
    if finding.kind in {Kind.THERMAL, Kind.POWER}:
        return names.of(finding.subject)
    return names.of(gpus[0]) if len(gpus) == 1 else "the GPU"


def _readings(finding: Finding) -> dict[str, BeforeAndNow]:
    """The readings of the evidence that are known now."""
    found: Mapping[str, Mapping[str, float | None]] = finding.evidence.get("readings", {})
    return {
        name: BeforeAndNow(pair.get("before"), now)
        for name, pair in found.items()
        if (now := pair.get("now")) is not None
    }
