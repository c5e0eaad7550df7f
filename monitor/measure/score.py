"""What does the server think of an answer that it did not give? The pinned one is sent as part of
the prompt and scored (teacher forcing).

vLLM scores a prompt on the completions endpoint with `prompt_logprobs` and token ids as the prompt;
not in a stream, and it holds the log-probabilities of the whole prompt at once
(entrypoints/openai/completion/protocol.py; seen on 0.32). One token is generated beside it, since
`max_tokens` cannot be 0. The cost is the prompt and the pinned answer once more, as prefill.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from monitor.measure.server.api import ServerRefusedError, get_json, tokenize
from monitor.measure.stream.answer import figure
from monitor.measure.stream.request import tokenize_body
from monitor.model import ObservedAnswer, PinnedOutput, Probe, TokenLogprob
from monitor.text import whole_text

TIMEOUT_S = 30.0
MOST_TOKENS = (
    4096  # of prompt and answer together: what vLLM holds for it grows with tokens times vocabulary
)


@dataclass(frozen=True, slots=True)
class Score:
    """The pinned answer with the log-probabilities that the server gives it now, and what it cost
    in tokens.
    """

    answer: ObservedAnswer
    tokens: int


async def score(
    http: httpx.AsyncClient, probe: Probe, model: str | None, pinned: PinnedOutput
) -> Score | None:
    """Ask. None where the pin holds no token ids or is too long to be asked for.

    Raises ServerUnreachableError, or ServerRefusedError where the server does not offer it or
    answers with something else.
    """
    if not pinned.token_ids or len(pinned.token_ids) != len(pinned.tokens):
        return None
    prompt = (await tokenize(http, tokenize_body(probe, model))).ids
    if not prompt or len(prompt) + len(pinned.token_ids) > MOST_TOKENS:
        return None
    body: dict[str, Any] = {
        "prompt": [*prompt, *pinned.token_ids],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": int(probe.sampling.get("logprobs") or 1),
        "cache_salt": uuid.uuid4().hex,
    }
    if model is not None:
        body["model"] = model
    if probe.priority is not None:
        body["priority"] = probe.priority
    found = await get_json(http, "/v1/completions", body, TIMEOUT_S)
    return Score(
        ObservedAnswer(pinned.text, scored_tokens(found, pinned, len(prompt)), pinned.token_ids),
        len(body["prompt"]) + 1,
    )


def scored_tokens(found: Any, pinned: PinnedOutput, skipped: int) -> tuple[TokenLogprob, ...]:
    """The pinned tokens out of `prompt_logprobs`, of which the first `skipped` belong to the
    prompt. Raises ServerRefusedError.
    """
    choices = found.get("choices") if isinstance(found, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    entries = first.get("prompt_logprobs") if isinstance(first, Mapping) else None
    if not isinstance(entries, list) or len(entries) != skipped + len(pinned.tokens):
        raise ServerRefusedError(
            200,
            (
                "/v1/completions answers without prompt_logprobs for each token; a pinned answer "
                "cannot be scored"
            ),
        )
    return tuple(
        _token(entry, token_id, token)
        for entry, token_id, token in zip(
            entries[skipped:], pinned.token_ids, pinned.tokens, strict=True
        )
    )


def _token(entry: Any, token_id: int, token: str) -> TokenLogprob:
    """One place: `{"640": {"logprob": -8.4, "rank": 134, "decoded_token": " good"}, …}`; the token
    itself is always among them.
    """
    places = (
        {k: v for k, v in entry.items() if isinstance(v, Mapping)}
        if isinstance(entry, Mapping)
        else {}
    )
    own = places.pop(str(token_id), {})
    known = ((v.get("decoded_token"), figure(v.get("logprob"))) for v in places.values())
    top = {
        whole_text(name): value
        for name, value in known
        if isinstance(name, str) and value is not None
    }
    return TokenLogprob(token, figure(own.get("logprob")), top)
