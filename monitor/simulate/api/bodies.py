"""The JSON bodies of vLLM 0.32's answers, key by key in its order (tests/captures/vllm-0.32.0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monitor.simulate.api.validation import CompletionRequest
from monitor.simulate.engine.requests import Handle
from monitor.simulate.model.language_model import VOCABULARY, Generation, LanguageModel
from monitor.simulate.model.logprobs import TokenScore

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What all parts of one answer have in common."""

    id: str
    created: int
    model: str
    fingerprint: str | None
    prompt_details: bool
    request_metrics: bool

    def chunk(self, chat: bool, choices: list[Json]) -> Json:
        """One event of a stream."""
        kind = "chat.completion.chunk" if chat else "text_completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def role_choice() -> Json:
    """The first event of a chat: no text yet."""
    return {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }


def chat_choice(
    request: CompletionRequest, generation: Generation, first: int, end: int, logprobs: Json | None
) -> Json:
    """The tokens `first` to `end` of a chat answer; the last event has the finish reason."""
    choice: Json = {
        "index": 0,
        "delta": {"content": "".join(generation.texts[first:end])},
        "logprobs": logprobs,
        "finish_reason": None,
    }
    if end == len(generation.tokens):
        choice |= {"finish_reason": generation.reason, "stop_reason": generation.stop_reason}
    return choice | {"token_ids": list(generation.tokens[first:end]) if request.token_ids else None}


def text_choice(
    request: CompletionRequest, generation: Generation, first: int, end: int, logprobs: Json | None
) -> Json:
    """The same for the completions endpoint."""
    ends = end == len(generation.tokens)
    return {
        "index": 0,
        "text": "".join(generation.texts[first:end]),
        "logprobs": logprobs,
        "finish_reason": generation.reason if ends else None,
        "stop_reason": generation.stop_reason if ends else None,
        "prompt_token_ids": list(request.prompt.ids) if request.token_ids and first == 0 else None,
        "token_ids": list(generation.tokens[first:end]) if request.token_ids else None,
    }


def logprobs_of(
    model: LanguageModel, request: CompletionRequest, generation: Generation, first: int, end: int
) -> Json | None:
    """Log-probabilities of the tokens `first` to `end` in the endpoint's own shape; None where
    they were not requested.
    """
    if request.logprobs is None:
        return None
    places = range(first, end)
    scores = [
        model.scores(request.prompt, place, generation.tokens[place], generation.batch)
        for place in places
    ]
    if request.chat:
        return {
            "content": [
                _entry(s[0]) | {"top_logprobs": [_entry(c) for c in s[: request.logprobs]]}
                for s in scores
            ]
        }
    starts = [sum(map(len, generation.texts[:place])) for place in places]
    return {
        "text_offset": starts,
        "token_logprobs": [s[0].logprob for s in scores],
        "tokens": [VOCABULARY.text(s[0].token) for s in scores],
        "top_logprobs": [
            {VOCABULARY.text(c.token): c.logprob for c in s[: max(request.logprobs, 1)]}
            for s in scores
        ],
    }


def _entry(scored: TokenScore) -> Json:
    text = VOCABULARY.token(scored.token)
    return {
        "token": text.decode("utf-8", errors="replace"),
        "logprob": scored.logprob,
        "bytes": list(text),
    }


def prompt_logprobs_of(scores: Sequence[tuple[TokenScore, ...] | None]) -> list[Json | None]:
    """Log-probabilities of the prompt's tokens, by id."""
    return [
        None
        if place is None
        else {
            str(s.token): {
                "logprob": s.logprob,
                "rank": s.rank,
                "decoded_token": VOCABULARY.text(s.token),
            }
            for s in place
        }
        for place in scores
    ]


def usage_counts(handle: Handle, completion: int) -> Json:
    """Token counts, in vLLM's order."""
    prompt = handle.request.prompt_tokens
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }


def stream_usage(frame: ResponseFrame, handle: Handle, chat: bool) -> Json:
    """Usage of the last event."""
    usage = usage_counts(handle, handle.generated)
    if frame.prompt_details:
        usage["prompt_tokens_details"] = {"cached_tokens": handle.cached} | (
            {"created_cache_tokens": 0} if chat else {}
        )
    return usage


def timing(handle: Handle) -> Json:
    """Per-request metrics; their time to first token starts when the request is scheduled, not
    when it arrives.
    """
    first, last, scheduled = handle.first_s or 0.0, handle.last_s or 0.0, handle.scheduled_s or 0.0
    decode_s, whole_s = last - first, last - scheduled
    return {
        "time_to_first_token_ms": (first - scheduled) * 1e3,
        "generation_time_ms": decode_s * 1e3,
        "queue_time_ms": (scheduled - handle.arrived_s) * 1e3,
        "mean_itl_ms": decode_s * 1e3 / (handle.generated - 1) if handle.generated > 1 else None,
        "tokens_per_second": handle.generated / whole_s if whole_s > 0 else None,
    }


def usage_chunk(frame: ResponseFrame, handle: Handle, request: CompletionRequest) -> Json:
    """The last event, without choices; null values are left out (exclude_none in
    chat_completion/serving.py).
    """
    chunk = frame.chunk(request.chat, []) | {"usage": stream_usage(frame, handle, request.chat)}
    if frame.fingerprint is not None:
        chunk["system_fingerprint"] = frame.fingerprint
    if frame.request_metrics:
        chunk["metrics"] = {
            name: value for name, value in timing(handle).items() if value is not None
        }
    return chunk


def whole(
    frame: ResponseFrame,
    handle: Handle,
    request: CompletionRequest,
    generation: Generation,
    model: LanguageModel,
) -> Json:
    """A whole answer without a stream."""
    wanted = request.prompt_logprobs
    scored: Json = {"prompt_logprobs": None, "prompt_token_ids": None}
    if wanted is not None:
        scores = model.prompt_scores(request.prompt, wanted)
        scored["prompt_logprobs"] = prompt_logprobs_of(scores)
    if request.token_ids:
        scored["prompt_token_ids"] = list(request.prompt.ids)
    logprobs = logprobs_of(model, request, generation, 0, len(generation.tokens))
    choice = _whole_choice(request, generation, logprobs, scored)
    body = frame.chunk(request.chat, [choice])
    body["object"] = "chat.completion" if request.chat else "text_completion"
    body |= {"service_tier": None, "system_fingerprint": frame.fingerprint}
    body["usage"] = _whole_usage(frame, handle)
    body |= scored if request.chat else {}
    body |= {"kv_transfer_params": None, "ec_transfer_params": None}
    speculative = {"speculative_decoding": None}
    body["metrics"] = timing(handle) | speculative if frame.request_metrics else None
    return body


def _whole_choice(
    request: CompletionRequest, generation: Generation, logprobs: Json | None, scored: Json
) -> Json:
    text = "".join(generation.texts)
    ending = {
        "finish_reason": generation.reason,
        "stop_reason": generation.stop_reason,
        "token_ids": list(generation.tokens) if request.token_ids else None,
    }
    if not request.chat:
        plain: Json = {"index": 0, "text": text, "logprobs": logprobs}
        return plain | ending | scored | {"routed_experts": None}
    message: Json = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning": None,
    }
    return {"index": 0, "message": message, "logprobs": logprobs, **ending}


def _whole_usage(frame: ResponseFrame, handle: Handle) -> Json:
    details = None
    if frame.prompt_details:
        details = {"cached_tokens": handle.cached, "created_cache_tokens": None}
        details["multimodal_tokens"] = None
    usage = usage_counts(handle, handle.generated)
    return usage | {"prompt_tokens_details": details, "completion_tokens_details": None}
