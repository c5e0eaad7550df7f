"""Scoring a pinned answer under the server's present weights (teacher forcing): the answer is sent
as part of the prompt, and the server returns its log-probabilities.

vLLM scores a prompt on the completions endpoint with `prompt_logprobs` and token ids as the prompt;
not in a stream, and it holds the log-probabilities of the whole prompt at once
(entrypoints/openai/completion/protocol.py; measured on 0.32). One token is generated as well, since
`max_tokens` cannot be 0. The cost is a prefill of the prompt and the pinned answer.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import httpx

from monitor.measure.json_values import items, members, number
from monitor.measure.server.api import ServerRefusedError, get_json, tokenize
from monitor.measure.stream.request import tokenize_body
from monitor.model import ObservedAnswer, PinnedOutput, Probe, TokenLogprob
from monitor.text import whole_text

TIMEOUT_S = 30.0
# of prompt and answer together: vLLM's memory for the scores grows with tokens times vocabulary
MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Score:
    """The pinned answer with the log-probabilities that the server gives it now, and the cost in
    tokens.
    """

    answer: ObservedAnswer
    tokens: int


async def score(
    http: httpx.AsyncClient, probe: Probe, model: str | None, pinned: PinnedOutput
) -> Score | None:
    """Scores a pinned answer. None where the pin holds no token ids or is too long to be scored.

    Raises ServerUnreachableError, or ServerRefusedError where the server does not offer scores or
    answers with something else.
    """
    if not pinned.token_ids or len(pinned.token_ids) != len(pinned.tokens):
        return None
    prompt = (await tokenize(http, tokenize_body(probe, model))).ids
    if not prompt or len(prompt) + len(pinned.token_ids) > MOST_TOKENS:
        return None
    scored_ids = [*prompt, *pinned.token_ids]
    body: dict[str, object] = {
        "prompt": scored_ids,
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": int(probe.sampling.get("logprobs") or 1),
        "cache_salt": uuid.uuid4().hex,
    }
    if model is not None:
        body["model"] = model
    if probe.priority is not None:
        body["priority"] = probe.priority
    response = await get_json(http, "/v1/completions", body, TIMEOUT_S)
    tokens = scored_tokens(response, pinned, len(prompt))
    return Score(ObservedAnswer(pinned.text, tokens, pinned.token_ids), len(scored_ids) + 1)


def scored_tokens(response: object, pinned: PinnedOutput, skipped: int) -> tuple[TokenLogprob, ...]:
    """The pinned tokens from `prompt_logprobs`, whose first `skipped` entries belong to the prompt.
    Raises ServerRefusedError.
    """
    choices = items(members(response).get("choices"))
    entries = members(choices[0] if choices else None).get("prompt_logprobs")
    if not isinstance(entries, list) or len(entries) != skipped + len(pinned.tokens):
        raise ServerRefusedError(
            200,
            "/v1/completions answers without prompt_logprobs for each token; a pinned answer "
            "cannot be scored",
        )
    scored = zip(entries[skipped:], pinned.token_ids, pinned.tokens, strict=True)
    return tuple(_token(entry, token_id, token) for entry, token_id, token in scored)


def _token(entry: object, token_id: int, token: str) -> TokenLogprob:
    """One position: `{"640": {"logprob": -8.4, "rank": 134, "decoded_token": " good"}, …}`; the
    token itself is always among them.
    """
    positions = {k: v for k, v in members(entry).items() if isinstance(v, dict)}
    own = positions.pop(str(token_id), {})
    known = ((v.get("decoded_token"), number(v.get("logprob"))) for v in positions.values())
    top = {
        whole_text(name): value
        for name, value in known
        if isinstance(name, str) and value is not None
    }
    return TokenLogprob(token, number(own.get("logprob")), top)
