"""Connections that know when bytes arrived and left, as close to the wire as a program can measure.

A timestamp of our own is late by whatever this process or machine does when the bytes arrive:
another callback of the loop, a thread that holds the interpreter, a garbage collection, other
processes. The kernel's stamp is not (stamps.py). Where there is none, the time of reading is used
(docs/units.md).

For a read of several packets the kernel reports the last one's arrival: a mark is never earlier
than its bytes, and never later than the reading of them. Inside TLS the same holds per record: a
record can be opened only when its last byte is there, and it is returned before anything more is
read.

httpcore accepts a connection of ours (`network_backend`), and its trace hook returns it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import anyio
import httpcore
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from monitor.measure.stream.stamps import ANCILLARY_BYTES, request_stamps, stamp
from monitor.measure.stream.tcp import connected_socket, why

READ_BYTES = 65_536
#: Names that `get_extra_info` answers besides httpcore's own.
ARRIVED, FIRST_WRITE = "arrived_ns", "first_write_ns"


class Network(Protocol):
    """An open connection; ours or httpcore's own."""

    def get_extra_info(self, info: str) -> Any:
        """The value of this name, or None."""
        ...


def arrived_ns(network: Network | None) -> int:
    """The monotonic arrival time of the last bytes that were read; now, without a connection or on
    one that does not know it.
    """
    found: int | None = None if network is None else network.get_extra_info(ARRIVED)
    return time.monotonic_ns() if found is None else found


def first_write_ns(network: Network | None) -> int | None:
    """The monotonic time at which the request's first byte was passed to the kernel; None on a
    connection that does not know it.
    """
    found: int | None = None if network is None else network.get_extra_info(FIRST_WRITE)
    return found


class Backend(httpcore.AsyncNetworkBackend):
    """Opens connections that know when their bytes arrived."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002 - httpcore's signature; our pool sets none
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Opens a connection. Raises httpcore.ConnectTimeout or httpcore.ConnectError."""
        try:
            async with asyncio.timeout(timeout):
                sock = await connected_socket(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no connection within {timeout} s") from None
        except OSError as error:
            raise httpcore.ConnectError(why(error)) from error
        for option in socket_options or ():
            sock.setsockopt(*option)
        wire = Wire(sock)
        return TimedConnection(wire, wire)

    async def sleep(self, seconds: float) -> None:
        """Sleeps; httpcore's interface."""
        await asyncio.sleep(seconds)


class Wire(ByteStream):
    """A connected socket. `arrived_ns`: when the last received bytes arrived; None before the
    first.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] | None = None
        # No mark is earlier than this: the opening, the first write, the last arrival.
        self.not_before_ns = time.monotonic_ns()
        self.arrived_ns: int | None = None
        request_stamps(sock)

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """Returns what has arrived. Raises EndOfStream at the end, OSError for a broken connection,
        ClosedResourceError after aclose.
        """
        waited = False
        while True:
            if self._sock.fileno() < 0:
                raise anyio.ClosedResourceError
            try:
                data, ancillary, _, _ = self._sock.recvmsg(max_bytes, ANCILLARY_BYTES)
            except BlockingIOError:
                waited = True
                await self._readable()
                continue
            self.arrived_ns = self.not_before_ns = stamp(ancillary, self.not_before_ns)
            if not data:
                raise anyio.EndOfStream
            if not waited:
                # A peer that never pauses must not block the loop.
                await asyncio.sleep(0)
            return data

    async def _readable(self) -> None:
        self._ready = ready = self._loop.create_future()
        self._loop.add_reader(self._sock.fileno(), _settle, ready)
        try:
            await ready
        finally:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._ready is not None and self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        self._ready = None

    async def send(self, item: bytes) -> None:
        """Sends all bytes."""
        await self._loop.sock_sendall(self._sock, item)

    async def send_eof(self) -> None:
        """Ends our side of the stream."""
        self._sock.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Closes the socket, and wakes a pending `receive`."""
        if self._ready is not None:
            _settle(self._ready)
        self._stop_waiting()
        with contextlib.suppress(OSError):  # closed already, or nothing there
            # Unread bytes would make the kernel send a reset instead of a normal close.
            self._sock.recv(READ_BYTES)
        self._sock.close()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """Empty; TLSStream needs it."""
        return {}


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class TimedConnection(httpcore.AsyncNetworkStream):
    """The stream that httpcore reads and writes: the wire itself, or TLS on it."""

    def __init__(self, stream: ByteStream, wire: Wire) -> None:
        self._stream, self._wire = stream, wire
        self._first_write_ns: int | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Returns the next bytes, empty at the end. Raises httpcore.ReadTimeout or
        httpcore.ReadError.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        # ours, or the system's for a peer that vanished
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error) or f"nothing came within {timeout} s") from error
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends all bytes. Raises httpcore.WriteTimeout or httpcore.WriteError."""
        if not buffer:
            return
        if self._first_write_ns is None:
            self._first_write_ns = self._wire.not_before_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(timeout):
                await self._stream.send(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error) or f"not sent within {timeout} s") from error
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        """Closes the socket without a TLS close: a server that is gone must not delay us."""
        await self._wire.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Returns the same connection inside TLS. Raises httpcore.ConnectTimeout or
        httpcore.ConnectError.
        """
        try:
            async with asyncio.timeout(timeout):
                inside = await TLSStream.wrap(
                    self._wire,
                    ssl_context=ssl_context,
                    hostname=server_hostname,
                    standard_compatible=False,
                )
        except BaseException as error:
            await self.aclose()
            if isinstance(error, TimeoutError):
                raise httpcore.ConnectTimeout(f"no TLS within {timeout} s") from None
            # ssl.SSLError is an OSError
            if isinstance(error, (OSError, anyio.EndOfStream, anyio.BrokenResourceError)):
                raise httpcore.ConnectError(
                    str(error) or "the server closed the connection where TLS should begin"
                ) from error
            raise
        return TimedConnection(inside, self._wire)

    def get_extra_info(self, info: str) -> Any:
        """Returns the TLS object for httpcore, and the times for us."""
        if info == ARRIVED:
            return self._wire.arrived_ns
        if info == FIRST_WRITE:
            return self._first_write_ns
        if info == "ssl_object":
            return self._stream.extra(TLSAttribute.ssl_object, None)  # noqa: S610 - anyio's, not Django's
        return None
