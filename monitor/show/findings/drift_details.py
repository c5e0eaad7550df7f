"""The details of a finding of drift: its evidence in JSON as tables of text.

They are made from the evidence alone, so that a stored incident shows the same as a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from monitor.model import Finding
from monitor.show.findings.effects import METRICS, effects_of
from monitor.show.findings.phrases import utc
from monitor.show.findings.readings import READINGS, change, figure, signed
from monitor.show.findings.texts import GpuNames

BASELINES: Mapping[str, str] = {
    "thermal_duty": "usual_thermal_duty",
    "power_duty": "usual_power_duty",
    "power_limit_w": "usual_power_limit_w",
    "sm_clock_mhz": "usual_clock_mhz",
}
CHANNELS: Mapping[str, str] = {
    "decode": "decode rate",
    "ttft": "time to first token",
    "steps": "engine steps per second",
}
VERDICTS: Mapping[str, str] = {"same": "unchanged", "not enough yet": "too few canaries yet"}
SEEN: Mapping[bool | None, str] = {True: "seen", False: "not seen", None: "unknown"}


def details(finding: Finding, names: GpuNames) -> list[str]:
    """Returns the evidence as lines: effects, service levels, GPUs, readings, what is missing."""
    evidence = finding.evidence
    sections = (
        _effects(evidence),
        _levels(evidence),
        _gpus(evidence, names),
        _readings(evidence),
        _lists(evidence),
    )
    lines: list[str] = []
    for section in filter(None, sections):
        lines += ["", *section] if lines else section
    return lines


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns aligned columns: text to the left, figures to the right."""
    cells = [list(headings), *[list(row) for row in rows]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(headings))]
    return [
        "  ".join(
            text.ljust(width) if n == 0 else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _effects(evidence: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            effect.metric,
            change(effect.change_pct),
            effect.interval(),
            "–" if effect.since is None else utc(effect.since),
        ]
        for effect in effects_of(evidence)
    ]
    return table(["effect", "change", "95 % interval", "since"], rows) if rows else []


def _levels(evidence: Mapping[str, Any]) -> list[str]:
    rows = [
        [name, _late(level), _interval(level), _wait(level)]
        for name, level in evidence.get("levels", {}).items()
    ]
    headings = ["class", "late canaries", "95 % interval, %", "median wait"]
    return table(headings, rows) if rows else []


def _late(level: Mapping[str, Any]) -> str:
    counted = f"{level['over']} of {level['of']}, " if "of" in level else ""
    return f"{counted}{level['share_pct']:.0f} %"


def _interval(level: Mapping[str, Any]) -> str:
    return f"{level['share_low_pct']:.0f} to {level['share_high_pct']:.0f}"


def _wait(level: Mapping[str, Any]) -> str:
    waited = level.get("waited_ms")
    return "–" if waited is None else f"{waited / 1000:.1f} s"


def _gpus(evidence: Mapping[str, Any], names: GpuNames) -> list[str]:
    """GPUs, conditions, and what the lost clock is expected to cost."""
    gpus = evidence.get("gpus", ())
    found = [f"GPUs: {', '.join(names.of(uuid) for uuid in gpus)}"] if gpus else []
    if "signs" in evidence:
        found.append(f"conditions: {', '.join(evidence['signs'])}")
    if "not_seen_since" in evidence:
        found.append(f"last seen at {evidence['not_seen_since']}")
    expected = evidence.get("expected")
    if expected:
        found.append(f"expected effect: {_expected(expected)}")
    return found


def _expected(expected: Mapping[str, float]) -> str:
    return ", ".join(
        f"{words} {change(expected[f'{name}_pct'], 0)} "
        f"({signed(expected[f'{name}_low_pct'], 0)} to {signed(expected[f'{name}_high_pct'], 0)})"
        for name, words in (("decode", "decode rate"), ("ttft", "time to first token"))
        if f"{name}_low_pct" in expected
    )


def _readings(evidence: Mapping[str, Any]) -> list[str]:
    """Readings before and now; of a GPU that only warns, with their baselines."""
    pairs: Mapping[str, Mapping[str, float | None]] = evidence.get("readings") or {
        name: {"before": evidence.get(BASELINES.get(name, "")), "now": evidence[name]}
        for name in READINGS
        if name in evidence
    }
    rows = [
        [
            f"{READINGS[name].words}, {READINGS[name].unit}",
            figure(name, pair.get("before")),
            figure(name, pair.get("now")),
        ]
        for name, pair in pairs.items()
        if name in READINGS
    ]
    return table(["reading", "before", "now"], rows) if rows else []


def _lists(evidence: Mapping[str, Any]) -> list[str]:
    found = []
    if "slope_pct_per_h" in evidence:
        found.append(f"loss per hour of uptime: {signed(evidence['slope_pct_per_h'], 2)} %")
    if evidence.get("compared"):
        verdicts = [
            f"{_channel(name)} {VERDICTS.get(said, said)}"
            for name, said in evidence["compared"].items()
        ]
        found.append(f"compared with the previous configuration: {', '.join(verdicts)}")
    if evidence.get("calm"):
        found.append(f"unchanged: {', '.join(map(_channel, evidence['calm']))}")
    if evidence.get("felt_too"):
        also = [f"{_metric(e)} {change(e['change_pct'])}" for e in evidence["felt_too"]]
        found.append(f"also slower: {', '.join(also)}")
    if evidence.get("seen"):
        found += _seen(evidence["seen"])
    if evidence.get("also_possible"):
        found.append(f"also possible: {', '.join(evidence['also_possible'])}")
    return found + _missing(evidence)


def _seen(seen: Mapping[str, bool | None]) -> list[str]:
    """What was observed of the cause, and what was not."""
    grouped = {
        words: [name.replace("_", " ") for name, held in seen.items() if held is answer]
        for answer, words in SEEN.items()
    }
    return [f"{words}: {', '.join(names)}" for words, names in grouped.items() if names]


def _missing(evidence: Mapping[str, Any]) -> list[str]:
    missing = evidence.get("missing", ())
    return ["missing readings:", *(f"  {text}" for text in missing)] if missing else []


def _channel(name: str) -> str:
    return CHANNELS.get(name, name)


def _metric(effect: Mapping[str, Any]) -> str:
    return METRICS.get(effect["metric"], effect["metric"])
