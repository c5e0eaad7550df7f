"""A simulated vLLM server in real time: the world behind vLLM 0.32's HTTP API.

One timer sleeps until the world's next event, so an idle server uses no CPU. `/-/control` is the
only route that a real server does not have.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from monitor.simulate.api.bodies import ResponseFrame
from monitor.simulate.api.completion import Completion, engine_dead
from monitor.simulate.api.control import change, state
from monitor.simulate.api.http_counts import HttpCounts
from monitor.simulate.api.metrics_page import CONTENT_TYPE, metrics_page
from monitor.simulate.api.validation import (
    ApiError,
    CompletionRequest,
    api_error,
    bad,
    check_model,
    prompt_ids,
    read_json,
    read_request,
)
from monitor.simulate.api.wire import Exchange, Listener
from monitor.simulate.engine.blocks import prefix_keys
from monitor.simulate.engine.requests import EngineRequest
from monitor.simulate.model.language_model import VOCABULARY, LanguageModel
from monitor.simulate.world import World

Json = dict[str, Any]
# a world further behind than this is set back: the machine is too slow for the load
BEHIND_S = 1.0
# paths that require the API key (entrypoints/serve/middleware/authenticate.py)
LOCKED = (
    "/v1",
    "/v2",
    "/inference",
)
CONTROL = "/-/control"
ROUTES: Mapping[str, tuple[str, ...]] = {
    "/health": ("GET",),
    "/ping": ("GET", "POST"),
    "/version": ("GET",),
    "/load": ("GET",),
    "/metrics": ("GET",),
    "/v1/models": ("GET",),
    "/tokenize": ("POST",),
    "/detokenize": ("POST",),
    "/v1/chat/completions": ("POST",),
    "/v1/completions": ("POST",),
    CONTROL: ("GET", "POST"),
}


class SimulatedServer:
    """One server on one port: `async with SimulatedServer(World()) as server: server.url;
    server.world`.
    """

    def __init__(self, world: World, host: str = "127.0.0.1", port: int = 0) -> None:
        self.world = world
        self.listener = Listener(self._handle, host, port)
        self._http = HttpCounts()
        self._models: dict[str, LanguageModel] = {}
        self._ids = random.Random(world.seed)  # noqa: S311 - request ids need only differ
        self._life = world.engine.counters
        self._timer: asyncio.TimerHandle | None = None
        self._advancing = False

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return self.listener.url

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens, and lets the world's time run. Raises PortTakenError."""
        self._loop = asyncio.get_running_loop()
        await self.listener.start()
        self._zero_s = self._loop.time() - self.world.now_s
        self.world.epoch_s = time.time() - self.world.now_s
        self.world.on_change = self._arm
        self._arm()

    async def stop(self) -> None:
        """Stops as a killed server does: the port refuses, open streams are cut."""
        self.world.on_change = None
        if self._timer is not None:
            self._timer.cancel()
        await self.listener.stop()

    # -- time

    def catch_up(self) -> None:
        """Runs what is due by now."""
        now_s = self._loop.time() - self._zero_s
        due_s = self.world.next_event_s()
        if due_s is not None and self.world.now_s <= due_s < now_s - BEHIND_S:
            self._zero_s += now_s - due_s
            now_s = due_s
        self._advancing = True
        try:
            self.world.advance(now_s)
        finally:
            self._advancing = False
        if self.world.engine.counters is not self._life:
            self._new_life()
        self._arm()

    def _arm(self) -> None:
        """Sleeps until the next event."""
        if self._advancing:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.world.next_event_s()
        if due_s is not None:
            self._timer = self._loop.call_at(self._zero_s + due_s, self.catch_up)

    def _new_life(self) -> None:
        """Closes all connections: the process was restarted."""
        self._life, self._http = self.world.engine.counters, HttpCounts()
        self.listener.cut(keep=lambda connection: connection.path_in_progress == CONTROL)

    # -- HTTP

    def _handle(self, exchange: Exchange) -> None:
        self.catch_up()
        request, world = exchange.request, self.world
        if world.is_down and request.path != CONTROL:
            exchange.abort()  # refused; the port itself stays open for the control endpoint
            return
        exchange.on_over.append(partial(self._note, self._http, self._loop.time()))
        try:
            self._route(exchange)
        except ApiError as error:
            exchange.reply(error.body, error.status)

    def _note(self, http: HttpCounts, began_s: float, exchange: Exchange) -> None:
        request = exchange.request
        if exchange.status and not request.path.startswith("/-/"):
            took_s = self._loop.time() - began_s
            http.note(
                request.path,
                request.method,
                exchange.status,
                len(request.body),
                exchange.sent,
                took_s,
            )

    def _route(self, exchange: Exchange) -> None:
        request, world = exchange.request, self.world
        key = world.identity.api_key
        if (
            key
            and request.path.startswith(LOCKED)
            and request.headers.get("authorization") != f"Bearer {key}"
        ):
            raise ApiError(401, {"error": "Unauthorized"})
        path = "/metrics" if request.path == "/metrics/" else request.path
        if path not in ROUTES:
            raise ApiError(404, {"detail": "Not Found"})
        if request.method not in ROUTES[path]:
            raise ApiError(405, {"detail": "Method Not Allowed"})
        match path:
            case "/health" | "/ping":
                exchange.reply("", 503 if world.config.dead else 200)
            case "/version":
                exchange.reply({"version": world.identity.version})
            case "/load":
                # it counts only with --enable-server-load-tracking
                exchange.reply({"server_load": 0})
            case "/v1/models":
                exchange.reply({"object": "list", "data": [self._model_entry()]})
            case "/metrics":
                self._metrics(exchange)
            case "/tokenize":
                exchange.reply(self._tokenize(self._body(exchange)))
            case "/detokenize":
                exchange.reply(self._detokenize(self._body(exchange)))
            case "/v1/chat/completions" | "/v1/completions":
                self._complete(exchange, path == "/v1/chat/completions")
            case _:
                self._control(exchange)

    @staticmethod
    def _body(exchange: Exchange) -> Json:
        request = exchange.request
        return read_json(request.body, request.headers.get("content-type", "application/json"))

    def _model_entry(self) -> Json:
        identity, now = self.world.identity, int(time.time())
        permission = {
            "id": f"modelperm-{self._ids.getrandbits(64):016x}",
            "object": "model_permission",
            "created": now,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        entry: Json = {
            "id": identity.served_name,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "root": identity.root,
        }
        return entry | {
            "parent": None,
            "max_model_len": identity.max_model_len,
            "permission": [permission],
        }

    def _metrics(self, exchange: Exchange) -> None:
        identity = self.world.identity
        if identity.metrics_status != 200:
            raise ApiError(
                identity.metrics_status,
                {"detail": "Not Found" if identity.metrics_status == 404 else "Error"},
            )
        if identity.metrics_delay_s > 0:
            self._loop.call_later(identity.metrics_delay_s, self._reply_metrics, exchange)
        else:
            self._reply_metrics(exchange)

    def _reply_metrics(self, exchange: Exchange) -> None:
        if not exchange.over:
            exchange.reply(metrics_page(self.world, self._http), kind=CONTENT_TYPE)

    def _tokenize(self, body: Json) -> Json:
        identity = self.world.identity
        check_model(body, identity)
        ids = prompt_ids(body, identity, self.world.answers)
        strings = [VOCABULARY.text(i) for i in ids] if body.get("return_token_strs") else None
        return {
            "count": len(ids),
            "max_model_len": identity.max_model_len,
            "tokens": list(ids),
            "token_strs": strings,
        }

    def _detokenize(self, body: Json) -> Json:
        check_model(body, self.world.identity)
        ids = body.get("tokens")
        if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
            raise bad("tokens must be a list of token ids", "tokens")
        return {"prompt": VOCABULARY.decode(ids, skip_specials=False)}

    def _control(self, exchange: Exchange) -> None:
        if exchange.request.method == "POST":
            change(self.world, self._body(exchange))
            self.catch_up()
        exchange.reply(state(self.world))

    # -- completions

    def _complete(self, exchange: Exchange, chat: bool) -> None:
        world, body, headers = self.world, self._body(exchange), exchange.request.headers
        request = read_request(body, chat, headers, world.identity, world.answers)
        refusal = world.refusal()
        if refusal == "dead":
            raise ApiError(500, engine_dead())
        completion = Completion(exchange, request, self._frame(chat, headers), self._model())
        try:
            handle = world.submit(self._engine_request(completion, request))
        except ValueError as error:
            raise bad(str(error)) from None
        if handle is None:
            raise api_error(
                503, "Service Unavailable", "The engine is currently busy. Please retry later."
            )
        exchange.on_gone = partial(world.cancel, handle)
        if request.stream:
            exchange.begin_stream()

    def _engine_request(self, completion: Completion, request: CompletionRequest) -> EngineRequest:
        return EngineRequest(
            id=completion.frame.id,
            prompt_tokens=len(request.prompt.ids),
            max_tokens=request.limits.max_tokens,
            ending=completion.ending,
            prefix=prefix_keys(
                request.prompt.ids, self.world.config.block_size, request.cache_salt
            ),
            priority=request.priority,
            parameter_set=request.parameter_set,
            skip_cache=request.prompt_logprobs is not None,
            on_tokens=completion.tokens,
            on_lost=completion.lost,
        )

    def _frame(self, chat: bool, headers: Mapping[str, str]) -> ResponseFrame:
        identity = self.world.identity
        name = headers.get("x-request-id") or f"{self._ids.getrandbits(64):016x}"
        return ResponseFrame(
            id=f"{'chatcmpl' if chat else 'cmpl'}-{name}",
            created=int(time.time()),
            model=identity.served_name,
            fingerprint=self.world.system_fingerprint(),
            prompt_details=identity.prompt_tokens_details,
            request_metrics=identity.per_request_metrics,
        )

    def _model(self) -> LanguageModel:
        variant = self.world.answers
        if variant not in self._models:
            self._models[variant] = LanguageModel(variant, self.world.seed)
        return self._models[variant]
