"""JSON in an answer: found in code fences and sentences, parsed strictly, checked against a schema
or required values. Pure.

Nothing is ever fetched: a schema's references are resolved within the schema only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Never

from jsonschema import Draft202012Validator
from referencing import Registry

from monitor.text import both_ends, one_line, shown

_MISSING = object()
_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
_START = re.compile(r"\{\s*[\"'}\w]|\[\s*[\]\[{\"\d\-tfn]")
# a brace or bracket that can only be the beginning of JSON
_BEGUN = re.compile(r"\{\s*(?:[\"']|\w+\s*:)|\[\s*[{\[\"]")
LONGEST_MESSAGE = 160
MOST_TRIED = 100  # places where JSON may begin: a model may repeat brackets endlessly


class _DuplicateNameError(ValueError):
    """The JSON is valid, but has one name with two values."""


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object. Parsers differ in which of two values they take for a duplicate name (RFC
    8259, section 4), so such an answer is ambiguous.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found and not _same(found[name], value):
            raise _DuplicateNameError(
                f"{name} has two values, {_quoted(found[name])} and {_quoted(value)}"
            )
        found[name] = value
    return found


#: Python accepts NaN and Infinity by default, which are not JSON.
_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)


def json_in(output: str) -> Any:
    """Returns the JSON value in an answer, also inside a code fence or a sentence: the first
    object, or else the longest list. Raises ValueError with a reason for a person.
    """
    text = output.strip()
    try:
        for candidate in (text, *(fence[1] for fence in islice(_FENCE.finditer(text), MOST_TRIED))):
            try:
                return _DECODER.decode(candidate)
            except _DuplicateNameError as error:
                raise _broken(candidate, 0, error) from None
            except ValueError:
                continue
        return _json_inside(text)
    except RecursionError:
        raise ValueError(f"the JSON is nested too deeply to parse: {shown(text)}") from None


def _json_inside(text: str) -> Any:
    """Returns the JSON value inside a text. A footnote such as [1] is JSON, too, so the first
    bracket is not always the right one.
    """
    lists: list[tuple[int, Any]] = []
    start, failed = _START.search(text), None
    for _ in range(MOST_TRIED):
        if start is None:
            break
        end = start.start() + 1
        try:
            value, end = _DECODER.raw_decode(text, start.start())
            if isinstance(value, dict):
                return value
            lists.append((end - start.start(), value))
        except ValueError as error:
            failed = failed or _broken(text, start.start(), error)
            if _BEGUN.match(text, start.start()):  # JSON inside of it would be only a part
                raise _broken(text, start.start(), error) from None
        start = _START.search(text, end)
    if lists:
        return max(lists, key=lambda found: found[0])[1]
    raise failed or ValueError(f"the answer is not JSON: {shown(text)}")


def _broken(text: str, start: int, error: ValueError) -> ValueError:
    cut = text.count("{") > text.count("}") or text.count("[") > text.count("]")
    return ValueError(
        f"the JSON is {'cut off' if cut else 'broken'}: {one_line(str(error))}: "
        f"{shown(text[start:])}"
    )


def schema_complaint(schema: Mapping[str, Any], value: Any) -> str | None:
    """Returns the first violation of the schema (2020-12), by its place in the value."""
    errors = Draft202012Validator(dict(schema), registry=Registry()).iter_errors(value)
    try:
        problem = min(errors, key=lambda error: list(map(str, error.absolute_path)), default=None)
    except RecursionError:
        return "the JSON is nested too deeply to validate"
    if problem is None:
        return None
    place = ".".join(map(str, problem.absolute_path)) or "the JSON"
    return f"{both_ends(place, LONGEST_MESSAGE)}: {both_ends(problem.message, LONGEST_MESSAGE)}"


def fields_complaint(wanted: Mapping[str, Any], value: Any) -> str | None:
    """Returns the first required value that is missing, of another type or different."""
    wrong = (_field(path, expected, _at(value, path)) for path, expected in wanted.items())
    return next((text for text in wrong if text is not None), None)


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif (
            isinstance(value, list)
            and part.isdecimal()
            and len(part) < 10
            and int(part) < len(value)
        ):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def _field(path: str, wanted: Any, got: Any) -> str | None:
    if got is _MISSING:
        return f"{path}: missing"
    if _kind(wanted) != _kind(got):
        return (
            f"{path}: expected the {_kind(wanted)} {_quoted(wanted)}, got the {_kind(got)} "
            f"{_quoted(got)}"
        )
    return None if _same(wanted, got) else f"{path}: expected {_quoted(wanted)}, got {_quoted(got)}"


def _same(wanted: Any, got: Any) -> bool:
    """Whether two values are equal in value and type at every level: in Python `True == 1`."""
    if _kind(wanted) != _kind(got):
        return False
    if isinstance(wanted, list):
        return len(wanted) == len(got) and all(
            _same(a, b) for a, b in zip(wanted, got, strict=True)
        )
    if isinstance(wanted, dict):
        return wanted.keys() == got.keys() and all(
            _same(value, got[key]) for key, value in wanted.items()
        )
    return bool(wanted == got)


def _kind(value: Any) -> str:
    if value is None:
        return "value"
    kinds = (
        (bool, "boolean"),
        ((int, float), "number"),
        (str, "string"),
        (list, "list"),
        (dict, "object"),
    )
    return next((name for types, name in kinds if isinstance(value, types)), "value")


def _quoted(value: Any) -> str:
    return one_line(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), 80
    )
