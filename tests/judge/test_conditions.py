"""The conditions of `expect:`, each with the exact words a person reads."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from monitor.judge.quality.conditions import complaint, json_in
from monitor.model import Expectation

INVOICE = '{"invoice": 1043, "vendor": "Acme", "amount": 250.0, "lines": [{"sku": "A1"}]}'


def why(output: str, finish_reason: str | None = "stop", **condition: Any) -> str | None:
    return complaint(Expectation(**condition), output, finish_reason)


@pytest.mark.parametrize(
    ("output", "condition"),
    [
        (" Guten Morgen\n", {"equals": "Guten Morgen"}),
        ("Yes.", {"any_of": ("Yes", "Yes.")}),
        ("It is Paris.", {"contains": "Paris"}),
        ("It is Paris.", {"not_contains": "Tokyo"}),
        ("The answer: 42", {"regex": r"\b42\b"}),
        (INVOICE, {"json_fields": {"vendor": "Acme", "amount": 250, "lines.0.sku": "A1"}}),
        (f"Here it is:\n```json\n{INVOICE}\n```", {"json_fields": {"invoice": 1043}}),
        (INVOICE, {"json_schema": {"type": "object", "required": ["vendor"]}}),
        ("17 plus 25 equals 42.", {"number": 42.0}),
        ("about 1,250.5 EUR", {"number": 1250.0, "tolerance": 1.0}),
        (
            "The three colours are red, yellow, blue",
            {"similarity": "The three colours are red, yellow and blue", "floor": 0.8},
        ),
        ("x", {"finish_reason": "stop"}),
        ("I’m sorry, but I can’t help with that.", {"refusal": ()}),
        ("Of course!", {"refusal": (), "negate": True}),
    ],
)
def test_an_answer_that_is_as_expected_draws_no_complaint(
    output: str, condition: dict[str, Any]
) -> None:
    assert why(output, **condition) is None


@pytest.mark.parametrize(
    ("output", "condition", "words"),
    [
        ("Tokyo", {"equals": "Paris"}, "expected 'Paris', got 'Tokyo'"),
        ("Maybe", {"any_of": ("Yes", "No")}, "expected one of 'Yes', 'No', got 'Maybe'"),
        ("Tokyo", {"not_contains": "Tokyo"}, "expected no 'Tokyo' in the answer, got 'Tokyo'"),
        ("x", {"regex": "^y"}, "expected a match of /^y/, got 'x'"),
        (
            INVOICE.replace("Acme", "Globex"),
            {"json_fields": {"vendor": "Acme"}},
            "vendor: expected Acme, got Globex",
        ),
        (
            INVOICE.replace("1043", '"1043"'),
            {"json_fields": {"invoice": 1043}},
            "invoice: expected the number 1043, got the string 1043",
        ),
        (INVOICE, {"json_fields": {"due": "2026-12-31"}}, "due: missing"),
        (
            INVOICE,
            {"json_schema": {"properties": {"vendor": {"type": "integer"}}}},
            "vendor: 'Acme' is not of type 'integer'",
        ),
        ("17 plus 25 equals 43.", {"number": 42.0}, "expected the number 42, got 43"),
        ("none", {"number": 42.0}, "expected the number 42, got no number: 'none'"),
        (
            "abc",
            {"similarity": "xyz", "floor": 0.5},
            "expected a similarity of 0.50 to 'xyz', got 0.00: 'abc'",
        ),
        ("Of course!", {"refusal": ()}, "expected a refusal, got 'Of course!'"),
        (
            "It is Paris",
            {"contains": "Paris", "negate": True},
            "the negated condition holds: contains 'Paris', got 'It is Paris'",
        ),
    ],
)
def test_a_wrong_answer_is_told_in_words_that_name_what_is_wrong(
    output: str, condition: dict[str, Any], words: str
) -> None:
    assert why(output, **condition) == words


def test_a_cut_off_json_is_told_from_a_broken_one_and_from_none() -> None:
    assert (why(INVOICE[:30], json_fields={"vendor": "Acme"}) or "").startswith(
        "the JSON is cut off"
    )
    assert (why('{"vendor" "Acme"}', json_fields={"vendor": "Acme"}) or "").startswith(
        "the JSON is broken"
    )
    assert (why("I cannot", json_fields={"vendor": "Acme"}) or "").startswith(
        "the answer is not JSON"
    )


def test_an_answer_that_ended_otherwise_is_told() -> None:
    assert (
        complaint(Expectation(finish_reason="stop"), "x", "length")
        == "expected finish_reason stop, got length"
    )


def test_true_is_no_number_and_one_is_not_true() -> None:
    assert (
        why('{"ok": true}', json_fields={"ok": 1})
        == "ok: expected the number 1, got the boolean true"
    )


def test_json_is_found_inside_a_sentence() -> None:
    assert json_in('Sure: {"a": [1, 2]} as asked') == {"a": [1, 2]}


# ---- what a model may write


@pytest.mark.parametrize("output", ["[" * 200_000, '{"a":' * 5000, "[" * 2000 + "]" * 2000])
@pytest.mark.parametrize(
    "condition", [{"json_fields": {"a": 1}}, {"json_schema": {"type": "object"}}]
)
def test_json_that_is_nested_without_end_fails_like_any_other_broken_one(
    output: str, condition: dict[str, Any]
) -> None:
    assert (why(output, **condition) or "").startswith("the JSON is nested too deeply to parse")


def test_json_nested_deeper_than_a_recursive_schema_can_follow_is_a_complaint() -> None:
    tree = {"properties": {"a": {"$ref": "#"}}}
    assert (
        why('{"a":' * 400 + "1" + "}" * 400, json_schema=tree)
        == "the JSON is nested too deeply to validate"
    )
    assert why('{"a": {"a": 1}}', json_schema=tree) is None


def test_a_schema_fetches_nothing() -> None:
    asked: list[str] = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.json"
        with pytest.raises(Exception, match="Unresolvable"):
            why('{"a": 1}', json_schema={"$ref": url})
        with pytest.raises(TimeoutError):
            asked.append(str(server.accept()))
    assert asked == []


@pytest.mark.parametrize("text", ["NaN", "-Infinity"])
def test_what_only_python_takes_for_json_is_none(text: str) -> None:
    told = why(f'{{"amount": {text}}}', json_schema={"properties": {"amount": {"type": "number"}}})
    assert (told or "").startswith(f"the JSON is broken: {text} is not JSON")


def test_a_name_with_two_values_is_no_answer_and_one_that_is_repeated_is() -> None:
    told = why(
        'Sure: {"bill": {"vendor": "Globex", "vendor": "Acme"}}',
        json_fields={"bill.vendor": "Acme"},
    )
    assert (told or "").startswith("the JSON is broken: vendor has two values, Globex and Acme")
    assert why('{"vendor": "Acme", "vendor": "Acme"}', json_fields={"vendor": "Acme"}) is None
    fences = (
        '```json\n{"vendor": "Globex", "vendor": "Acme"}\n```\nor\n```json\n{"vendor": "Acme"}\n```'
    )
    assert (why(fences, json_fields={"vendor": "Acme"}) or "").startswith(
        "the JSON is broken: vendor has two values, Globex and Acme"
    )


@pytest.mark.parametrize(
    ("output", "wanted", "words"),
    [
        (
            '{"items": [true, false]}',
            {"items": [1, 0]},
            "items: expected [1, 0], got [true, false]",
        ),
        (
            '{"a": {"paid": 1}}',
            {"a": {"paid": True}},
            'a: expected {"paid": true}, got {"paid": 1}',
        ),
        ('{"a": [1, 2]}', {"a": [1, 2, 3]}, "a: expected [1, 2, 3], got [1, 2]"),
        ('{"a": {"b": 1, "c": [2.0]}}', {"a": {"c": [2], "b": 1}}, None),
    ],
)
def test_true_is_no_one_inside_lists_and_objects_either(
    output: str, wanted: dict[str, Any], words: str | None
) -> None:
    assert why(output, json_fields=wanted) == words


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ('As per [1]: {"vendor": "Acme"}', {"vendor": "Acme"}),
        ('As [see below] says {so}: {"vendor": "Acme"} [2]', {"vendor": "Acme"}),
        ("See [1]: [3, 4, 5]", [3, 4, 5]),
        ('```python\nx = {}\n```\n```json\n{"a": 1}\n```', {"a": 1}),
    ],
)
def test_a_footnote_is_not_taken_for_the_answer(output: str, value: Any) -> None:
    assert json_in(output) == value


def test_a_part_of_an_object_that_is_cut_off_is_not_taken_for_the_whole() -> None:
    cut = INVOICE.removesuffix("}")
    assert (why(f"Here: {cut}", json_fields={"lines.0.sku": "A1"}) or "").startswith(
        "the JSON is cut off"
    )


def test_json_that_is_to_be_otherwise_must_be_there() -> None:
    assert why('{"vendor": "Acme"}', json_fields={"vendor": "Globex"}, negate=True) is None
    assert (
        why("Sorry, what?", json_fields={"vendor": "Globex"}, negate=True)
        == "the answer is not JSON: 'Sorry, what?'"
    )
    assert why("", json_schema={"type": "object"}, negate=True) == "the answer is not JSON: ''"


def test_what_a_model_writes_into_a_field_is_told_short_and_printable() -> None:
    told = (
        why(
            json.dumps({"vendor": "\x1b]0;owned\x07\nWARNING all is well" + "x" * 1_000_000}),
            json_fields={"vendor": "Acme"},
        )
        or ""
    )
    assert told.isprintable()
    assert len(told) < 120
    assert told.startswith("vendor: expected Acme, got \\x1b]0;owned\\x07 WARNING all is well")
    told = (
        why(
            json.dumps({"v\x1b": "x" * 1_000_000}),
            json_schema={"additionalProperties": {"type": "integer"}},
        )
        or ""
    )
    assert told.isprintable()
    assert len(told) < 400
    assert told.endswith("is not of type 'integer'")


def test_a_minus_of_any_shape_and_a_decimal_comma_count() -> None:
    assert why("It is \u22125 °C.", number=5.0) == "expected the number 5, got -5"
    assert why("Es sind 1,5 Liter", number=15.0) == "expected the number 15, got 1.5"
