"""The plain JSON endpoints of a server: version, models, tokenizer. Short answers, short time-outs,
one exception type.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from monitor.errors import UNMEASURED, USAGE, UserError
from monitor.measure.stream.answer import LARGEST, error_message, shortened
from monitor.measure.stream.request import UNSENDABLE, tokenize_body
from monitor.model import Probe
from monitor.text import one_line, whole_text

LONGEST_BODY = (
    64 * 1024 * 1024
)  # bytes; the scores of 4,096 tokens with 20 alternatives each are a tenth of it
LONGEST_MESSAGE = 300  # characters of a server's own words
MODELS_NAMED = 10


class ServerUnreachableError(UserError):
    """Nobody answers at the address; the text says how it failed."""


class ServerRefusedError(UserError):
    """The server answered, but not with what was asked: `status` and its own message."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.exit_code = USAGE if status in {401, 403, 404} else UNMEASURED
        mend = "; give the API key with api_key_env or api_key_file" if status == 401 else ""
        told = one_line(message, LONGEST_MESSAGE)
        super().__init__(
            f"the server answered HTTP {status}: {told}{mend}" if status != 200 else told
        )


class SeveralModelsError(UserError):
    """The server serves several base models and nobody said which one is meant."""

    exit_code = USAGE

    def __init__(self, url: str, names: Sequence[str]) -> None:
        told = ", ".join(one_line(name, 100) for name in names[:MODELS_NAMED]) + (
            ", …" if len(names) > MODELS_NAMED else ""
        )
        super().__init__(
            f"{url} serves several models: {told}; say which one with `model:` under the target"
        )


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of /v1/models; only the parts that stay the same between calls."""

    id: str
    root: str | None
    parent: str | None
    max_model_len: int | None

    @property
    def is_base(self) -> bool:
        """A LoRA adapter names its base model as parent."""
        return self.parent is None


async def get_json(
    http: httpx.AsyncClient, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0
) -> Any:
    """GET, or POST where there is a body, within `timeout_s` all told. Raises
    ServerUnreachableError or ServerRefusedError.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status, content = await _asked(http, path, body)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        why = one_line(str(error) or type(error).__name__, LONGEST_MESSAGE)
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            why = f"no answer to {path} within {timeout_s:g} s"
        elif isinstance(error, httpx.LocalProtocolError):
            why = UNSENDABLE
        raise ServerUnreachableError(
            f"the server at {http.base_url} cannot be reached: {why}"
        ) from None
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    if status != 200:
        raise ServerRefusedError(
            status, error_message(parsed) if parsed is not None else shortened(content)
        )
    if parsed is None:
        raise ServerRefusedError(
            200, f"{path} answers with something other than JSON: {shortened(content)}"
        )
    return parsed


async def _asked(
    http: httpx.AsyncClient, path: str, body: dict[str, Any] | None
) -> tuple[int, bytes]:
    """Status and body of one answer."""
    method = "GET" if body is None else "POST"
    async with http.stream(method, path, json=body, follow_redirects=body is None) as response:
        content = bytearray()
        async for part in response.aiter_bytes():
            content += part
            if len(content) > LONGEST_BODY:
                raise ServerRefusedError(
                    200,
                    (
                        f"{path} answers with more than {LONGEST_BODY >> 20} MiB, which is no "
                        "answer to this"
                    ),
                )
        return response.status_code, bytes(content)


async def version(http: httpx.AsyncClient) -> str | None:
    """What /version says; None where the answer names none."""
    found = await get_json(http, "/version")
    return _text(found.get("version")) if isinstance(found, dict) else None


async def models(http: httpx.AsyncClient) -> tuple[ServedModel, ...]:
    """The entries of /v1/models in the server's order."""
    found = await get_json(http, "/v1/models")
    listed = found.get("data") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ServerRefusedError(200, "/v1/models answers without a list of models")
    return tuple(
        ServedModel(
            whole_text(c["id"]),
            _text(c.get("root")),
            _text(c.get("parent")),
            _whole(c.get("max_model_len")),
        )
        for c in listed
        if isinstance(c, dict) and isinstance(c.get("id"), str)
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """What /tokenize says of a text."""

    count: int
    ids: tuple[int, ...]
    max_model_len: int | None


async def tokenize(http: httpx.AsyncClient, body: dict[str, Any]) -> Tokens:
    """Token ids of a prompt or of messages through the chat template, without any work for the
    GPU.
    """
    found = await get_json(http, "/tokenize", body)
    count = _whole(found.get("count")) if isinstance(found, dict) else None
    if count is None:
        raise ServerRefusedError(200, "/tokenize answers without a count")
    tokens = found.get("tokens")
    ids = tuple(i for i in tokens if _whole(i) is not None) if isinstance(tokens, list) else ()
    return Tokens(count, ids, _whole(found.get("max_model_len")))


async def prompt_length(http: httpx.AsyncClient, probe: Probe, model: str | None) -> int:
    """How many tokens a probe's prompt is on this server."""
    return (await tokenize(http, tokenize_body(probe, model))).count


def _text(value: Any) -> str | None:
    return whole_text(value) if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
        else None
    )


def the_one_model(url: str, served: Sequence[ServedModel]) -> str | None:
    """The served name to ask for. Several names of one model are one; several base models are a
    question for the user.
    """
    bases = [model for model in served if model.is_base]
    if len({model.root for model in bases}) > 1:
        raise SeveralModelsError(url, [model.id for model in bases])
    return bases[0].id if bases else None
