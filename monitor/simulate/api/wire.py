"""HTTP/1.1 as far as an API server needs it, directly on asyncio transports: no task per connection
and no periodic timer.

Hundreds of simulated servers share a core, so an idle connection must cost nothing, and a token
little more than its bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self, cast

from monitor.errors import USAGE, UserError

KEEP_ALIVE_S = 5.0  # VLLM_HTTP_TIMEOUT_KEEP_ALIVE
MAX_HEAD = 65_536
MAX_BODY = 64 * 1024 * 1024
_PHRASES = {int(status): status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and its response in progress. `on_gone` is called when the client disconnects
    before the end.
    """

    request: HttpRequest
    connection: HttpConnection
    status: int = 0
    sent: int = 0  # bytes of the body
    over: bool = False
    on_gone: Callable[[], None] | None = None
    on_over: list[Callable[[Exchange], None]] = field(default_factory=list)

    def reply(self, body: Any, status: int = 200, kind: str = "application/json") -> None:
        """Sends a whole response: text as it is, anything else as JSON."""
        content = body.encode() if isinstance(body, str) else compact(body).encode()
        self.status, self.sent = status, len(content)
        self.connection.write(_head(status, kind, f"content-length: {len(content)}") + content)
        self._end()

    def begin_stream(self) -> None:
        """Sends the head of an event stream: at once, as vLLM does, long before the first event."""
        self.status = 200
        self.connection.write(
            _head(200, "text/event-stream; charset=utf-8", "transfer-encoding: chunked")
        )

    def events(self, *events: Mapping[str, Any] | str) -> None:
        """Sends events in one chunk, and so in one packet."""
        data = "".join(
            f"data: {e if isinstance(e, str) else compact(e)}\n\n" for e in events
        ).encode()
        self.connection.write(b"%x\r\n%s\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """Ends the stream."""
        self.connection.write(b"0\r\n\r\n")
        self._end()

    def abort(self) -> None:
        """Closes the connection as a dying process does."""
        self._end(keep=False)
        self.connection.abort()

    def gone(self) -> None:
        """Notes that the client has disconnected."""
        if not self.over:
            self.over = True
            if self.on_gone is not None:
                self.on_gone()

    def _end(self, keep: bool = True) -> None:
        self.over = True
        for callback in self.on_over:
            callback(self)
        if keep:
            self.connection.answered()


def compact(value: Any) -> str:
    """JSON as vLLM writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _head(status: int, kind: str, length: str) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Status')}",
        "server: uvicorn",
        f"content-type: {kind}",
        length,
    )
    return "\r\n".join((*lines, "", "")).encode("latin-1")


class HttpConnection(asyncio.Protocol):
    """One client connection. Requests are answered one after the other; `handle` gets each with
    its Exchange.
    """

    def __init__(self, handle: Callable[[Exchange], None], opened: set[HttpConnection]) -> None:
        self._handle = handle
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._waiting: deque[HttpRequest] = deque()
        self._current: Exchange | None = None
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._opened.add(self)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why does not matter here
        """A client has disconnected."""
        self._opened.discard(self)
        self._transport = None
        self._wake()
        if self._current is not None:
            self._current.gone()

    def eof_received(self) -> bool:
        """A client that has sent everything could still read; uvicorn, vLLM's server,
        treats this as a disconnect.
        """
        return False

    def data_received(self, data: bytes) -> None:
        """Buffers bytes; takes requests off the front as they become complete."""
        self._wake()
        self._buffer += data
        while not self._closing and self._take():
            pass
        self._next()
        self._rest()

    @property
    def path_in_progress(self) -> str | None:
        """The path of the request in progress."""
        return None if self._current is None else self._current.request.path

    def write(self, data: bytes) -> None:
        """Sends bytes; they are dropped after a disconnect."""
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        """Closes at once, without sending what is buffered."""
        if self._transport is not None:
            self._transport.abort()

    def answered(self) -> None:
        """Continues with the next request after a complete response."""
        asked = (
            self._current.request.headers.get("connection", "") if self._current is not None else ""
        )
        self._current = None
        if asked.lower() == "close" or self._closing:
            if self._transport is not None:
                self._transport.close()
            return
        # deferred: the handler of this response may not have returned yet
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._rest()

    def _next(self) -> None:
        if self._current is None and self._waiting and self._transport is not None:
            exchange = self._current = Exchange(self._waiting.popleft(), self)
            self._handle(exchange)

    def _take(self) -> bool:
        """Moves one request from the buffer to the queue. Returns False while it is incomplete."""
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            if len(self._buffer) > MAX_HEAD:
                self._refuse(431)
            return False
        try:
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target, _ = first.split(" ")
            headers = {
                name.strip().lower(): value.strip()
                for name, value in (line.split(":", 1) for line in lines)
            }
            length = int(headers.get("content-length", "0"))
        except ValueError:
            self._refuse(400)
            return False
        if "transfer-encoding" in headers or not 0 <= length <= MAX_BODY:
            self._refuse(411 if "transfer-encoding" in headers else 413)
            return False
        if len(rest) < length:
            return False
        self._buffer = rest[length:]
        self._waiting.append(HttpRequest(method, target.partition("?")[0], headers, rest[:length]))
        return True

    def _refuse(self, status: int) -> None:
        self._closing = True
        self.write(_head(status, "text/plain", "content-length: 0\r\nconnection: close"))
        if self._transport is not None:
            self._transport.close()

    def _rest(self) -> None:
        if self._current is None and self._transport is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._tired)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tired(self) -> None:
        self._timer = None
        if self._current is None and self._transport is not None:
            self._transport.close()


class PortTakenError(UserError):
    """An address that cannot be listened on."""

    exit_code = USAGE


class Listener:
    """Listens on one address and passes every request to `handle`. `port` 0 picks a free one."""

    def __init__(
        self, handle: Callable[[Exchange], None], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.host, self.port = host, port
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._connections: set[HttpConnection] = set()

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens. Raises PortTakenError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: HttpConnection(self._handle, self._connections), self.host, self.port
            )
        except (OSError, OverflowError) as error:
            why = (
                os.strerror(error.errno)
                if isinstance(error, OSError) and error.errno
                else str(error)
            )
            raise PortTakenError(
                f"cannot listen on {self.host}:{self.port}: {why}; choose another port, or 0 "
                "for a free one"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes the port and cuts open connections, as a killed process does."""
        if self._server is None:
            return
        self._server.close()
        self.cut()
        await self._server.wait_closed()
        self._server = None

    def cut(self, keep: Callable[[HttpConnection], bool] = lambda _: False) -> None:
        """Closes every connection at once, except those for which `keep` is true."""
        for connection in list(self._connections):
            if not keep(connection):
                connection.abort()
