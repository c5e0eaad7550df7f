"""An answer as the quality gate sees it, and the pins that it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer with its log-probability (nat) and the likeliest alternatives
    there.
    """

    token: str
    logprob: float | None
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObservedAnswer:
    """An answer as the quality gate sees it. Without log-probabilities `tokens` is empty."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PinnedOutput:
    """One accepted answer: its tokens with their log-probabilities, and how often it was seen at
    pinning.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish_reason: str | None
    count: int = 1
    tops: tuple[
        Mapping[str, float], ...
    ] = ()  # of each token: the likeliest there with their log-probabilities


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned reference for a probe under a fingerprint, with a reason, a date and an expiry."""

    id: int
    target: str
    probe: str
    revision: str
    fingerprint: str | None  # digest of what was served
    reason: str
    author: str
    created_at: datetime
    expires_at: datetime
    outputs: tuple[PinnedOutput, ...]
    prompt_tokens: int | None
    noise_nat: (
        float | None
    )  # the largest logprob_shift among the repeats at pinning: what moves without any change
    ttft_ms: tuple[float, ...] = ()
    decode_tok_s: tuple[float, ...] = ()
    retired_at: datetime | None = None

    @property
    def repeats(self) -> int:
        """How many answers it was made of."""
        return sum(output.count for output in self.outputs)
