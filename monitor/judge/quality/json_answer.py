"""The JSON in an answer: found in fences and sentences, read strictly, held against a schema or
named values. Pure.

Nothing is ever fetched: a reference of a schema is looked for in the schema itself and nowhere
else.
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
_BEGUN = re.compile(
    r"\{\s*(?:[\"']|\w+\s*:)|\[\s*[{\[\"]"
)  # a brace or bracket that can only be meant as JSON
LONGEST_MESSAGE = 160
MOST_TRIED = 100  # places where JSON may begin: a model may write brackets for ever


class _TwiceError(ValueError):
    """What is there is JSON, and says two things."""


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a name that stands twice each reader takes another one (RFC 8259 section 4), so nobody
    knows what was answered.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found and not _same(found[name], value):
            raise _TwiceError(f"{name} stands in it as {_told(found[name])} and as {_told(value)}")
        found[name] = value
    return found


#: Python would read NaN and Infinity, which no other reader of JSON does.
_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object)


def json_in(output: str) -> Any:
    """The JSON value of an answer, also inside a fence or a sentence: the first object, else the
    longest list. Raises ValueError with a reason for people.
    """
    text = output.strip()
    try:
        for candidate in (text, *(fence[1] for fence in islice(_FENCE.finditer(text), MOST_TRIED))):
            try:
                return _DECODER.decode(candidate)
            except _TwiceError as error:
                raise _broken(candidate, 0, error) from None
            except ValueError:
                continue
        return _json_inside(text)
    except RecursionError:
        raise ValueError(f"the JSON is nested too deeply to be read: {shown(text)}") from None


def _json_inside(text: str) -> Any:
    """A footnote such as [1] is JSON too, so the first bracket is not always the one that is
    meant.
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
            if _BEGUN.match(text, start.start()):  # what stands inside of it would be a part only
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
    """The first thing, by its place in the value, that the schema (2020-12) does not allow."""
    errors = Draft202012Validator(dict(schema), registry=Registry()).iter_errors(value)
    try:
        problem = min(errors, key=lambda error: list(map(str, error.absolute_path)), default=None)
    except RecursionError:
        return "the JSON is nested too deeply to be held against the schema"
    if problem is None:
        return None
    place = ".".join(map(str, problem.absolute_path)) or "the JSON"
    return f"{both_ends(place, LONGEST_MESSAGE)}: {both_ends(problem.message, LONGEST_MESSAGE)}"


def fields_complaint(wanted: Mapping[str, Any], value: Any) -> str | None:
    """The first of the named values that is missing, of another kind or another one."""
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
            f"{path}: expected the {_kind(wanted)} {_told(wanted)}, got the {_kind(got)} "
            f"{_told(got)}"
        )
    return None if _same(wanted, got) else f"{path}: expected {_told(wanted)}, got {_told(got)}"


def _same(wanted: Any, got: Any) -> bool:
    """Equal in value and kind, all the way down: in Python `True == 1`."""
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
        (bool, "truth value"),
        ((int, float), "number"),
        (str, "text"),
        (list, "list"),
        (dict, "object"),
    )
    return next((name for types, name in kinds if isinstance(value, types)), "value")


def _told(value: Any) -> str:
    return one_line(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), 80
    )
