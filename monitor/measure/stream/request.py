"""What is sent to the server for one canary. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monitor.model import Probe

#: In place of the HTTP library's own words, which quote the header and with it the key.
UNSENDABLE = (
    "the request cannot be sent: the API key or another header holds a line break or "
    "a character that no header can carry"
)


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """One POST: where, what, and the id that joins it to the server's log (`X-Request-Id`)."""

    path: str
    body: dict[str, Any]
    request_id: str


def canary_request(
    probe: Probe, model: str | None, request_id: str, cache_salt: str
) -> CanaryRequest:
    """The request of a probe. A fresh `cache_salt` keeps the prefix cache out of the
    measurement.
    """
    sampling = dict(probe.sampling)
    logprobs = sampling.pop("logprobs", None)
    body: dict[str, Any] = {
        "max_tokens": probe.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": cache_salt,
        # the only exact count of tokens a chunk, and the base of the quality gate
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


def tokenize_body(probe: Probe, model: str | None) -> dict[str, Any]:
    """The body for /tokenize that counts this probe's prompt exactly as the server will see it."""
    body: dict[str, Any] = {} if model is None else {"model": model}
    if probe.endpoint == "chat":
        kwargs = probe.sampling.get("chat_template_kwargs")
        return (
            body
            | {"messages": [dict(m) for m in probe.messages or ()]}
            | ({"chat_template_kwargs": kwargs} if kwargs else {})
        )
    return body | {"prompt": probe.prompt}
