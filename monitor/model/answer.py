"""An answer as the quality gate sees it, and the pins that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer with its log-probability and the most likely alternatives, in nat."""

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
    """One accepted answer: its tokens with their log-probabilities, and how many of the repeats at
    pinning gave it.
    """

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish_reason: str | None
    count: int = 1
    # for each token, the most likely tokens at its position with their log-probabilities
    tops: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned reference for a probe under a fingerprint. It judges until it is retired."""

    id: int
    target: str
    probe: str
    revision: str
    fingerprint: str | None  # digest of the configuration it was recorded under
    reason: str
    author: str
    created_at: datetime
    expires_at: datetime
    outputs: tuple[PinnedOutput, ...]
    prompt_tokens: int | None
    # the largest logprob_shift between repeats at pinning: movement without any change
    noise_nat: float | None
    ttft_ms: tuple[float, ...] = ()
    decode_tok_s: tuple[float, ...] = ()
    retired_at: datetime | None = None

    @property
    def repeats(self) -> int:
        """The number of answers that the pin was made of."""
        return sum(output.count for output in self.outputs)
