"""The plain JSON endpoints of a server: version, models, tokenizer. Short answers, short time-outs, one exception type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from monitor.errors import UNMEASURED, USAGE, Told
from monitor.measure.answer import error_message, shortened
from monitor.measure.request import UNSENDABLE, tokenize_body
from monitor.model import Probe


class ServerUnreachableError(Told):
    """Nobody answers at the address; the text says how it failed."""


class ServerRefusedError(Told):
    """The server answered, but not with what was asked: `status` and its own message."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.exit_code = USAGE if status in {401, 403, 404} else UNMEASURED
        mend = "; give the API key with api_key_env or api_key_file" if status == 401 else ""
        super().__init__(f"the server answered HTTP {status}: {message}{mend}" if status != 200 else message)


class SeveralModelsError(Told):
    """The server serves several base models and nobody said which one is meant."""

    exit_code = USAGE

    def __init__(self, url: str, names: Sequence[str]) -> None:
        super().__init__(f"{url} serves several models: {', '.join(names)}; say which one with `model:` under the target")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of /v1/models; only the parts that stay the same between calls."""

    id: str
    root: str | None
    parent: str | None
    max_model_len: int | None

    @property
    def is_base(self) -> bool:
        """A LoRA adapter names its base model as parent."""
        return self.parent is None


async def get_json(http: httpx.AsyncClient, path: str, body: dict[str, Any] | None = None, timeout_s: float = 5.0) -> Any:
    """GET, or POST where there is a body. Raises ServerUnreachableError or ServerRefusedError."""
    try:
        if body is None:
            response = await http.get(path, timeout=timeout_s, follow_redirects=True)
        else:
            response = await http.post(path, json=body, timeout=timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            why = f"no answer to {path} within {timeout_s:g} s"
        elif isinstance(error, httpx.LocalProtocolError):
            why = UNSENDABLE
        raise ServerUnreachableError(f"the server at {http.base_url} cannot be reached: {why}") from None
    try:
        parsed = response.json()
    except (ValueError, RecursionError):
        parsed = None
    if response.status_code != 200:
        message = error_message(parsed) if parsed is not None else shortened(response.content)
        raise ServerRefusedError(response.status_code, message)
    if parsed is None:
        raise ServerRefusedError(200, f"{path} answers with something other than JSON: {shortened(response.content)}")
    return parsed


async def version(http: httpx.AsyncClient) -> str | None:
    """What /version says; None where the answer names none."""
    found = await get_json(http, "/version")
    value = found.get("version") if isinstance(found, dict) else None
    return value if isinstance(value, str) else None


async def models(http: httpx.AsyncClient) -> tuple[ModelCard, ...]:
    """The cards of /v1/models in the server's order."""
    found = await get_json(http, "/v1/models")
    cards = found.get("data") if isinstance(found, dict) else None
    if not isinstance(cards, list):
        raise ServerRefusedError(200, "/v1/models answers without a list of models")
    return tuple(
        ModelCard(str(c["id"]), _text(c.get("root")), _text(c.get("parent")), _whole(c.get("max_model_len")))
        for c in cards
        if isinstance(c, dict) and "id" in c
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    """What /tokenize says of a text."""

    count: int
    ids: tuple[int, ...]
    max_model_len: int | None


async def tokenize(http: httpx.AsyncClient, body: dict[str, Any]) -> Tokens:
    """Token ids of a prompt or of messages through the chat template, without any work for the GPU."""
    found = await get_json(http, "/tokenize", body)
    if not isinstance(found, dict) or not isinstance(found.get("count"), int):
        raise ServerRefusedError(200, "/tokenize answers without a count")
    ids = tuple(i for i in found.get("tokens") or () if isinstance(i, int))
    return Tokens(found["count"], ids, _whole(found.get("max_model_len")))


async def prompt_length(http: httpx.AsyncClient, probe: Probe, model: str | None) -> int:
    """How many tokens a probe's prompt is on this server."""
    return (await tokenize(http, tokenize_body(probe, model))).count


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def the_one_model(url: str, cards: Sequence[ModelCard]) -> str | None:
    """The served name to ask for. Several names of one model are one; several base models are a question for the user."""
    bases = [card for card in cards if card.is_base]
    if len({card.root for card in bases}) > 1:
        raise SeveralModelsError(url, [card.id for card in bases])
    return bases[0].id if bases else None
