"""The request of one canary. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.model import Probe

#: Replaces the HTTP library's own message, which quotes the header and with it the key.
UNSENDABLE = (
    "the request cannot be sent: the API key or another header contains a line break or "
    "a character that is not allowed in a header"
)


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """One POST: path, body, and the id that is logged by the server too (`X-Request-Id`)."""

    path: str
    body: dict[str, object]
    request_id: str


def canary_request(
    probe: Probe, model: str | None, request_id: str, cache_salt: str
) -> CanaryRequest:
    """The request of a probe. A fresh `cache_salt` keeps the prefix cache out of the
    measurement.
    """
    sampling = dict(probe.sampling)
    logprobs = sampling.pop("logprobs", None)
    body: dict[str, object] = {
        "max_tokens": probe.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": cache_salt,
        # the only exact count of tokens per chunk, and the basis of the quality gate
        "return_token_ids": True,
        **sampling,
    }
    if model is not None:
        body["model"] = model
    if probe.priority is not None:
        body["priority"] = probe.priority
    if probe.endpoint == "chat":
        body["messages"] = [dict(message) for message in probe.messages or ()]
        if logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": logprobs}
    else:
        body["prompt"] = probe.prompt
        if logprobs is not None:
            body["logprobs"] = logprobs
    path = "/v1/chat/completions" if probe.endpoint == "chat" else "/v1/completions"
    return CanaryRequest(path, body, request_id)


def tokenize_body(probe: Probe, model: str | None) -> dict[str, object]:
    """The body for /tokenize that counts this probe's prompt exactly as the server will see it."""
    body: dict[str, object] = {} if model is None else {"model": model}
    if probe.endpoint != "chat":
        return body | {"prompt": probe.prompt}
    body["messages"] = [dict(message) for message in probe.messages or ()]
    if kwargs := probe.sampling.get("chat_template_kwargs"):
        body["chat_template_kwargs"] = kwargs
    return body
