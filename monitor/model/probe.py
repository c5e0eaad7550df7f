"""A probe and the conditions on its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# a probe with `same_salt_twice` records its second run under its name with this ending
AGAIN = "-again"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One condition on the answer: exactly one of the fields down to `refusal` is set. `negate`
    inverts it.
    """

    equals: str | None = None
    any_of: tuple[str, ...] | None = None
    contains: str | None = None
    not_contains: str | None = None
    regex: str | None = None
    json_schema: Mapping[str, Any] | None = None
    json_fields: Mapping[str, Any] | None = None  # dotted path in the JSON -> required value
    number: float | None = None  # the last number in the answer, within `tolerance`
    similarity: str | None = None  # a text that the answer must resemble by `floor` or more (0..1)
    finish_reason: str | None = None
    refusal: tuple[str, ...] | None = None  # phrases of a refusal; () = the default phrases
    negate: bool = False
    tolerance: float = 0.0
    floor: float = 0.9


@dataclass(frozen=True, slots=True)
class Probe:
    """One canary prompt with its sampling settings, class, conditions and schedule. Durations are
    in seconds.
    """

    name: str
    traffic_class: str
    endpoint: Literal["chat", "completions"]
    messages: tuple[Mapping[str, str], ...] | None
    prompt: str | None
    max_tokens: int
    sampling: Mapping[str, Any]
    every_s: float | None
    cron: str | None
    max_wait_s: float | None  # None: never cancelled, so that it measures the true wait
    timeout_s: float  # from the first token to the end of the answer
    expect: tuple[Expectation, ...] = ()
    priority: int | None = None
    reason: str | None = None
    # the prompt is lengthened until it fills this share of the server's context,
    context_share: float | None = None
    context_at_most: int = 4000  # but to this many tokens at most: they count against the budget
    pinned: bool = False  # judged against the recorded pin; without one it is `unpinned`
    repeats: int = 3  # the number of last runs that the gate counts,
    require: int = 2  # and how many of them must pass
    same_salt_twice: bool = False  # a second run with the same cache salt tests the prefix cache
    revision: str = ""  # digest of the definition: a changed text is a new revision

    @property
    def parameter_set(self) -> str:
        """The features of a request that a server may have to compile for: the first answer per
        process start and parameter set is `cold`.
        """
        logprobs = "logprobs" if self.sampling.get("logprobs") else "plain"
        structured = (
            "structured"
            if {"structured_outputs", "response_format"} & set(self.sampling)
            else "free"
        )
        return f"{self.endpoint}/{logprobs}/{structured}/n{self.sampling.get('n', 1)}"

    @property
    def capped(self) -> bool:
        """Whether the request is cancelled at `max_wait`; uncapped probes run in a lane of their
        own.
        """
        return self.max_wait_s is not None
