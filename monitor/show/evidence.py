"""The evidence of an incident as rows with before and now, whichever version stored it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from monitor.show.changes import value_text
from monitor.show.findings.readings import change, signed

LONGEST_VALUE = 200  # characters
#: Units that the keys of evidence end with, longest first.
UNITS = {
    "_tok_s": "tokens/s",
    "_steps_s": "steps/s",
    "_mhz": "MHz",
    "_mib": "MiB",
    "_nat": "nat",
    "_pct": "%",
    "_ms": "ms",
    "_us": "µs",
    "_c": "°C",
    "_w": "W",
    "_s": "s",
}
EFFECT = ("metric", "change_pct", "low_pct", "high_pct", "since", "channel")


class EvidenceRow(NamedTuple):
    """One figure of the evidence; `before` None where there is nothing to compare with."""

    name: str
    before: str | None
    now: str | None


def evidence_rows(evidence: Mapping[str, Any]) -> list[EvidenceRow]:
    """Returns the rows: effects and pairs of before and now first, then single values."""
    found = [*_rows("", evidence)]
    return sorted(found, key=lambda row: row.before is None and "%" not in (row.now or ""))


def _rows(prefix: str, values: Mapping[str, Any]) -> Iterable[EvidenceRow]:
    if values.get("metric") is not None and values.get("change_pct") is not None:
        if "effects" not in values:  # otherwise it repeats the first of them
            yield _effect(prefix, values)
        values = {key: value for key, value in values.items() if key not in EFFECT}
    for key, value in values.items():
        earlier = _earlier(key, values)
        if key.endswith("_before") and f"{key[:-7]}_after" in values:
            continue
        if key.startswith("usual_") and key[6:] in values:
            continue
        if earlier is not None:
            yield EvidenceRow(
                _name(prefix, key.removesuffix("_after")), _text(earlier), _text(value)
            )
        else:
            yield from _of(prefix, key, value)


def _earlier(key: str, values: Mapping[str, Any]) -> Any:
    """Returns the value that another key holds for before: `X_before` for `X_after`, `usual_X`."""
    if key.endswith("_after"):
        return values.get(f"{key[:-6]}_before")
    return values.get(f"usual_{key}")


def _of(prefix: str, key: str, value: Any) -> Iterable[EvidenceRow]:
    if isinstance(value, Mapping):
        if value and set(value) <= {"before", "now"}:
            yield EvidenceRow(
                _name(prefix, key), _text(value.get("before")), _text(value.get("now"))
            )
        else:
            yield from _rows("" if key == "readings" else f"{prefix}{key} ", value)
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for each in value:
            inner = each if isinstance(each, Mapping) else {key: each}
            yield from _rows("" if key == "effects" else f"{prefix}{key} ", inner)
    else:
        yield EvidenceRow(_name(prefix, key), None, _text(value))


def _effect(prefix: str, effect: Mapping[str, Any]) -> EvidenceRow:
    low, high = effect.get("low_pct"), effect.get("high_pct")
    interval = "" if low is None or high is None else f" ({signed(low)} to {signed(high)})"
    since = "" if effect.get("since") is None else f" since {effect['since']}"
    name = _name(prefix, str(effect["metric"]))
    return EvidenceRow(name, None, f"{change(effect['change_pct'])}{interval}{since}")


def _name(prefix: str, key: str) -> str:
    """Returns "temp (°C)" for `temp_c`."""
    suffix = next((suffix for suffix in UNITS if key.endswith(suffix)), "")
    unit = f" ({UNITS[suffix]})" if suffix else ""
    return f"{prefix}{key.removesuffix(suffix)}{unit}".replace("_", " ")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "–"
    return value_text(value, LONGEST_VALUE)
