"""A scripted stand-in for a vLLM server: no model, no GPU, standard library only, in one file that
can be copied anywhere.

    python3 standin.py --port 0 --port-file port.txt --max-model-len 4096 --set tokens_per_chunk=2

It answers as captures of vLLM 0.32 do (tests/captures/vllm-0.32.0) and behaves as its `State` says.
The state may change while it runs: in a test by `server.state.frozen = True`, from outside by
`POST /-/control` with JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import time
import zlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

Json = dict[str, Any]

#: Prompts with a known answer; any other prompt gets the filler.
ANSWERS: Mapping[str, str] = {
    "What is the capital of France?": "The capital of France is Paris.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What is 17 plus 25?": "17 plus 25 equals 42.",
    "Name the three primary colours.": "The three primary colours are red, yellow and blue.",
    "Extract the invoice as JSON: Invoice 1043 from Acme for 250.00 EUR due 2026-12-31.": (
        '{"invoice": 1043, "vendor": "Acme", "amount": 250.0, "currency": "EUR", "due": '
        '"2026-12-31"}'
    ),
    "Extract the invoice as JSON: Invoice 2210 from Globex for 99.50 USD due 2027-01-15.": (
        '{"invoice": 2210, "vendor": "Globex", "amount": 99.5, "currency": "USD", "due": '
        '"2027-01-15"}'
    ),
    "Count from one to thirty in words.": (
        "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, "
        "fourteen, fifteen, "
        "sixteen, seventeen, eighteen, nineteen, twenty, twenty-one, twenty-two, twenty-three, "
        "twenty-four, "
        "twenty-five, twenty-six, twenty-seven, twenty-eight, twenty-nine, thirty."
    ),
    "Write a haiku about heat.": (
        "Fans hum in the rack\nclocks fall as the silicon warms\nslow words reach the screen"
    ),
    "Translate to German: good morning": "Guten Morgen",
    "Is the sky blue? Answer yes or no.": "Yes",
    "Write a Python function that adds two numbers.": "def add(a, b):\n    return a + b",
    "Summarise: The batch job held the chat request for nine seconds.": (
        "A batch job delayed a chat request by nine seconds."
    ),
}
FILLER = (
    "The canary sings the same song every minute and somebody listens whether it still "
    "sounds the same."
)
OTHERS = (" canary", " song", ".", "-", " same")  # alternatives in requested log-probabilities
BLOCK = 16  # tokens per block of the prefix cache, vLLM's default on a GPU
# fmt: off
TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
    0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0, 160.0,
)
REQUEST_EDGES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 30.0, 60.0, 240.0, 1920.0, 7680.0)
STEP_EDGES = (
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
)
# fmt: on
# The other labels of vllm:cache_config_info that a monitor reads, with a real server's values.
CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "block_size": str(BLOCK),
    "cache_dtype": "auto",
    "enable_prefix_caching": "True",
    "engine": "0",
    "gpu_memory_utilization": "0.92",
    "is_attention_free": "False",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "mamba_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_caching_hash_algo": "sha256",
    "sliding_window": "None",
    "user_specified_block_size": "False",
}


@dataclass
class State:
    """The identity and behaviour of the stand-in. Any field may be set at any time."""

    # identity
    version: str = "0.32.0"
    served_name: str = "tiny-canary"
    root: str = "models/tiny-canary"
    # more entries for /v1/models: id, root, parent
    extra_models: list[Json] = field(default_factory=list)
    max_model_len: int = 4096
    kv_cache_size_tokens: int = 524288
    template_salt: str = ""  # text that the chat template adds to each prompt
    system_fingerprint: str | None = "vllm-0.32.0-bf6c1f39"
    # a new value resets all counters, as a restart does
    process_start: float = field(default_factory=time.time)
    api_key: str | None = None
    # decrease of the log-probability of every scored prompt token, as with other weights
    moved_nat: float = 0.0
    # answers
    answers: dict[str, str] = field(default_factory=lambda: dict(ANSWERS))
    ttft_s: float = 0.02
    itl_s: float = 0.004
    # wait before the prefill while the engine runs other requests: steps advance, we are waiting
    queue_s: float = 0.0
    # time of the role chunk after the request (older vLLM); None: with the first token
    role_chunk_s: float | None = None
    tokens_per_chunk: int = 1
    reasoning_tokens: int = 0  # number of first tokens sent as delta.reasoning
    per_request_metrics: bool = False
    prompt_tokens_details: bool = False
    sse_keep_alive_s: float = 0.0  # comment lines in a silent stream; 0: none
    # faults
    sleeping: bool = False
    # the engine hangs: no bytes, counters and gauges do not change, /health answers 200
    frozen: bool = False
    stream_fault: str | None = None  # one of FAULTS
    # tokens before error_event, cut, malformed; 0: not even the role chunk
    fault_after: int = 2
    http_status: int = 200  # of the completion routes
    health_status: int = 200
    metrics_status: int | str = 200  # or "slow", "garbage"
    hide_metrics: list[str] = field(default_factory=list)  # families missing from /metrics
    # other clients
    other_running: int = 0
    other_waiting: int = 0
    other_prompt_tokens: int = 0  # added to the counters, as is the next
    other_generation_tokens: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    # received requests, most recent last
    requests: list[Json] = field(default_factory=list)  # bodies of completion requests
    headers: list[dict[str, str]] = field(default_factory=list)  # their headers, in lower case
    paths: list[str] = field(default_factory=list)  # "GET /metrics" of every request


FAULTS = (
    "error_event",
    "cut",
    "no_done",
    "html",
    "malformed",
    "endless_drip",
    "null_content",
    "abort",
    "empty",
)
LOGS = ("requests", "headers", "paths")


class Token(NamedTuple):
    """A word with the space before it; the end-of-text token has no text."""

    text: str
    id: int

    @property
    def logprob(self) -> float:
        """A small value that depends on the word only."""
        return -0.001 - self.id % 7 / 4096

    @property
    def name(self) -> str:
        """The name of the token in log-probabilities."""
        return self.text or "</s>"


END = Token("", 2)


#: Every token created so far, by id.
WORDS: dict[int, Token] = {1: Token("<s>", 1), END.id: END}


def tokenize(text: str) -> list[Token]:
    """Splits text into words as tokens; their ids depend on the text only."""
    tokens = [
        Token(word, 5 + zlib.crc32(word.encode()) % 30000) for word in re.findall(r"\s*\S+", text)
    ]
    WORDS.update((token.id, token) for token in tokens)
    return tokens


class Histogram:
    """A Prometheus histogram."""

    def __init__(self, edges: Iterable[float]) -> None:
        self.edges = (*edges, float("inf"))
        self.buckets = [0] * len(self.edges)
        self.count, self.sum = 0, 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.count += 1
        self.sum += value
        for i, edge in enumerate(self.edges):
            self.buckets[i] += value <= edge


class Counters:
    """The counters of one server process."""

    def __init__(self, process_start: float) -> None:
        self.process_start = process_start
        self.running = self.waiting = self.prompt_tokens = self.generation_tokens = 0
        self.success = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.steps = Histogram(STEP_EDGES)
        self.ttft = Histogram(TTFT_EDGES)
        self.queue, self.prefill, self.decode = (Histogram(REQUEST_EDGES) for _ in range(3))
        self.cached_prefixes: set[tuple[Any, ...]] = set()

    def step(self, prompt: int, generated: int) -> None:
        """Counts one step of the engine."""
        self.steps.observe(prompt + generated)
        self.prompt_tokens += prompt
        self.generation_tokens += generated

    def finish(self, job: Job) -> None:
        """Counts a completed request."""
        self.success[job.finish] += 1
        self.ttft.observe(job.first - job.arrived)
        self.queue.observe(job.scheduled - job.arrived)
        self.prefill.observe(job.first - job.scheduled)
        self.decode.observe(job.last - job.first)


class ReplyError(Exception):
    """An error reply with its status and body."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(body)
        self.status, self.body = status, body


def vllm_error(status: int, kind: str, message: str, param: str | None = None) -> ReplyError:
    """An error in the format of vLLM's API."""
    return ReplyError(
        status, {"error": {"message": message, "type": kind, "param": param, "code": status}}
    )


@dataclass
class Request:
    """One HTTP request and its connection."""

    route: str  # "POST /v1/completions"
    headers: dict[str, str]  # names in lower case
    content: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def read(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Self:
        """Reads the next request of a connection."""
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in rest if line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        return cls(f"{method} {target.split('?')[0]}", headers, content, reader, writer)

    def json(self) -> Json:
        """The JSON object in the body."""
        try:
            body = json.loads(self.content)
        except ValueError as error:
            details = (
                f"{{'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error', "
                f"'ctx': '{error}'}}"
            )
            raise vllm_error(
                400, "Bad Request", f"1 validation error:\n  {details}", "body"
            ) from None
        if not isinstance(body, dict):
            raise vllm_error(
                400,
                "Bad Request",
                "1 validation error:\n  {'type': 'dict_type', 'loc': 'body'}",
                "body",
            )
        return body

    def reply(self, body: Json | str, status: int = 200, kind: str = "application/json") -> None:
        """Sends a complete answer."""
        content = body.encode() if isinstance(body, str) else compact(body).encode()
        head = (
            f"HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\ncontent-length: "
            f"{len(content)}\r\n\r\n"
        )
        self.writer.write(head.encode() + content)


@dataclass
class Job:
    """One running completion."""

    request: Request
    body: Json
    chat: bool
    id: str
    prompt: list[Token]
    answer: list[Token]
    finish: str
    counters: Counters
    arrived: float
    cached: int = 0
    scheduled: float = 0.0
    first: float = 0.0
    last: float = 0.0
    wrote: float | None = None  # time of the last bytes of a stream; None: no open stream
    sent: int = 0


def _check_body(body: Json, chat: bool) -> None:
    if chat and not isinstance(body.get("messages"), list):
        details = (
            "{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list'}"
        )
        message = f"1 validation error:\n  {details}"
        raise vllm_error(400, "Bad Request", message, "body.messages")
    if body.get("stream_options") and not body.get("stream"):
        message = "Stream options can only be defined when `stream=True`."
        raise vllm_error(400, "Bad Request", message, "body")


def compact(value: Json) -> str:
    """Compact JSON, as vLLM writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class StandIn:
    """The server: `async with StandIn(ttft_s=0.1) as server: server.url; server.state`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, **fields: Any) -> None:
        self.host, self.port = host, port
        self.state = State(**fields)
        self._counters = Counters(self.state.process_start)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""
        return f"http://{self.host}:{self.port}"

    @property
    def counters(self) -> Counters:
        """The counters of the present process; a new process start resets them."""
        if self._counters.process_start != self.state.process_start:
            self._counters = Counters(self.state.process_start)
        return self._counters

    async def start(self) -> None:
        """Starts to listen; a second start uses the port of the first."""
        self._server = await asyncio.start_server(self._connected, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops like a killed server: the port refuses connections, open streams are cut."""
        if self._server is None:
            return
        self._server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def restart(self, **fields: Any) -> None:
        """Simulates another process with other settings."""
        self.set({"process_start": max(time.time(), self.state.process_start + 0.01), **fields})

    def set(self, fields: Mapping[str, Any]) -> None:
        """Sets fields of the state by name."""
        if unknown := [name for name in fields if not hasattr(self.state, name)]:
            raise ReplyError(400, {"error": f"no such field of the state: {', '.join(unknown)}"})
        if fields.get("stream_fault") not in (None, *FAULTS):
            raise ReplyError(400, {"error": f"stream_fault is one of {', '.join(FAULTS)}"})
        for name, value in fields.items():
            setattr(self.state, name, value)

    # -- HTTP

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await Request.read(reader, writer)
                self.state.paths.append(request.route)
                try:
                    await self._route(request)
                except ReplyError as error:
                    request.reply(error.body, error.status)
                await writer.drain()
                if request.headers.get("connection", "").lower() == "close":
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has disconnected, or a fault cuts the connection
        except asyncio.CancelledError:
            writer.transport.abort()  # a client that does not read would block the close
            raise
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _route(self, request: Request) -> None:
        state, route = self.state, request.route
        if (
            state.api_key
            and " /v1" in route
            and request.headers.get("authorization") != f"Bearer {state.api_key}"
        ):
            raise ReplyError(401, {"error": "Unauthorized"})
        match route:
            case "GET /health":
                request.reply("", state.health_status)
            case "GET /version":
                request.reply({"version": state.version})
            case "GET /v1/models":
                request.reply(
                    {
                        "object": "list",
                        "data": [self._model(extra) for extra in ({}, *state.extra_models)],
                    }
                )
            case "GET /metrics":
                await self._metrics(request)
            case "POST /tokenize":
                request.reply(self._tokenize(request.json()))
            case "POST /v1/chat/completions" | "POST /v1/completions":
                await self._complete(self._job(request))
            case "GET /-/control":
                request.reply({k: v for k, v in asdict(state).items() if k not in LOGS})
            case "POST /-/control":
                self.set(request.json())
                request.reply({"ok": True})
            case _:
                raise ReplyError(404, {"detail": "Not Found"})

    def _model(self, extra: Json) -> Json:
        """An entry of /v1/models."""
        now = int(time.time())
        permission = {
            "id": f"modelperm-{time.monotonic_ns():016x}",
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
        return {
            "id": self.state.served_name,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "root": self.state.root,
            "parent": None,
            "max_model_len": self.state.max_model_len,
            **extra,
            "permission": [permission],
        }

    def _tokenize(self, body: Json) -> Json:
        self._check_model(body)
        ids = [token.id for token in self._prompt(body)]
        return {
            "count": len(ids),
            "max_model_len": self.state.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }

    def _prompt(self, body: Json) -> list[Token]:
        """The tokens of the prompt; messages go through the chat template."""
        if "messages" in body:
            turns = [f" <|{message['role']}|> {message['content']}" for message in body["messages"]]
            text = self.state.template_salt + "".join(turns) + " <|assistant|>"
        elif isinstance(body["prompt"], list):
            return [WORDS.get(number_, Token("?", number_)) for number_ in body["prompt"]]
        else:
            text = body["prompt"]
        return [Token("<s>", 1), *tokenize(text)]

    def _check_model(self, body: Json) -> None:
        names = [self.state.served_name, *(model["id"] for model in self.state.extra_models)]
        if body.get("model", names[0]) not in names:
            message = (
                f"The model `{body['model']}` does not exist. Valid aliases: {', '.join(names)}."
            )
            raise vllm_error(404, "NotFoundError", message, "model")

    # -- completions

    def _job(self, request: Request) -> Job:
        """Checks a request as vLLM does, and decides its answer."""
        arrived, chat = time.monotonic(), "chat" in request.route
        body = request.json()
        self.state.requests.append(body)
        self.state.headers.append(request.headers)
        self._check_status()
        self._check_model(body)
        _check_body(body, chat)
        prompt = self._prompt(body)
        answer, finish = self._answer(body, chat, self._max_tokens(body, chat, len(prompt)))
        request_id = request.headers.get("x-request-id", f"{time.monotonic_ns():016x}")
        job = Job(
            request=request,
            body=body,
            chat=chat,
            id=f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            prompt=prompt,
            answer=answer,
            finish=finish,
            counters=self.counters,
            arrived=arrived,
        )
        prefix = (body.get("cache_salt"), *prompt[: (len(prompt) - 1) // BLOCK * BLOCK])
        job.cached = len(prefix) - 1 if prefix in job.counters.cached_prefixes else 0
        job.counters.cached_prefixes.add(prefix)
        return job

    def _check_status(self) -> None:
        status = self.state.http_status
        if status == 200:
            return
        kind, message = {
            429: ("Too Many Requests", "Rate limit exceeded. Please retry later."),
            503: ("Service Unavailable", "The engine is currently busy. Please retry later."),
        }.get(status, ("InternalServerError", "EngineCore encountered an issue."))
        raise vllm_error(status, kind, message)

    def _max_tokens(self, body: Json, chat: bool, prompt_tokens: int) -> int:
        """The largest number of output tokens, within the context length."""
        limit = self.state.max_model_len
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        wanted = int(wanted or (limit - prompt_tokens if chat else 16))
        if wanted > limit:
            message = f"max_tokens={wanted} cannot be greater than max_model_len={limit}."
            hint = f"Please request fewer output tokens. (parameter=max_tokens, value={wanted})"
            raise vllm_error(400, "BadRequestError", f"{message} {hint}", "max_tokens")
        if not 1 <= wanted <= limit - prompt_tokens:
            message = (
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains at least {prompt_tokens} input tokens. Please reduce the length of the "
                "input prompt or the number of requested output tokens. "
                f"(parameter=input_tokens, value={prompt_tokens})"
            )
            raise vllm_error(400, "BadRequestError", message, "input_tokens")
        return wanted

    def _answer(self, body: Json, chat: bool, limit: int) -> tuple[list[Token], str]:
        """The tokens of an answer, including the end-of-text token, and its finish reason."""
        if self.state.stream_fault == "empty":
            return [END], "stop"
        question = body["messages"][-1]["content"] if chat else body["prompt"]
        known = tokenize(
            self.state.answers.get(question, FILLER) if isinstance(question, str) else FILLER
        )
        wanted = (
            limit
            if body.get("ignore_eos")
            else max(len(known), min(body.get("min_tokens", 0), limit))
        )
        tokens = [*known, *islice(cycle(tokenize(" " + FILLER)), max(0, wanted - len(known)))]
        if len(tokens) >= limit:
            return tokens[:limit], "length"
        return [*tokens, END], "stop"

    async def _engine(self, job: Job) -> AsyncGenerator[list[Token], None]:
        """Runs one request as an engine does, and counts; yields the tokens of each chunk."""
        state, counters = self.state, job.counters
        await self._while_stuck(job)
        await self._queue(job)
        counters.running += 1
        try:
            job.scheduled = time.monotonic()
            drip = state.stream_fault == "endless_drip"
            chunk: list[Token] = []
            for i, token in enumerate(cycle(tokenize(" " + FILLER)) if drip else job.answer):
                await self._pause(job, state.itl_s if i else state.ttft_s)
                await self._while_stuck(job)
                counters.step(0 if i else len(job.prompt), 1)
                job.last = time.monotonic()
                job.first = job.first or job.last
                chunk.append(token)
                last = not drip and i == len(job.answer) - 1
                if i == 0 or len(chunk) >= state.tokens_per_chunk or last:
                    yield chunk
                    chunk = []
            job.finish = "abort" if state.stream_fault == "abort" else job.finish
            # a client that disconnected before is counted nowhere, as in vLLM
            counters.finish(job)
        finally:
            counters.running -= 1

    async def _queue(self, job: Job) -> None:
        """Waits for `queue_s` in the queue; the engine takes steps for other requests meanwhile."""
        job.counters.waiting += 1
        try:
            while time.monotonic() < job.arrived + self.state.queue_s:
                await self._pause(job, 0.01)
                if not (self.state.frozen or self.state.sleeping):
                    job.counters.step(0, 1)
        finally:
            job.counters.waiting -= 1

    async def _while_stuck(self, job: Job) -> None:
        while self.state.frozen or self.state.sleeping:
            await self._pause(job, 0.02)

    async def _pause(self, job: Job, seconds: float) -> None:
        """Sleeps, with checks for a disconnected client and with keep-alive comments if set."""
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            # an exception instead of end of file: the client left data of ours unread
            if job.request.reader.at_eof() or job.request.reader.exception() is not None:
                raise ConnectionResetError("the client has disconnected")
            every = self.state.sse_keep_alive_s
            if every and job.wrote is not None and time.monotonic() - job.wrote >= every:
                await self._send(job, ": keep-alive")
            await asyncio.sleep(min(rest, 0.05))

    async def _complete(self, job: Job) -> None:
        if self.state.stream_fault == "html":
            page = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
            job.request.reply(page, kind="text/html")
        elif job.body.get("stream"):
            await self._stream(job)
        else:
            async with aclosing(self._engine(job)) as chunks:
                tokens = [token async for chunk in chunks for token in chunk]
            job.request.reply(self._whole(job, tokens))

    async def _stream(self, job: Job) -> None:
        state, fault = self.state, self.state.stream_fault
        fails_after = float("inf")  # tokens: never
        if fault in {"error_event", "cut", "malformed"}:
            fails_after = min(state.fault_after, len(job.answer) - 1)
        await self._while_stuck(job)
        head = (
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; "
            "charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        job.request.writer.write(head.encode())
        job.wrote = time.monotonic()
        if role_early := job.chat and state.role_chunk_s is not None:
            await self._pause(job, state.role_chunk_s or 0.0)
            await self._send(job, self._role_chunk(job))
        async with aclosing(self._engine(job)) as chunks:
            async for tokens in chunks:
                if job.sent >= fails_after:
                    await self._fail(job, fault or "")
                    return
                if job.chat and not role_early and job.sent == 0:
                    await self._send(job, self._role_chunk(job))
                await self._send(
                    job, self._chunk(job, [self._choice(job, tokens)], job.sent + len(tokens))
                )
                job.sent += len(tokens)
        if (job.body.get("stream_options") or {}).get("include_usage"):
            closing = self._chunk(job, []) | {"usage": self._usage(job, job.sent)}
            closing["system_fingerprint"] = state.system_fingerprint
            await self._send(
                job, closing | ({"metrics": self._timing(job)} if state.per_request_metrics else {})
            )
        if fault != "no_done":
            await self._send(job, "data: [DONE]")
        job.request.writer.write(b"0\r\n\r\n")

    async def _fail(self, job: Job, fault: str) -> None:
        if fault == "cut":
            raise ConnectionResetError("cut on purpose")
        message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
        error = vllm_error(500, "InternalServerError", message).body
        await self._send(
            job,
            error if fault == "error_event" else 'data: {"id":"chatcmpl-broken","choices":[{"ind',
        )
        await self._send(job, "data: [DONE]")
        job.request.writer.write(b"0\r\n\r\n")

    @staticmethod
    async def _send(job: Job, event: Json | str) -> None:
        """Sends one event as one chunk of the HTTP body."""
        line = event if isinstance(event, str) else f"data: {compact(event)}"
        data = f"{line}\n\n".encode()
        job.request.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        job.wrote = time.monotonic()
        await job.request.writer.drain()

    # -- the formats of vLLM's answers

    def _chunk(self, job: Job, choices: list[Json], counted: int | None = None) -> Json:
        kind = "chat.completion.chunk" if job.chat else "text_completion"
        chunk: Json = {
            "id": job.id,
            "object": kind,
            "created": int(time.time()),
            "model": self.state.served_name,
        }
        chunk["choices"] = choices
        if counted is not None and (job.body.get("stream_options") or {}).get(
            "continuous_usage_stats"
        ):
            chunk["usage"] = self._usage(job, counted, details=False) | {
                "completion_tokens_details": None
            }
        return chunk

    def _role_chunk(self, job: Job) -> Json:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        ids = [token.id for token in job.prompt] if job.body.get("return_token_ids") else None
        return self._chunk(job, [choice], 0) | {"prompt_token_ids": ids, "prompt_text": None}

    def _choice(self, job: Job, tokens: list[Token]) -> Json:
        fault = self.state.stream_fault
        ending = job.sent + len(tokens) >= len(job.answer) and fault != "endless_drip"
        choice: Json = {
            "index": 0,
            "logprobs": self._logprobs(job, tokens),
            "finish_reason": None,
            "stop_reason": None,
        }
        if ending:
            choice["finish_reason"] = "abort" if fault == "abort" else job.finish
        with_ids = job.body.get("return_token_ids")
        text = "".join(token.text for token in tokens)
        if job.chat:
            field_name = "reasoning" if job.sent < self.state.reasoning_tokens else "content"
            choice["delta"] = {field_name: None if fault == "null_content" else text}
            if not ending:
                del choice["stop_reason"]
        else:
            choice["text"] = text
            choice["prompt_token_ids"] = (
                [token.id for token in job.prompt] if with_ids and job.sent == 0 else None
            )
        return choice | {"token_ids": [token.id for token in tokens] if with_ids else None}

    @staticmethod
    def _logprobs(job: Job, tokens: list[Token]) -> Json | None:
        asked = job.body.get("logprobs")
        if asked is None or asked is False:
            return None
        top = (job.body.get("top_logprobs") or 0) if job.chat else int(asked)

        def ranked(token: Token) -> list[tuple[str, float]]:
            others = [(name, -8.0 - n / 2) for n, name in enumerate(OTHERS) if name != token.name]
            return [(token.name, token.logprob), *others][:top]

        def entry(name: str, logprob: float) -> Json:
            return {"token": name, "logprob": logprob, "bytes": list(name.encode())}

        if job.chat:
            tops = [[entry(*pair) for pair in ranked(token)] for token in tokens]
            entries = [entry(token.name, token.logprob) for token in tokens]
            return {
                "content": [
                    e | {"top_logprobs": top_} for e, top_ in zip(entries, tops, strict=True)
                ]
            }
        lengths = [len(token.text) for token in (*job.answer[: job.sent], *tokens)]
        return {
            "text_offset": [sum(lengths[: job.sent + i]) for i in range(len(tokens))],
            "token_logprobs": [token.logprob for token in tokens],
            "tokens": [token.name for token in tokens],
            "top_logprobs": [dict(ranked(token)) for token in tokens],
        }

    def _prompt_logprobs(self, job: Job) -> list[Json | None] | None:
        """The log-probability of each token of the prompt; None for the first."""
        if job.body.get("prompt_logprobs") is None:
            return None

        def place(token: Token) -> Json:
            return {
                str(token.id): {
                    "logprob": token.logprob - self.state.moved_nat,
                    "rank": 1,
                    "decoded_token": token.name,
                }
            }

        return [None, *(place(token) for token in job.prompt[1:])]

    def _usage(self, job: Job, completion: int, details: bool = True) -> Json:
        prompt = len(job.prompt)
        usage: Json = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if details and self.state.prompt_tokens_details:
            created = {"created_cache_tokens": 0} if job.chat else {}
            usage["prompt_tokens_details"] = {"cached_tokens": job.cached} | created
        return usage

    @staticmethod
    def _timing(job: Job) -> Json:
        """Per-request metrics; their TTFT starts at scheduling and not at arrival."""
        decode, whole = job.last - job.first, job.last - job.scheduled
        return {
            "time_to_first_token_ms": (job.first - job.scheduled) * 1e3,
            "generation_time_ms": decode * 1e3,
            "queue_time_ms": (job.scheduled - job.arrived) * 1e3,
            "mean_itl_ms": decode * 1e3 / (len(job.answer) - 1) if len(job.answer) > 1 else None,
            "tokens_per_second": len(job.answer) / whole if whole else None,
        }

    def _whole(self, job: Job, tokens: list[Token]) -> Json:
        choice = self._choice(job, tokens) | {"finish_reason": job.finish, "stop_reason": None}
        if job.chat:
            choice["message"] = {"role": "assistant", "content": choice.pop("delta").get("content")}
        body = self._chunk(job, [choice]) | {
            "object": "chat.completion" if job.chat else "text_completion"
        }
        body |= {"service_tier": None, "system_fingerprint": self.state.system_fingerprint}
        body |= {"usage": self._usage(job, len(tokens)), "kv_transfer_params": None}
        (body if job.chat else choice)["prompt_logprobs"] = self._prompt_logprobs(job)
        return body | {"metrics": self._timing(job) if self.state.per_request_metrics else None}

    # -- /metrics

    async def _metrics(self, request: Request) -> None:
        status = self.state.metrics_status
        if status == "slow":
            await asyncio.sleep(3)
        if isinstance(status, int) and status != 200:
            raise ReplyError(
                status,
                {"detail": "Not Found"} if status == 404 else {"error": "Internal Server Error"},
            )
        page = (
            "<html>not{ the metrics} 12\nvllm:broken{engine="
            if status == "garbage"
            else self.metrics_page()
        )
        request.reply(page, kind="text/plain; version=1.0.0; charset=utf-8")

    def metrics_page(self) -> str:
        """The text exposition of the present counters."""
        state, c = self.state, self.counters
        page = Page(state.served_name, frozenset(state.hide_metrics))
        start = [("", {}, state.process_start)]
        page.family("process_start_time_seconds", "gauge", start, engine=False)
        waiting = c.waiting + state.other_waiting
        page.value("vllm:num_requests_running", "gauge", c.running + state.other_running)
        page.value("vllm:num_requests_waiting", "gauge", waiting)
        reasons = {"capacity": waiting, "deferred": 0}
        page.values("vllm:num_requests_waiting_by_reason", "gauge", "reason", reasons)
        asleep = {
            "awake": not state.sleeping,
            "weights_offloaded": state.sleeping,
            "discard_all": False,
        }
        page.values("vllm:engine_sleep_state", "gauge", "sleep_state", asleep)
        page.value("vllm:kv_cache_usage_perc", "gauge", state.kv_usage)
        page.value("vllm:num_preemptions_total", "counter", state.preemptions)
        prompt = c.prompt_tokens + state.other_prompt_tokens
        page.value("vllm:prompt_tokens_total", "counter", prompt)
        generated = c.generation_tokens + state.other_generation_tokens
        page.value("vllm:generation_tokens_total", "counter", generated)
        page.values("vllm:request_success_total", "counter", "finished_reason", c.success)
        page.histogram("vllm:iteration_tokens_total", c.steps)
        page.histogram("vllm:time_to_first_token_seconds", c.ttft)
        page.histogram("vllm:request_queue_time_seconds", c.queue)
        page.histogram("vllm:request_prefill_time_seconds", c.prefill)
        page.histogram("vllm:request_decode_time_seconds", c.decode)
        sizes: Json = {
            "kv_cache_size_tokens": state.kv_cache_size_tokens,
            "num_gpu_blocks": state.kv_cache_size_tokens // BLOCK,
            "kv_cache_max_concurrency": state.kv_cache_size_tokens / state.max_model_len,
        }
        cache = [("", CACHE_CONFIG | sizes, 1)]
        page.family("vllm:cache_config_info", "gauge", cache, engine=False)
        return "\n".join(page.lines) + "\n"


class Page:
    """A metrics page in the text format of Prometheus."""

    def __init__(self, model_name: str, hidden: frozenset[str]) -> None:
        self.lines: list[str] = []
        self._labels = {"engine": "0", "model_name": model_name}
        self._hidden = hidden

    def family(
        self, name: str, kind: str, rows: Iterable[tuple[str, Json, float]], engine: bool = True
    ) -> None:
        """Adds a family: suffix, labels and value of each row; `engine`: with vLLM's own labels."""
        if name in self._hidden:
            return
        self.lines += [f"# HELP {name} {name} of the stand-in.", f"# TYPE {name} {kind}"]
        common = self._labels if engine else {}
        for suffix, extra, value in rows:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted({**common, **extra}.items()))
            self.lines.append(f"{name}{suffix}{f'{{{labels}}}' if labels else ''} {number(value)}")

    def value(self, name: str, kind: str, value: float) -> None:
        """Adds a family with one value."""
        self.family(name, kind, [("", {}, value)])

    def values(self, name: str, kind: str, label: str, values: Mapping[str, float]) -> None:
        """Adds a family with one value per value of a label."""
        self.family(name, kind, [("", {label: k}, float(v)) for k, v in values.items()])

    def histogram(self, name: str, h: Histogram) -> None:
        """Adds a histogram."""
        buckets = [
            ("_bucket", {"le": number(edge)}, float(n))
            for edge, n in zip(h.edges, h.buckets, strict=True)
        ]
        self.family(name, "histogram", [*buckets, ("_count", {}, h.count), ("_sum", {}, h.sum)])


def number(value: float) -> str:
    """A number in the format of Prometheus' Python client: 0.25, 1.7960069353e+09, +Inf."""
    if value == float("inf"):
        return "+Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        return f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.") + f"e+{dot - 1:02d}"
    return text


async def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="a scripted stand-in for a vLLM server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument(
        "--port-file", type=Path, help="file for the port, written when the server listens"
    )
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--ttft", type=float, dest="ttft_s", help="seconds to the first token")
    parser.add_argument("--itl", type=float, dest="itl_s", help="seconds between tokens")
    parser.add_argument("--served-name")
    parser.add_argument("--api-key")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=JSON",
        help="any other field of the state",
    )
    options = vars(parser.parse_args())
    host, port, port_file, settings = (
        options.pop(name) for name in ("host", "port", "port_file", "set")
    )
    fields = {name: value for name, value in options.items() if value is not None}
    fields |= {
        name: json.loads(value)
        for name, _, value in (setting.partition("=") for setting in settings)
    }
    stop = asyncio.Event()
    for number_ in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number_, stop.set)
    async with StandIn(host, port, **fields) as server:
        print(server.url, flush=True)
        if port_file is not None:
            # a rename, so that a reader never sees a partial file
            partial = port_file.with_name(port_file.name + ".new")
            partial.write_text(f"{server.port}\n")
            partial.rename(port_file)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
