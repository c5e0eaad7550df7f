"""The conditions under `expect:` in a probe file. A broken pattern or schema is refused where it
stands, not at three in the morning.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from monitor.config.block import Block
from monitor.config.jsonschemas import schema_problem
from monitor.model import Expectation

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


class Expect(Block):
    """One condition on the answer. All conditions of a probe must hold. Exactly one of these an
    entry, `not: true` turns it round.
    """

    pinned: bool | None = Field(
        default=None,
        description="Judge against the recorded pin (`vllm-canary pin`).",
        examples=[True],
    )
    equals: str | None = Field(
        default=None,
        description="The whole answer, white space at its ends aside.",
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
        default=None, description="A text that it must not contain.", examples=["Tokyo"]
    )
    regex: str | None = Field(
        default=None,
        description="A pattern (Python) that must be found in it.",
        examples=["[Pp]aris"],
    )
    json_schema: dict[str, Any] | None = Field(
        default=None, description="The JSON in the answer is valid under this schema (2020-12)."
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
        default=0.0, ge=0, description="How far `number` may be off.", examples=[0.5]
    )
    similarity: str | None = Field(
        default=None, description="A text that the answer resembles (normalised edit distance)."
    )
    floor: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="How much `similarity` asks for, 1 is the same text.",
        examples=[0.9],
    )
    finish_reason: str | None = Field(
        default=None, description="Why the answer ended.", examples=["stop"]
    )
    refusal: bool | list[str] | None = Field(
        default=None,
        description="The answer is a refusal, by the usual phrases or your own.",
        examples=[True],
    )
    negate: bool = Field(
        default=False, alias="not", description="The condition must not hold.", examples=[True]
    )

    @field_validator("contains", "not_contains", "regex")
    @classmethod
    def _says_something(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("is empty, and an empty text is in every answer")
        return value

    @field_validator("equals", "any_of", "similarity", "finish_reason", "refusal")
    @classmethod
    def _not_blank(cls, value: Any) -> Any:
        texts = value if isinstance(value, list) else [value]
        if value == [] or any(isinstance(text, str) and not text.strip() for text in texts):
            raise ValueError(
                "is empty; an empty answer is a failure by itself, and needs no condition"
            )
        return value

    @field_validator("number", "tolerance")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"is {value}, and no answer is compared with that; give a number")
        return value

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is {value!r}, which is no pattern: {error}") from None
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
            raise ValueError("give one condition an entry: `- contains: text` or `- equals: text`")
        if self.refusal is False or self.pinned is False:
            raise ValueError("give `not: true` beside it instead of false")
        if self.pinned and self.negate:
            raise ValueError("give pinned without `not`")
        for name, beside in (("tolerance", "number"), ("floor", "similarity")):
            if name in self.model_fields_set and getattr(self, beside) is None:
                raise ValueError(
                    f"{name} belongs to {beside}, and means nothing beside another condition"
                )
        return self

    def expectation(self) -> Expectation:
        """The condition as the judges know it."""
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
            refusal=None
            if self.refusal is None
            else tuple(self.refusal)
            if isinstance(self.refusal, list)
            else (),
            negate=self.negate,
            tolerance=self.tolerance,
            floor=self.floor,
        )
