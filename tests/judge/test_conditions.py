"""The conditions of `expect:`, each with the exact words a person reads."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.judge.conditions import complaint, json_in
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
        ("The three colours are red, yellow, blue", {"similarity": "The three colours are red, yellow and blue", "floor": 0.8}),
        ("x", {"finish_reason": "stop"}),
        ("I’m sorry, but I can’t help with that.", {"refusal": ()}),
        ("Of course!", {"refusal": (), "negate": True}),
    ],
)
def test_an_answer_that_is_as_expected_draws_no_complaint(output: str, condition: dict[str, Any]) -> None:
    assert why(output, **condition) is None


@pytest.mark.parametrize(
    ("output", "condition", "words"),
    [
        ("Tokyo", {"equals": "Paris"}, "expected 'Paris', got 'Tokyo'"),
        ("Maybe", {"any_of": ("Yes", "No")}, "expected one of 'Yes', 'No', got 'Maybe'"),
        ("Tokyo", {"not_contains": "Tokyo"}, "expected no 'Tokyo' in the answer, got 'Tokyo'"),
        ("x", {"regex": "^y"}, "expected a match of /^y/, got 'x'"),
        (INVOICE.replace("Acme", "Globex"), {"json_fields": {"vendor": "Acme"}}, "vendor: expected Acme, got Globex"),
        (INVOICE.replace("1043", '"1043"'), {"json_fields": {"invoice": 1043}}, "invoice: expected the number 1043, got the text 1043"),
        (INVOICE, {"json_fields": {"due": "2026-12-31"}}, "due: missing"),
        (INVOICE, {"json_schema": {"properties": {"vendor": {"type": "integer"}}}}, "vendor: 'Acme' is not of type 'integer'"),
        ("17 plus 25 equals 43.", {"number": 42.0}, "expected the number 42, got 43"),
        ("none", {"number": 42.0}, "expected the number 42, got no number: 'none'"),
        ("abc", {"similarity": "xyz", "floor": 0.5}, "expected at least 0.50 alike 'xyz', got 0.00: 'abc'"),
        ("Of course!", {"refusal": ()}, "expected a refusal, got 'Of course!'"),
        ("It is Paris", {"contains": "Paris", "negate": True}, "expected not to hold, but does: contains 'Paris', got 'It is Paris'"),
    ],
)
def test_a_wrong_answer_is_told_in_words_that_name_what_is_wrong(output: str, condition: dict[str, Any], words: str) -> None:
    assert why(output, **condition) == words


def test_a_cut_off_json_is_told_from_a_broken_one_and_from_none() -> None:
    assert (why(INVOICE[:30], json_fields={"vendor": "Acme"}) or "").startswith("the JSON is cut off")
    assert (why('{"vendor" "Acme"}', json_fields={"vendor": "Acme"}) or "").startswith("the JSON is broken")
    assert (why("I cannot", json_fields={"vendor": "Acme"}) or "").startswith("the answer is not JSON")


def test_an_answer_that_ended_otherwise_is_told() -> None:
    assert complaint(Expectation(finish_reason="stop"), "x", "length") == "expected finish_reason stop, got length"


def test_true_is_no_number_and_one_is_not_true() -> None:
    assert why('{"ok": true}', json_fields={"ok": 1}) == "ok: expected the number 1, got the truth value true"


def test_json_is_found_inside_a_sentence() -> None:
    assert json_in('Sure: {"a": [1, 2]} as asked') == {"a": [1, 2]}
