"""The plain JSON endpoints of a server: version, models, tokenizer. Short answers, short time-outs,
and two exceptions: unreachable and refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from monitor.errors import UNMEASURED, USAGE, UserError
from monitor.measure.json_values import (
    error_message,
    items,
    members,
    shortened,
    text,
    whole_number,
)
from monitor.measure.stream.request import UNSENDABLE, tokenize_body
from monitor.model import Probe
from monitor.text import one_line

#: In bytes; the scores of 4,096 tokens with 20 alternatives each are a tenth of it.
LONGEST_BODY = 64 * 1024 * 1024
LONGEST_MESSAGE = 300  # characters of a server's own words
MODELS_NAMED = 10


class ServerUnreachableError(UserError):
    """Nothing answers at the address; the text says how it failed."""


class ServerRefusedError(UserError):
    """The server answered with an error or something unexpected: `status` and its own message."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.exit_code = USAGE if status in {401, 403, 404} else UNMEASURED
        mend = "; give the API key with api_key_env or api_key_file" if status == 401 else ""
        line = one_line(message, LONGEST_MESSAGE)
        super().__init__(
            f"the server answered HTTP {status}: {line}{mend}" if status != 200 else line
        )


class SeveralModelsError(UserError):
    """The server serves several base models and none of them is configured."""

    exit_code = USAGE

    def __init__(self, url: str, names: Sequence[str]) -> None:
        listed = ", ".join(one_line(name, 100) for name in names[:MODELS_NAMED]) + (
            ", …" if len(names) > MODELS_NAMED else ""
        )
        super().__init__(
            f"{url} serves several models: {listed}; choose one with `model:` under the target"
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
    http: httpx.AsyncClient,
    path: str,
    body: dict[str, object] | None = None,
    timeout_s: float = 5.0,
) -> object:
    """Sends GET, or POST where there is a body, within `timeout_s` in total. Raises
    ServerUnreachableError or ServerRefusedError.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status, content = await _response(http, path, body)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        why = _why(error, path, timeout_s)
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


def _why(error: Exception, path: str, timeout_s: float) -> str:
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return f"no answer to {path} within {timeout_s:g} s"
    if isinstance(error, httpx.LocalProtocolError):
        return UNSENDABLE
    return one_line(str(error) or type(error).__name__, LONGEST_MESSAGE)


async def _response(
    http: httpx.AsyncClient, path: str, body: dict[str, object] | None
) -> tuple[int, bytes]:
    """Status and body of one answer."""
    method = "GET" if body is None else "POST"
    async with http.stream(method, path, json=body, follow_redirects=body is None) as response:
        content = bytearray()
        async for part in response.aiter_bytes():
            content += part
            if len(content) > LONGEST_BODY:
                limit = f"more than {LONGEST_BODY >> 20} MiB"
                raise ServerRefusedError(200, f"{path} answers with {limit}; not read")
        return response.status_code, bytes(content)


async def version(http: httpx.AsyncClient) -> str | None:
    """The version from /version; None where the answer has none."""
    return text(members(await get_json(http, "/version")).get("version"))


async def models(http: httpx.AsyncClient) -> tuple[ServedModel, ...]:
    """The entries of /v1/models in the server's order."""
    listed = members(await get_json(http, "/v1/models")).get("data")
    if not isinstance(listed, list):
        raise ServerRefusedError(200, "/v1/models answers without a list of models")
    return tuple(
        ServedModel(
            id=name,
            root=text(members(entry).get("root")),
            parent=text(members(entry).get("parent")),
            max_model_len=whole_number(members(entry).get("max_model_len")),
        )
        for entry in listed
        if (name := text(members(entry).get("id"))) is not None
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """The answer of /tokenize to a text."""

    count: int
    ids: tuple[int, ...]
    max_model_len: int | None


async def tokenize(http: httpx.AsyncClient, body: dict[str, object]) -> Tokens:
    """Token ids of a prompt or of messages through the chat template, without any work for the
    GPU.
    """
    found = members(await get_json(http, "/tokenize", body))
    count = whole_number(found.get("count"))
    if count is None:
        raise ServerRefusedError(200, "/tokenize answers without a count")
    ids = tuple(i for i in map(whole_number, items(found.get("tokens"))) if i is not None)
    return Tokens(count, ids, whole_number(found.get("max_model_len")))


async def prompt_length(http: httpx.AsyncClient, probe: Probe, model: str | None) -> int:
    """The number of tokens of a probe's prompt on this server."""
    return (await tokenize(http, tokenize_body(probe, model))).count


def the_one_model(url: str, served: Sequence[ServedModel]) -> str | None:
    """The served model name to request. Several names of one model are equivalent; of several base
    models the user must choose one.
    """
    bases = [model for model in served if model.is_base]
    if len({model.root for model in bases}) > 1:
        raise SeveralModelsError(url, [model.id for model in bases])
    return bases[0].id if bases else None
