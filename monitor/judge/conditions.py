"""The conditions of `expect:`, one function each: why it does not hold, as one line for a person, or None. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from rapidfuzz.distance import Levenshtein

from monitor.judge.refusals import REFUSALS, is_refusal
from monitor.model import Expectation

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")
_MISSING = object()


def complaint(expectation: Expectation, output: str, finish_reason: str | None) -> str | None:
    """Why the condition does not hold; None when it does. A negated one complains when what it names is the case."""
    found = _plain_complaint(expectation, output, finish_reason)
    if not expectation.negate:
        return found
    if found is not None:
        return None
    if expectation.refusal is not None:
        return f"expected no refusal, got {shown(output)}"
    return f"expected not to hold, but does: {describe(expectation)}, got {shown(output)}"


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
    if e.json_schema is not None:
        return _json_schema(e.json_schema, output)
    if e.json_fields is not None:
        return _json_fields(e.json_fields, output)
    if e.number is not None:
        return _number(e.number, e.tolerance, output)
    if e.similarity is not None:
        return _similarity(e.similarity, e.floor, output)
    if e.finish_reason is not None:
        return _finish_reason(e.finish_reason, finish_reason)
    return _refusal(e.refusal or REFUSALS, output) if e.refusal is not None else None


def describe(e: Expectation) -> str:
    """The condition as people write it."""
    names = ("equals", "any_of", "contains", "not_contains", "regex", "json_schema", "json_fields", "number", "similarity", "finish_reason")
    name = next((n for n in names if getattr(e, n) is not None), "refusal")
    return f"{name} {getattr(e, name)!r}" if name != "refusal" else "refusal"


def shown(text: str, limit: int = 80) -> str:
    """An answer, or its head, in quotes."""
    text = text.strip()
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def _equals(wanted: str, output: str) -> str | None:
    return None if output.strip() == wanted.strip() else f"expected {wanted.strip()!r}, got {shown(output)}"


def _any_of(wanted: Sequence[str], output: str) -> str | None:
    if output.strip() in {w.strip() for w in wanted}:
        return None
    return f"expected one of {', '.join(map(repr, wanted))}, got {shown(output)}"


def _contains(wanted: str, output: str) -> str | None:
    return None if wanted in output else f"expected {wanted!r} in the answer, got {shown(output)}"


def _not_contains(unwanted: str, output: str) -> str | None:
    return None if unwanted not in output else f"expected no {unwanted!r} in the answer, got {shown(output)}"


def _regex(pattern: str, output: str) -> str | None:
    return None if re.search(pattern, output) else f"expected a match of /{pattern}/, got {shown(output)}"


def _finish_reason(wanted: str | None, got: str | None) -> str | None:
    return None if got == wanted else f"expected finish_reason {wanted}, got {got}"


def _refusal(phrases: Sequence[str], output: str) -> str | None:
    return None if is_refusal(output, phrases) else f"expected a refusal, got {shown(output)}"


def _number(wanted: float, tolerance: float, output: str) -> str | None:
    """The last number counts: an answer often repeats the question's numbers first."""
    found = _NUMBER.findall(output)
    if not found:
        return f"expected the number {wanted:g}, got no number: {shown(output)}"
    value = float(found[-1].replace(",", ""))
    within = f" ± {tolerance:g}" if tolerance else ""
    return None if abs(value - wanted) <= tolerance else f"expected the number {wanted:g}{within}, got {value:g}"


def _similarity(wanted: str, floor: float, output: str) -> str | None:
    """Normalised edit similarity: 1 for the same text, 0 for nothing in common."""
    value = Levenshtein.normalized_similarity(wanted.strip(), output.strip())
    return None if value >= floor else f"expected at least {floor:.2f} alike {shown(wanted)}, got {value:.2f}: {shown(output)}"


def json_in(output: str) -> Any:
    """The JSON value of an answer, also inside a fence or a sentence. Raises ValueError with a reason for people."""
    text = output.strip()
    fenced = re.search(r"```(?:json)?\s*(.*?)```", text, re.DOTALL)
    for candidate in (text, fenced[1] if fenced else None):
        try:
            return json.loads(candidate or "")
        except ValueError:
            continue
    start = min((i for i in (text.find("{"), text.find("[")) if i >= 0), default=-1)
    if start < 0:
        raise ValueError(f"the answer is not JSON: {shown(output)}")
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except ValueError as error:
        cut = text.count("{") > text.count("}") or text.count("[") > text.count("]")
        raise ValueError(f"the JSON is {'cut off' if cut else 'broken'}: {error}: {shown(text[start:])}") from None


def _json_schema(schema: Mapping[str, Any], output: str) -> str | None:
    try:
        value = json_in(output)
    except ValueError as error:
        return str(error)
    problem = next(iter(sorted(Draft202012Validator(dict(schema)).iter_errors(value), key=lambda e: list(map(str, e.absolute_path)))), None)
    if problem is None:
        return None
    place = ".".join(map(str, problem.absolute_path)) or "the JSON"
    return f"{place}: {problem.message}"


def _json_fields(wanted: Mapping[str, Any], output: str) -> str | None:
    try:
        value = json_in(output)
    except ValueError as error:
        return str(error)
    wrong = (_field(path, expected, _at(value, path)) for path, expected in wanted.items())
    return next((text for text in wrong if text is not None), None)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def _field(path: str, wanted: Any, got: Any) -> str | None:
    if got is _MISSING:
        return f"{path}: missing"
    if _kind(wanted) != _kind(got):
        return f"{path}: expected the {_kind(wanted)} {_told(wanted)}, got the {_kind(got)} {_told(got)}"
    return None if got == wanted else f"{path}: expected {_told(wanted)}, got {_told(got)}"


def _kind(value: Any) -> str:
    if value is None:
        return "value"
    kinds = ((bool, "truth value"), ((int, float), "number"), (str, "text"), (list, "list"), (dict, "object"))
    return next((name for types, name in kinds if isinstance(value, types)), "value")


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
