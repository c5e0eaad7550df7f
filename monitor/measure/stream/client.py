"""The stream client: the only module that takes the timestamps of an answer, and the HTTP clients
for it and for everything else that is asked of a server.

Each canary opens a new connection: vLLM closes idle ones after 5 s, so canaries further apart would
sometimes pay for a connection and sometimes race its closing. Connecting has its own marks, and
TTFT starts at `sent`, on an open connection.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from monitor.__about__ import __version__
from monitor.config.target import TargetSettings
from monitor.config.values import Secret, is_loopback
from monitor.errors import USAGE, UserError
from monitor.measure.json_values import shortened
from monitor.measure.lag import LagMeter
from monitor.measure.stream import outcome as outcomes
from monitor.measure.stream.answer import Answer, AnswerReader
from monitor.measure.stream.arrivals import Network, arrived_ns, first_write_ns
from monitor.measure.stream.patience import Limits, Patience
from monitor.measure.stream.request import UNSENDABLE, CanaryRequest
from monitor.measure.stream.sse import EventReader, EventTooLargeError
from monitor.measure.stream.transport import mounts
from monitor.model import Marks, Outcome
from monitor.tls import well_known_authorities

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
MAX_ERROR_BODY = 65_536


def client(
    base_url: str,
    api_key: Secret | None,
    extra_headers: Mapping[str, str] | None = None,
    ca_file: str | None = None,
) -> httpx.AsyncClient:
    """An HTTP client for one server. Loopback addresses never go through a proxy; the key is sent
    in a header only.

    Raises OSError when `ca_file` cannot be read as certificates.
    """
    headers = {"User-Agent": f"vllm-canary/{__version__}", **(extra_headers or {})}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key.reveal()}"
    context = ssl.create_default_context(cafile=ca_file) if ca_file else well_known_authorities()
    return httpx.AsyncClient(
        base_url=base_url,
        headers={name.encode(): value.encode() for name, value in headers.items()},
        verify=context,
        mounts=mounts(base_url, context),
        trust_env=not is_loopback(urlsplit(base_url).hostname),
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
    )


def client_of(settings: TargetSettings) -> httpx.AsyncClient:
    """The client for a configured target. Raises ConnectionSetupError where its key or certificates
    are missing.
    """
    try:
        return client(settings.url, settings.api_key(), settings.headers, settings.ca_file)
    except ValueError as error:
        raise ConnectionSetupError(f"{settings.name}: {error}") from None
    except OSError as error:
        raise ConnectionSetupError(
            f"{settings.name}: ca_file {settings.ca_file} cannot be used: {error.strerror or error}"
        ) from None


class ConnectionSetupError(UserError):
    """A target's key or certificates are not at the configured place."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished stream: its outcome, marks and answer. `detail` is a sentence about any outcome
    but ok.
    """

    outcome: Outcome
    marks: Marks
    answer: Answer
    detail: str | None = None
    http_status: int | None = None
    observer_lag_ms: float | None = None


#: Reads the engine's step counter; None when it cannot be read.
StepCounter = Callable[[], Awaitable[float | None]]


@dataclass(slots=True)
class _Run:
    """The state shared by the receiving task and the waiting task."""

    reader: AnswerReader = field(default_factory=AnswerReader)
    connect_started: int | None = None
    connected: int | None = None
    sent: int | None = None
    headers: int | None = None
    done: int | None = None
    status: int | None = None
    sent_event: asyncio.Event = field(default_factory=asyncio.Event)
    patience: Patience | None = None
    network: Network | None = None  # the open connection, which times arrivals (arrivals.py)

    async def trace(self, name: str, info: Mapping[str, Network]) -> None:
        """httpcore's trace hook: notes the times that httpx itself does not report."""
        now = time.monotonic_ns()
        if name == "connection.connect_tcp.started":
            self.connect_started = now
        elif name in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self.connected, self.network = now, info.get("return_value")
        elif name.endswith("send_request_headers.started"):
            self.sent = now
            self.sent_event.set()
        elif name.endswith("send_request_headers.complete"):
            self.sent = first_write_ns(self.network) or self.sent
        elif name.endswith("receive_response_headers.complete"):
            self.headers = arrived_ns(self.network)

    def marks(self) -> Marks:
        answer = self.reader.answer
        return Marks(
            connect_started=self.connect_started,
            connected=self.connected,
            sent=self.sent,
            headers=self.headers,
            first_event=answer.first_event_ns,
            first_token=answer.first_token_ns,
            first_visible=answer.first_visible_ns,
            last_token=answer.last_token_ns,
            done=self.done,
        )


async def stream(
    http: httpx.AsyncClient,
    request: CanaryRequest,
    limits: Limits,
    steps_before: float | None,
    steps: StepCounter,
) -> Stream:
    """Sends one request and follows its answer to the end, or until patience ends. Never raises for
    anything that a server does.
    """
    run = _Run()
    lag = LagMeter()
    lag.start()
    receiving = asyncio.create_task(_receive(http, request, run))
    waiting = asyncio.create_task(_wait(run, limits, steps_before, steps))
    try:
        await asyncio.wait({receiving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if receiving.done():
            outcome, detail = receiving.result()
        else:
            outcome, detail = waiting.result(), None
    finally:
        await _cancelled(receiving, waiting)
        lag_ms = lag.stop()
    run.done = run.done or time.monotonic_ns()
    answer = run.reader.close()
    return Stream(
        outcome=outcome,
        marks=run.marks(),
        answer=answer,
        detail=detail or outcomes.gave_up(outcome, limits, answer),
        http_status=run.status,
        observer_lag_ms=lag_ms,
    )


async def _cancelled(*tasks: asyncio.Task[T]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _wait(
    run: _Run, limits: Limits, steps_before: float | None, steps: StepCounter
) -> Outcome:
    """Returns only when patience ends."""
    await run.sent_event.wait()
    assert run.sent is not None  # noqa: S101 - set with the event
    run.patience = patience = Patience(limits, run.sent / 1e9, steps_before)
    while True:
        now_s = time.monotonic_ns() / 1e9
        await asyncio.sleep(max(0.0, patience.next_reading_s(now_s) - now_s))
        if patience.needs_reading(time.monotonic_ns() / 1e9):
            counter = await steps()
            outcome = patience.conclude(time.monotonic_ns() / 1e9, counter)
            if outcome is not None:
                return outcome


async def _receive(
    http: httpx.AsyncClient, request: CanaryRequest, run: _Run
) -> tuple[Outcome, str | None]:
    """Follows the stream; every failure becomes an outcome."""
    try:
        async with http.stream(
            "POST",
            request.path,
            json=request.body,
            # With compression, tokens would be stamped when the compressor flushes a block.
            headers={"X-Request-Id": request.request_id, "Accept-Encoding": "identity"},
            extensions={"trace": run.trace},
        ) as response:
            run.status = response.status_code
            if response.status_code != 200:
                return outcomes.refusal(response.status_code, await _limited_body(response))
            kind = response.headers.get("content-type", "")
            if "text/event-stream" not in kind:
                body = shortened(await _limited_body(response))
                return (
                    Outcome.MALFORMED,
                    f"the answer is {kind or 'no content type'}, not an event stream: {body}",
                )
            await _events(response, run)
    except httpx.ConnectTimeout:
        return Outcome.REFUSED, f"no connection within {CONNECT_TIMEOUT_S:g} s"
    except httpx.ConnectError as error:
        return Outcome.REFUSED, f"no connection: {error}"
    except httpx.LocalProtocolError:
        return Outcome.REFUSED, UNSENDABLE
    except EventTooLargeError as error:
        return Outcome.MALFORMED, str(error)
    except httpx.HTTPError as error:
        run.done = time.monotonic_ns()
        answered = run.headers is not None or run.reader.answer.first_event_ns is not None
        return outcomes.broken_connection(answered, error)
    run.done = run.done or time.monotonic_ns()
    return outcomes.ended(run.reader.answer)


async def _events(response: httpx.Response, run: _Run) -> None:
    """Reads the events of each chunk, whose time of arrival is taken before anything in it is
    parsed.
    """
    events = EventReader()
    async for chunk in response.aiter_raw():
        chunk_ns = arrived_ns(run.network)
        before = len(run.reader.answer.arrivals_ns)
        for data in events.feed(chunk):
            run.reader.event(data, chunk_ns)
        if run.patience is not None and len(run.reader.answer.arrivals_ns) > before:
            run.patience.token(chunk_ns / 1e9)
        if run.reader.answer.finished:
            run.done = chunk_ns
            return  # anything after [DONE] is not part of the answer


async def _limited_body(response: httpx.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ERROR_BODY:
            break
    return body
