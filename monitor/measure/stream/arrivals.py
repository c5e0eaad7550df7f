"""When bytes came and went, as near to the wire as a program can tell: the kernel notes when each
packet arrived, and we ask it.

A time stamp of our own is late by whatever this process or this machine does when the bytes come:
another callback of the loop, a thread that holds the interpreter, a collection of garbage, other
people's work. The kernel's stamp is not (SO_TIMESTAMPING; Linux,
Documentation/networking/timestamping.rst). Where it gives none, the moment of reading serves:
docs/units.md says where that is.

Of a read that finds several packets the kernel tells the last one's arrival: a mark is never
earlier than its bytes, and never later than the reading of them. Inside TLS the same holds record
by record: a record can be opened only when its last byte is there, and it is handed on before
anything more is read.

httpcore lets us bring the connection (`network_backend`), and its trace hook hands it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import anyio
import httpcore
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from monitor.measure.stream.tcp import connected_socket, why

SO_TIMESTAMPING = 37  # asm-generic/socket.h; the module `socket` has no name for it
#: linux/net_tstamp.h: SOF_TIMESTAMPING_RX_SOFTWARE (take a stamp when a packet comes) and
#: SOF_TIMESTAMPING_SOFTWARE (tell it).
TAKE_AND_TELL = 1 << 3 | 1 << 4
ANCILLARY_BYTES = socket.CMSG_SPACE(
    3 * struct.calcsize("@ll")
)  # struct scm_timestamping: three timespecs, the first is the software's
READ_BYTES = 65_536
# the two clocks may be slewed against each other by so much between two reads; more is a clock that
# was set
CLOCKS_APART_NS = 1_000_000
TIGHT_NS = 5_000
ARRIVED, FIRST_WRITE = (
    "arrived_ns",
    "first_write_ns",
)  # what `get_extra_info` answers besides httpcore's own names


def arrived_ns(network: Any) -> int:
    """When the bytes that were read last came to this machine (monotonic); now, on a connection
    that does not tell or on none.
    """
    found: int | None = None if network is None else network.get_extra_info(ARRIVED)
    return time.monotonic_ns() if found is None else found


def first_write_ns(network: Any) -> int | None:
    """When the request's first byte was handed to the kernel (monotonic); None on a connection that
    does not tell.
    """
    found: int | None = None if network is None else network.get_extra_info(FIRST_WRITE)
    return found


class Backend(httpcore.AsyncNetworkBackend):
    """Opens connections that know when their bytes came."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002 - the signature is httpcore's; our pool sets none
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection. Raises httpcore.ConnectTimeout or httpcore.ConnectError."""
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
        return Connection(wire, wire)

    async def sleep(self, seconds: float) -> None:
        """As httpcore wants it."""
        await asyncio.sleep(seconds)


class Wire(ByteStream):
    """A connected socket. `arrived_ns`: when the bytes that were received last came to this
    machine; None before the first.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] | None = None
        self.not_before_ns = (
            time.monotonic_ns()
        )  # no mark is earlier: the opening, the first write, the last arrival
        self.arrived_ns: int | None = None
        ask_for_stamps(sock)

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        """What has come. Raises EndOfStream at the end, OSError for a connection that broke,
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
                await asyncio.sleep(
                    0
                )  # a peer that never pauses must not keep the loop from everybody else
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
        """All of it."""
        await self._loop.sock_sendall(self._sock, item)

    async def send_eof(self) -> None:
        """No more from us."""
        self._sock.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Let go of it; whoever still waits for bytes is told."""
        if self._ready is not None:
            _settle(self._ready)
        self._stop_waiting()
        with contextlib.suppress(OSError):  # closed already, or nothing there
            self._sock.recv(
                READ_BYTES
            )  # what lies unread would make the kernel send a reset in place of a farewell
        self._sock.close()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """None; TLSStream asks."""
        return {}


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def ask_for_stamps(sock: socket.socket) -> bool:
    """Switch the kernel's stamps on; False where it has none to give (another system, a sandbox):
    the moment of reading serves.
    """
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TAKE_AND_TELL)
    except OSError:
        return False
    return True


def stamp(ancillary: Iterable[tuple[int, int, bytes]], not_before_ns: int) -> int:
    """When the bytes came, as monotonic time, from what the kernel told with them; now, where it
    told nothing.

    The kernel stamps by the wall clock. A stamp from before `not_before_ns` or from the future was
    made by a clock that has been set since, and is not believed.
    """
    for level, kind, data in ancillary:
        if (
            level == socket.SOL_SOCKET
            and kind == SO_TIMESTAMPING
            and len(data) >= struct.calcsize("@ll")
        ):
            seconds, nanoseconds = struct.unpack_from("@ll", data)
            arrived: int = seconds * 10**9 + nanoseconds - wall_less_monotonic_ns()
            if not_before_ns - CLOCKS_APART_NS <= arrived <= time.monotonic_ns():
                return max(arrived, not_before_ns)
    return max(time.monotonic_ns(), not_before_ns)


def wall_less_monotonic_ns() -> int:
    """How far the wall clock is ahead of the monotonic one: the tightest of a few readings, since a
    thread may cut in between the two.
    """
    best_ns, difference_ns = 2**63, 0
    for _ in range(4):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < best_ns:
            best_ns, difference_ns = after - before, wall - (before + after) // 2
        if best_ns <= TIGHT_NS:
            break
    return difference_ns


class Connection(httpcore.AsyncNetworkStream):
    """What httpcore reads and writes: the wire itself, or TLS on it."""

    def __init__(self, stream: ByteStream, wire: Wire) -> None:
        self._stream, self._wire = stream, wire
        self._first_write_ns: int | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Empty at the end. Raises httpcore.ReadTimeout or httpcore.ReadError."""
        try:
            async with asyncio.timeout(timeout):
                return await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (
            TimeoutError
        ) as error:  # ours, or that of the system for a peer that has gone without a word
            raise httpcore.ReadTimeout(str(error) or f"nothing came within {timeout} s") from error
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of it. Raises httpcore.WriteTimeout or httpcore.WriteError."""
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
        """Let go of it, without TLS's farewell: a server that is gone must not hold us up."""
        await self._wire.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """The same connection inside TLS. Raises httpcore.ConnectTimeout or
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
            if isinstance(
                error, (OSError, anyio.EndOfStream, anyio.BrokenResourceError)
            ):  # ssl.SSLError is an OSError
                raise httpcore.ConnectError(
                    str(error) or "the server ended the connection where TLS should begin"
                ) from error
            raise
        return Connection(inside, self._wire)

    def get_extra_info(self, info: str) -> Any:
        """httpcore asks for the TLS object, we ask for the times."""
        if info == ARRIVED:
            return self._wire.arrived_ns
        if info == FIRST_WRITE:
            return self._first_write_ns
        if info == "ssl_object":
            return self._stream.extra(TLSAttribute.ssl_object, None)  # noqa: S610 - anyio's, not Django's
        return None
