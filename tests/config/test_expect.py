"""Conditions that can only be a mistake are refused where they stand, and not at three in the
morning.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from monitor.config.expect import Expect


def refused(**condition: Any) -> str:
    """What is said of it."""
    with pytest.raises(ValidationError) as told:
        Expect.model_validate(condition)
    return "; ".join(str(problem["msg"]) for problem in told.value.errors())


@pytest.mark.parametrize(
    "condition",
    [
        {"contains": ""},
        {"not_contains": ""},
        {"regex": ""},
        {"equals": " "},
        {"any_of": ["Yes", ""]},
        {"similarity": ""},
        {"finish_reason": ""},
        {"refusal": []},
        {"refusal": [""]},
    ],
)
def test_an_empty_text_is_refused(condition: dict[str, Any]) -> None:
    assert "is empty" in refused(**condition)


@pytest.mark.parametrize(
    "condition",
    [{"number": float("nan")}, {"number": float("inf")}, {"number": 1, "tolerance": float("inf")}],
)
def test_a_number_that_is_none_is_refused(condition: dict[str, Any]) -> None:
    assert "must be a finite number" in refused(**condition)


def test_a_tolerance_or_a_floor_beside_another_condition_is_refused() -> None:
    assert "tolerance is allowed only with number" in refused(contains="x", tolerance=2)
    assert "floor is allowed only with similarity" in refused(number=1, floor=0.5)
    assert Expect(number=1, tolerance=0.5).expectation().tolerance == 0.5


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "#/$defs/nope"}, "refers to '#/$defs/nope', which is not in it"),
        (
            {"properties": {"a": {"items": {"$ref": "#/$defs/nope"}}}},
            "refers to '#/$defs/nope', which is not in it",
        ),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "nothing is fetched"),
        ({"$ref": "#/x", "x": {"$ref": "#/y"}}, "refers to '#/y'"),
        ({"$ref": "#/required/0", "required": ["a"]}, "which is not a schema"),
        ({"$ref": "#"}, "refers to itself"),
        ({"properties": {"a": {"not": {"$ref": "#/properties/a"}}}}, "refers to itself"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
            "refers to itself",
        ),
        ({"properties": {"a": {"pattern": "("}}}, "is not a JSON schema"),
        ({"type": "strin"}, "is not a JSON schema"),
    ],
)
def test_a_schema_that_no_answer_could_be_held_against_is_refused(
    schema: dict[str, Any], words: str
) -> None:
    assert words in refused(json_schema=schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": {"child": {"$ref": "#"}}},
        {"$defs": {"text": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/text"}}},
        {
            "$id": "http://me/x",
            "$defs": {"q": {"$id": "y", "$anchor": "A"}},
            "properties": {"k": {"$ref": "y#A"}},
        },
        {"const": {"$ref": "#/no reference, a value"}},
        {"$dynamicAnchor": "n", "properties": {"c": {"$dynamicRef": "#n"}}},
        {"properties": {"a": True, "b": False}},
    ],
)
def test_a_schema_that_refers_to_its_own_parts_is_taken(schema: dict[str, Any]) -> None:
    assert Expect.model_validate({"json_schema": schema}).json_schema == schema


def test_a_schema_that_holds_itself_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["allOf"] = [schema]
    assert "nested too deeply" in refused(json_schema=schema)
