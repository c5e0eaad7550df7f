"""Parses a completion request and checks it as vLLM 0.32 does, with its error bodies
(tests/captures/vllm-0.32.0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monitor.simulate.identity import Identity
from monitor.simulate.model.language_model import (
    VOCABULARY,
    AnswerLimits,
    Prompt,
    chat_ids,
    prompt_of,
)
from monitor.simulate.model.logprobs import MAX_LOGPROBS
from monitor.simulate.model.vocabulary import BOS

Json = dict[str, Any]
_BAD_SALT = re.compile(r"[@/\\\x00]")


class ApiError(Exception):
    """A request that is answered with an error body."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(body)
        self.status, self.body = status, body


def api_error(status: int, kind: str, message: str, param: str | None = None) -> ApiError:
    """An error in the shape of vLLM's API."""
    return ApiError(
        status, {"error": {"message": message, "type": kind, "param": param, "code": status}}
    )


def bad(message: str, param: str | None = None) -> ApiError:
    """400, from vLLM's own checks."""
    return api_error(400, "BadRequestError", message, param)


def invalid(kind: str, place: str, said: str, given: Any, context: str = "") -> ApiError:
    """400, from pydantic."""
    detail = f"{{'type': '{kind}', 'loc': '{place}', 'msg': '{said}', 'input': {given!r}{context}}}"
    return api_error(400, "Bad Request", f"1 validation error:\n  {detail}", place)


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One completion request."""

    chat: bool
    prompt: Prompt
    limits: AnswerLimits
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None  # candidates per token; None: no log-probabilities
    prompt_logprobs: int | None
    token_ids: bool
    cache_salt: str | None
    priority: int
    structured: bool

    @property
    def parameter_set(self) -> str:
        """What a server compiles at its first answer."""
        endpoint = "chat" if self.chat else "completions"
        return f"{endpoint}/{self.logprobs is not None}/{self.structured}"


def read_json(content: bytes, kind: str) -> Json:
    """The JSON object of a body."""
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise invalid(
            "value_error", "body", "Unsupported Media Type: Only application/json is allowed", kind
        )
    try:
        body = json.loads(content)
    except ValueError as error:
        at, why = (
            (error.pos, error.msg)
            if isinstance(error, json.JSONDecodeError)
            else (0, "invalid text")
        )
        context = f", 'ctx': {{'error': '{why}'}}"
        raise _unread(f"body.{at}", context) from None
    except RecursionError:
        raise invalid(
            "json_invalid", "body", "JSON decode error: nested too deeply", "..."
        ) from None
    if not isinstance(body, dict):
        raise invalid(
            "model_attributes_type",
            "body",
            "Input should be a valid dictionary or object to extract fields from",
            body,
        )
    return body


def _unread(place: str, context: str) -> ApiError:
    detail = (
        f"{{'type': 'json_invalid', 'loc': '{place}', 'msg': 'JSON decode error', "
        f"'input': '<dict of 0 items>'{context}}}"
    )
    return api_error(400, "Bad Request", f"1 validation error:\n  {detail}", place)


def check_model(body: Json, identity: Identity) -> None:
    """Checks that a named model is the one being served; the name is optional."""
    name = body.get("model")
    if name is not None and name != identity.served_name:
        message = f"The model `{name}` does not exist. Valid aliases: {identity.served_name}."
        raise api_error(404, "NotFoundError", message, "model")


def prompt_ids(body: Json, identity: Identity, variant: str) -> tuple[int, ...]:
    """The prompt in tokens, from `messages` or `prompt`."""
    if "messages" in body:
        messages = body["messages"]
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise invalid("list_type", "body.messages", "Input should be a valid list", messages)
        return chat_ids(messages, identity.template, variant)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return (
            *(() if body.get("add_special_tokens") is False else (BOS,)),
            *VOCABULARY.encode(prompt),
        )
    if (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(i, int) and 0 <= i < VOCABULARY.size for i in prompt)
    ):
        return tuple(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(i, int) for i in prompt):
        raise bad(f"Token id {max(prompt)} is out of vocabulary", "prompt")
    raise bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def read_request(
    body: Json, chat: bool, headers: Mapping[str, str], identity: Identity, variant: str
) -> CompletionRequest:
    """Checks a request as vLLM does. Raises ApiError."""
    check_model(body, identity)
    if chat and "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", body)
    ids = prompt_ids(
        {k: v for k, v in body.items() if k != ("prompt" if chat else "messages")},
        identity,
        variant,
    )
    stream = _flag(body, "stream")
    options = _stream_options(body, stream)
    if _whole(body, "n", 1, least=1) != 1:
        raise bad("this simulated server answers n=1 only", "n")
    _number(body, "temperature", least=0.0)
    asked = _whole(body, "prompt_logprobs", None, least=0)
    if asked and stream:
        raise bad("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    return CompletionRequest(
        chat=chat,
        prompt=prompt_of(ids),
        limits=_limits(body, chat, len(ids), identity.max_model_len),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("include_usage"))
        and bool(options.get("continuous_usage_stats")),
        logprobs=_logprobs(body, chat),
        prompt_logprobs=asked,
        token_ids=_flag(body, "return_token_ids"),
        cache_salt=_salt(body),
        priority=_whole(body, "priority", None) or _header_priority(headers),
        structured=body.get("structured_outputs") is not None
        or body.get("response_format") is not None,
    )


def _stream_options(body: Json, stream: bool) -> Json:
    options = body.get("stream_options")
    if options is not None and not stream:
        raise api_error(
            400,
            "Bad Request",
            "Stream options can only be defined when `stream=True`.",
            "stream_options",
        )
    return options if isinstance(options, dict) else {}


def _limits(body: Json, chat: bool, prompt: int, limit: int) -> AnswerLimits:
    asked = _whole(body, "max_completion_tokens", None, least=1) if chat else None
    asked = asked or _whole(body, "max_tokens", None, least=1)
    if asked is not None and asked > limit:
        message = (
            f"max_tokens={asked} cannot be greater than max_model_len={limit}. Please "
            "request fewer output tokens."
        )
        raise bad(f"{message} (parameter=max_tokens, value={asked})", "max_tokens")
    most = asked if asked is not None else (max(1, limit - prompt) if chat else 16)
    if prompt + most > limit:
        message = (
            f"This model's maximum context length is {limit} tokens. However, your "
            f"prompt contains at least {prompt} input tokens. "
        )
        message += (
            "Please reduce the length of the input prompt or the number of requested "
            "output tokens. "
        )
        raise bad(f"{message}(parameter=input_tokens, value={prompt})", "input_tokens")
    least = _whole(body, "min_tokens", 0, least=0) or 0
    if least > most:
        raise bad(
            f"min_tokens must be less than or equal to max_tokens={most}, got {least}.",
            "min_tokens",
        )
    stop = body.get("stop") or ()
    stops = (
        (stop,)
        if isinstance(stop, str)
        else tuple(stop)
        if isinstance(stop, (list, tuple))
        else (None,)
    )
    if not all(isinstance(text, str) for text in stops):
        raise invalid("list_type", "body.stop", "Input should be a valid list", stop)
    return AnswerLimits(most, least, _flag(body, "ignore_eos"), tuple(str(text) for text in stops))


def _logprobs(body: Json, chat: bool) -> int | None:
    if not chat:
        wanted = _whole(body, "logprobs", None, least=0)
        return _capped(wanted, "logprobs")
    top = _capped(_whole(body, "top_logprobs", None, least=0), "top_logprobs")
    if not _flag(body, "logprobs"):
        if top:
            raise bad("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        return None
    return top or 0


def _capped(wanted: int | None, name: str) -> int | None:
    if wanted is not None and wanted > MAX_LOGPROBS:
        raise bad(
            (
                f"Requested sample logprobs of {wanted}, which is greater than max allowed: "
                f"{MAX_LOGPROBS}"
            ),
            name,
        )
    return wanted


def _salt(body: Json) -> str | None:
    salt = body.get("cache_salt")
    if salt is None:
        return None
    if not isinstance(salt, str) or not salt or len(salt) > 128 or _BAD_SALT.search(salt):
        raise bad(
            (
                "cache_salt must be a non-empty string of at most 128 characters without '@', '/', "
                "'\\' and NUL."
            ),
            "cache_salt",
        )
    return salt


def _header_priority(headers: Mapping[str, str]) -> int:
    text = headers.get("x-vllm-priority", "0")
    try:
        return int(text)
    except ValueError:
        raise bad(f"Invalid X-Vllm-Priority header: {text!r}", "priority") from None


def _flag(body: Json, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(
            "bool_parsing",
            f"body.{name}",
            "Input should be a valid boolean, unable to interpret input",
            value,
        )
    return bool(value)


def _whole(body: Json, name: str, otherwise: int | None, least: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid("int_type", f"body.{name}", "Input should be a valid integer", value)
    if least is not None and value < least:
        raise bad(f"{name} must be at least {least}, got {value}.", name)
    return value


def _number(body: Json, name: str, least: float) -> None:
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise invalid("float_type", f"body.{name}", "Input should be a valid number", value)
    if value is not None and value < least:
        raise bad(f"{name} must be non-negative, got {value}.", name)
