"""The conditions of `expect:`, one function each: it returns why the condition does not hold, as
one line, or None. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from monitor.judge.quality.json_answer import fields_complaint, json_in, schema_complaint
from monitor.judge.quality.numbers import last_number
from monitor.judge.quality.refusals import REFUSALS, is_refusal
from monitor.model import Expectation
from monitor.text import shown


def complaint(expectation: Expectation, output: str, finish_reason: str | None) -> str | None:
    """Returns why the condition does not hold; None if it does. `negate` inverts the condition."""
    found = _plain_complaint(expectation, output, finish_reason)
    if not expectation.negate:
        return found
    if found is not None:
        return _no_json(expectation, output)
    if expectation.refusal is not None:
        return f"expected no refusal, got {shown(output)}"
    return f"the negated condition holds: {describe(expectation)}, got {shown(output)}"


def _plain_complaint(e: Expectation, output: str, finish_reason: str | None) -> str | None:
    if e.equals is not None:
        return _equals(e.equals, output)
    if e.any_of is not None:
        return _any_of(e.any_of, output)
    if e.contains is not None:
        return _contains(e.contains, output)
    if e.not_contains is not None:
        return _not_contains(e.not_contains, output)
    if e.regex is not None:
        return _regex(e.regex, output)
    if e.json_schema is not None or e.json_fields is not None:
        return _json(e, output)
    if e.number is not None:
        return _number(e.number, e.tolerance, output)
    if e.similarity is not None:
        return _similarity(e.similarity, e.floor, output)
    if e.finish_reason is not None:
        return _finish_reason(e.finish_reason, finish_reason)
    return _refusal(e.refusal or REFUSALS, output) if e.refusal is not None else None


def describe(e: Expectation) -> str:
    """Returns the condition as it is written in a probe file."""
    names = (
        "equals",
        "any_of",
        "contains",
        "not_contains",
        "regex",
        "json_schema",
        "json_fields",
        "number",
        "similarity",
        "finish_reason",
    )
    name = next((n for n in names if getattr(e, n) is not None), "refusal")
    return f"{name} {getattr(e, name)!r}" if name != "refusal" else "refusal"


def _equals(wanted: str, output: str) -> str | None:
    return (
        None
        if output.strip() == wanted.strip()
        else f"expected {wanted.strip()!r}, got {shown(output)}"
    )


def _any_of(wanted: Sequence[str], output: str) -> str | None:
    if output.strip() in {w.strip() for w in wanted}:
        return None
    return f"expected one of {', '.join(map(repr, wanted))}, got {shown(output)}"


def _contains(wanted: str, output: str) -> str | None:
    return None if wanted in output else f"expected {wanted!r} in the answer, got {shown(output)}"


def _not_contains(unwanted: str, output: str) -> str | None:
    return (
        None
        if unwanted not in output
        else f"expected no {unwanted!r} in the answer, got {shown(output)}"
    )


def _regex(pattern: str, output: str) -> str | None:
    return (
        None
        if re.search(pattern, output)
        else f"expected a match of /{pattern}/, got {shown(output)}"
    )


def _finish_reason(wanted: str | None, got: str | None) -> str | None:
    return None if got == wanted else f"expected finish_reason {wanted}, got {got}"


def _refusal(phrases: Sequence[str], output: str) -> str | None:
    return None if is_refusal(output, phrases) else f"expected a refusal, got {shown(output)}"


def _number(wanted: float, tolerance: float, output: str) -> str | None:
    """Compares the last number: an answer often repeats the numbers of the question first."""
    value = last_number(output)
    if value is None:
        return f"expected the number {wanted:g}, got no number: {shown(output)}"
    within = f" ± {tolerance:g}" if tolerance else ""
    return (
        None
        if abs(value - wanted) <= tolerance
        else f"expected the number {wanted:g}{within}, got {value:g}"
    )


def _similarity(wanted: str, floor: float, output: str) -> str | None:
    """Compares by normalised edit similarity: 1 for the same text, 0 for nothing in common."""
    value = Levenshtein.normalized_similarity(wanted.strip(), output.strip())
    return (
        None
        if value >= floor
        else (
            f"expected a similarity of {floor:.2f} to {shown(wanted)}, got {value:.2f}: "
            f"{shown(output)}"
        )
    )


def _json(e: Expectation, output: str) -> str | None:
    try:
        value = json_in(output)
    except ValueError as error:
        return str(error)
    return (
        fields_complaint(e.json_fields or {}, value)
        if e.json_schema is None
        else schema_complaint(e.json_schema, value)
    )


def _no_json(e: Expectation, output: str) -> str | None:
    """Returns why an answer has no JSON: a negated JSON condition still requires JSON."""
    if e.json_schema is None and e.json_fields is None:
        return None
    try:
        json_in(output)
    except ValueError as error:
        return str(error)
    return None
