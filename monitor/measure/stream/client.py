"""The stream client: the only module that takes the time stamps of an answer. httpx is used here
and wrapped by `client()`.

A new connection is opened for each canary: vLLM closes idle ones after 5 s, so canaries further
apart would sometimes pay for a connection and sometimes race its closing. Connecting has marks of
its own and TTFT starts at `sent`, when it is open.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from monitor.__about__ import __version__
from monitor.config.settings import TargetSettings
from monitor.config.values import Secret, is_loopback
from monitor.errors import USAGE, UserError
from monitor.measure.lag import LagMeter
from monitor.measure.stream.answer import Answer, AnswerReader, error_message, shortened
from monitor.measure.stream.arrivals import arrived_ns, first_write_ns
from monitor.measure.stream.patience import Limits, Patience
from monitor.measure.stream.request import UNSENDABLE, CanaryRequest
from monitor.measure.stream.sse import EventReader, EventTooLargeError
from monitor.measure.stream.transport import roads, well_known_authorities
from monitor.model import Marks, Outcome

CONNECT_TIMEOUT_S = 5.0
MAX_ERROR_BODY = 65_536


def client(
    base_url: str,
    api_key: Secret | None,
    extra_headers: Mapping[str, str] | None = None,
    ca_file: str | None = None,
) -> httpx.AsyncClient:
    """An HTTP client for one server. Proxies of the environment are not used for loopback; the key
    goes into a header only.

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
        mounts=roads(base_url, context),
        trust_env=not is_loopback(urlsplit(base_url).hostname),
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
    )


def client_of(settings: TargetSettings) -> httpx.AsyncClient:
    """The client for a target as it is configured. Raises ConnectionSetupError where its key or its
    certificates are not there.
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
    """A target's key or certificates are not where the configuration says."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Stream:
    """One finished stream: what came, when, and what to make of it. `detail` is a sentence about
    anything that is not ok.
    """

    outcome: Outcome
    marks: Marks
    answer: Answer
    detail: str | None = None
    http_status: int | None = None
    observer_lag_ms: float | None = None


#: Reads the engine's step counter now; None when it cannot be read.
StepCounter = Callable[[], Awaitable[float | None]]


@dataclass(slots=True)
class _Run:
    """The state that the receiving task and the waiting task share."""

    reader: AnswerReader = field(default_factory=AnswerReader)
    connect_started: int | None = None
    connected: int | None = None
    sent: int | None = None
    headers: int | None = None
    done: int | None = None
    status: int | None = None
    sent_event: asyncio.Event = field(default_factory=asyncio.Event)
    patience: Patience | None = None
    network: Any = None  # the open connection, which tells when bytes came (arrivals.py)

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """httpcore's trace hook: the moments that httpx itself does not tell."""
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
    """Send one request and follow its answer to the end, or until patience ends. Never raises for
    what a server does.
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
        await _ended(receiving, waiting)
        lag_ms = lag.stop()
    run.done = run.done or time.monotonic_ns()
    answer = run.reader.close()
    return Stream(
        outcome, run.marks(), answer, detail or _detail(outcome, limits, answer), run.status, lag_ms
    )


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _wait(
    run: _Run, limits: Limits, steps_before: float | None, steps: StepCounter
) -> Outcome:
    """Ends only when patience does."""
    await run.sent_event.wait()
    assert run.sent is not None  # noqa: S101 - set with the event
    run.patience = patience = Patience(limits, run.sent / 1e9, steps_before)
    while True:
        now_s = time.monotonic_ns() / 1e9
        await asyncio.sleep(max(0.0, patience.next_look_s(now_s) - now_s))
        if patience.needs_look(time.monotonic_ns() / 1e9):
            seen = await steps()
            outcome = patience.looked(time.monotonic_ns() / 1e9, seen)
            if outcome is not None:
                return outcome


async def _receive(
    http: httpx.AsyncClient, request: CanaryRequest, run: _Run
) -> tuple[Outcome, str | None]:
    """Follow the stream; what went wrong becomes an outcome."""
    try:
        async with http.stream(
            "POST",
            request.path,
            json=request.body,
            # Compressed, tokens would be stamped when the compressor lets go of a block.
            headers={"X-Request-Id": request.request_id, "Accept-Encoding": "identity"},
            extensions={"trace": run.trace},
        ) as response:
            run.status = response.status_code
            if response.status_code != 200:
                return _refusal(response.status_code, await _limited_body(response))
            if "text/event-stream" not in response.headers.get("content-type", ""):
                kind = response.headers.get("content-type", "no content type")
                return (
                    Outcome.MALFORMED,
                    (
                        f"the answer is {kind}, not an event stream: "
                        f"{shortened(await _limited_body(response))}"
                    ),
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
        return _broken(run, error)
    run.done = run.done or time.monotonic_ns()
    return _judged(run.reader.answer)


async def _events(response: httpx.Response, run: _Run) -> None:
    """Bytes carry the time of their arrival, taken before anything is read in them."""
    events = EventReader()
    async for chunk in response.aiter_raw():
        came_ns = arrived_ns(run.network)
        before = len(run.reader.answer.arrivals_ns)
        for data in events.feed(chunk):
            run.reader.event(data, came_ns)
        if run.patience is not None and len(run.reader.answer.arrivals_ns) > before:
            run.patience.token(came_ns / 1e9)
        if run.reader.answer.finished:
            run.done = came_ns
            return  # what a server sends after [DONE] is not part of the answer


async def _limited_body(response: httpx.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ERROR_BODY:
            break
    return body


def _refusal(status: int, body: bytes) -> tuple[Outcome, str]:
    try:
        message = error_message(json.loads(body))
    except (
        ValueError,
        RecursionError,
    ):  # a body of brackets only is nested deeper than the parser goes
        message = shortened(body) or "no text"
    outcome = Outcome.REJECTED if status in {429, 503} else Outcome.HTTP_ERROR
    return outcome, f"HTTP {status}: {shortened(message.encode(), 300)}"


def _broken(run: _Run, error: httpx.HTTPError) -> tuple[Outcome, str]:
    """A connection that ended badly: after the first event it is a stream error, before it nobody
    answered.
    """
    reason = str(error) or type(error).__name__
    if run.headers is None and run.reader.answer.first_event_ns is None:
        return Outcome.REFUSED, f"the connection was closed before an answer: {reason}"
    return Outcome.STREAM_ERROR, f"the stream broke off: {reason}"


def _judged(answer: Answer) -> tuple[Outcome, str | None]:
    """A stream that ended by itself. Good: a finish reason and [DONE] and no error and something
    said.
    """
    if answer.error is not None:
        return (
            Outcome.STREAM_ERROR,
            f"the server sent an error in the stream: {shortened(answer.error.encode(), 300)}",
        )
    if answer.malformed is not None:
        return Outcome.MALFORMED, answer.malformed
    if answer.finish_reason in {"abort", "error"}:
        return (
            Outcome.STREAM_ERROR,
            f"the server ended the answer with finish_reason {answer.finish_reason}",
        )
    if answer.finish_reason is None or not answer.finished:
        missing = "a finish reason" if answer.finish_reason is None else "[DONE]"
        return Outcome.TRUNCATED, f"the stream ended without {missing}"
    if answer.first_token_ns is None:
        return Outcome.EMPTY, "the answer holds no text, no reasoning and no tool call"
    return Outcome.OK, None


def _detail(outcome: Outcome, limits: Limits, answer: Answer) -> str | None:
    if outcome is Outcome.QUEUE_CAP:
        return (
            f"no first token within {limits.max_wait_s:g} s while the engine worked for "
            "others; cancelled"
        )
    if outcome is Outcome.HUNG:
        return (
            f"the engine's step counter stood still for {limits.hang_after_s:g} s while our "
            "request was out: it hangs, or it is paused"
        )
    if outcome is Outcome.TIMEOUT and answer.first_token_ns is not None:
        return f"the answer had not ended {limits.answer_s:g} s after its first token; cancelled"
    if outcome is Outcome.TIMEOUT and limits.max_wait_s is None:
        return f"no first token within {limits.give_up_s:g} s; cancelled"
    if outcome is Outcome.TIMEOUT:
        return "no end of the wait, and no step counter that tells a queue from a hang"
    return None
