"""The conditions under `expect:` in a probe file. An invalid pattern or schema is refused when the
file is read, not when an answer is judged.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

from pydantic import Field, field_validator, model_validator

from monitor.config.block import ConfigBlock
from monitor.config.jsonschemas import schema_problem
from monitor.model import Expectation

V = TypeVar("V")
_CONDITIONS = (
    "pinned",
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
    "refusal",
)


class Expect(ConfigBlock):
    """One condition on the answer. All conditions of a probe must hold. An entry has exactly one of
    these keys; `not: true` inverts it.
    """

    pinned: bool | None = Field(
        default=None,
        description="Judge against the recorded pin (`vllm-canary pin`).",
        examples=[True],
    )
    equals: str | None = Field(
        default=None,
        description="The whole answer, without leading and trailing white space.",
        examples=["Guten Morgen"],
    )
    any_of: list[str] | None = Field(
        default=None,
        min_length=1,
        description="The whole answer is one of these.",
        examples=['["Yes", "Yes."]'],
    )
    contains: str | None = Field(
        default=None, description="A text that the answer must contain.", examples=["Paris"]
    )
    not_contains: str | None = Field(
        default=None, description="A text that the answer must not contain.", examples=["Tokyo"]
    )
    regex: str | None = Field(
        default=None,
        description="A regular expression (Python) that must match somewhere in the answer.",
        examples=["[Pp]aris"],
    )
    json_schema: dict[str, Any] | None = Field(
        default=None, description="The JSON in the answer is valid against this schema (2020-12)."
    )
    json_fields: dict[str, Any] | None = Field(
        default=None,
        min_length=1,
        description="Values inside the JSON, by dotted path.",
        examples=["{vendor: Acme}"],
    )
    number: float | None = Field(
        default=None, description="The last number in the answer.", examples=[42]
    )
    tolerance: float = Field(
        default=0.0, ge=0, description="The maximum deviation from `number`.", examples=[0.5]
    )
    similarity: str | None = Field(
        default=None, description="A text that the answer resembles (normalised edit distance)."
    )
    floor: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="The minimum `similarity`; 1 is identical text.",
        examples=[0.9],
    )
    finish_reason: str | None = Field(
        default=None, description="The finish reason of the answer.", examples=["stop"]
    )
    refusal: bool | list[str] | None = Field(
        default=None,
        description="The answer is a refusal, by the default phrases or your own.",
        examples=[True],
    )
    negate: bool = Field(
        default=False, alias="not", description="The condition must not hold.", examples=[True]
    )

    @field_validator("contains", "not_contains", "regex")
    @classmethod
    def _says_something(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("is empty; every answer contains the empty text")
        return value

    @field_validator("equals", "any_of", "similarity", "finish_reason", "refusal")
    @classmethod
    def _not_blank(cls, value: V) -> V:
        texts = value if isinstance(value, list) else [value]
        if value == [] or any(isinstance(text, str) and not text.strip() for text in texts):
            raise ValueError("is empty; an empty answer is always a failure and needs no condition")
        return value

    @field_validator("number", "tolerance")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"is {value}; it must be a finite number")
        return value

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is {value!r}, which is not a regular expression: {error}") from None
        return value

    @field_validator("json_schema")
    @classmethod
    def _is_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        problem = None if value is None else schema_problem(value)
        if problem is not None:
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _one_condition(self) -> Expect:
        if sum(getattr(self, name) is not None for name in _CONDITIONS) != 1:
            raise ValueError("give one condition per entry: `- contains: text` or `- equals: text`")
        if self.refusal is False or self.pinned is False:
            raise ValueError("give `not: true` with it instead of false")
        if self.pinned and self.negate:
            raise ValueError("give pinned without `not`")
        for name, condition in (("tolerance", "number"), ("floor", "similarity")):
            if name in self.model_fields_set and getattr(self, condition) is None:
                raise ValueError(f"{name} is allowed only with {condition}")
        return self

    def expectation(self) -> Expectation:
        """The condition for the judges."""
        phrases = tuple(self.refusal) if isinstance(self.refusal, list) else ()
        return Expectation(
            equals=self.equals,
            any_of=None if self.any_of is None else tuple(self.any_of),
            contains=self.contains,
            not_contains=self.not_contains,
            regex=self.regex,
            json_schema=self.json_schema,
            json_fields=self.json_fields,
            number=self.number,
            similarity=self.similarity,
            finish_reason=self.finish_reason,
            refusal=None if self.refusal is None else phrases,
            negate=self.negate,
            tolerance=self.tolerance,
            floor=self.floor,
        )
