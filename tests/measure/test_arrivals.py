"""When bytes came: by the kernel's clock where it tells, by ours elsewhere; never before they were
there, never after they were read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpcore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.measure.stream import arrivals, stamps, tcp
from monitor.measure.stream.arrivals import ARRIVED, FIRST_WRITE, Backend
from monitor.measure.stream.stamps import CLOCKS_APART_NS, SO_TIMESTAMPING, stamp

HOUR_NS = 3600 * 10**9
kernel_tells = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's stamps are Linux's")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@asynccontextmanager
async def connected(
    listener: socket.socket,
) -> AsyncIterator[tuple[httpcore.AsyncNetworkStream, socket.socket]]:
    """A connection of ours and the other end of it."""
    connection = await Backend().connect_tcp("127.0.0.1", listener.getsockname()[1], timeout=5)
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:
        yield connection, peer
    await connection.aclose()


async def awake(connection: httpcore.AsyncNetworkStream, peer: socket.socket) -> None:
    """Until the kernel stamps: it switches that on a moment after it was asked."""
    for _ in range(20):
        peer.sendall(b"warm")
        await connection.read(100)
        await asyncio.sleep(0.002)


def told(wall_ns: int) -> list[tuple[int, int, bytes]]:
    """What the kernel tells beside the bytes."""
    return [
        (
            socket.SOL_SOCKET,
            SO_TIMESTAMPING,
            struct.pack("@llllll", *divmod(wall_ns, 10**9), 0, 0, 0, 0),
        )
    ]


@kernel_tells
async def test_bytes_are_stamped_when_they_came_and_not_when_a_busy_loop_read_them(
    listener: socket.socket,
) -> None:
    async with connected(listener) as (connection, peer):
        await awake(connection, peer)
        reading = asyncio.create_task(connection.read(100))
        await asyncio.sleep(0.01)
        peer.sendall(b"token")
        left = time.monotonic_ns()
        time.sleep(0.3)  # the loop stands still meanwhile
        assert await reading == b"token"
        assert connection.get_extra_info(ARRIVED) < left + 50_000_000


@pytest.mark.parametrize(
    "system", ["another system", "a sandbox that refuses", "a kernel that tells nothing"]
)
async def test_where_the_kernel_does_not_tell_the_moment_of_reading_serves(
    system: str, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "another system":
        monkeypatch.setattr(stamps.sys, "platform", "darwin")
    elif system == "a sandbox that refuses":
        monkeypatch.setattr(stamps, "SO_TIMESTAMPING", 9999)
    else:
        monkeypatch.setattr(stamps, "STAMP_AND_REPORT", 0)
    async with connected(listener) as (connection, peer):
        for _ in range(5):
            peer.sendall(b"token")
            before = time.monotonic_ns()
            assert await connection.read(100) == b"token"
            assert before <= connection.get_extra_info(ARRIVED) <= time.monotonic_ns()


async def test_no_mark_is_before_the_first_write_and_each_is_after_the_last(
    listener: socket.socket,
) -> None:
    async with connected(listener) as (connection, peer):
        await connection.write(b"ask")
        marks = [connection.get_extra_info(FIRST_WRITE)]
        for _ in range(50):
            peer.sendall(b"token")
            await connection.read(100)
            marks.append(connection.get_extra_info(ARRIVED))
        assert marks == sorted(marks)
        assert marks[-1] <= time.monotonic_ns()


async def test_the_first_write_is_kept_and_nothing_is_known_before_it(
    listener: socket.socket,
) -> None:
    async with connected(listener) as (connection, _):
        assert (connection.get_extra_info(FIRST_WRITE), connection.get_extra_info(ARRIVED)) == (
            None,
            None,
        )
        await connection.write(b"")
        assert connection.get_extra_info(FIRST_WRITE) is None
        before = time.monotonic_ns()
        await connection.write(b"head")
        first = connection.get_extra_info(FIRST_WRITE)
        assert before <= first <= time.monotonic_ns()
        await connection.write(b"body")
        assert connection.get_extra_info(FIRST_WRITE) == first


def test_on_no_connection_or_one_that_does_not_tell_it_is_now() -> None:
    class Plain:
        def get_extra_info(self, name: str) -> None:
            return None

    for network in (None, Plain()):
        before = time.monotonic_ns()
        assert before <= arrivals.arrived_ns(network) <= time.monotonic_ns()
        assert arrivals.first_write_ns(network) is None


def test_the_kernels_stamp_becomes_monotonic_time() -> None:
    wall, now = time.time_ns(), time.monotonic_ns()
    assert abs(stamp(told(wall - 30_000_000), 0) - (now - 30_000_000)) < 20_000_000


@pytest.mark.parametrize("off_ns", [-HOUR_NS, HOUR_NS])
def test_a_stamp_of_a_clock_that_was_set_since_is_not_believed(off_ns: int) -> None:
    now = time.monotonic_ns()
    assert now <= stamp(told(time.time_ns() + off_ns), now) <= time.monotonic_ns()


def test_clocks_that_drift_apart_a_little_do_not_turn_the_order_of_marks() -> None:
    wall, now = time.time_ns(), time.monotonic_ns()
    last = now - 10_000_000
    assert stamp(told(wall - 10_000_000 - CLOCKS_APART_NS // 2), last) == last


@pytest.mark.parametrize(
    "ancillary",
    [[], [(socket.SOL_SOCKET, 1, b"x" * 48)], [(socket.SOL_SOCKET, SO_TIMESTAMPING, b"short")]],
)
def test_without_a_stamp_it_is_now(ancillary: Any) -> None:
    now = time.monotonic_ns()
    assert now <= stamp(ancillary, 0) <= time.monotonic_ns()


@settings(deadline=None)
@given(st.lists(st.integers(-2 * HOUR_NS, 2 * HOUR_NS), max_size=20))
def test_whatever_the_kernel_tells_marks_are_in_order_and_never_in_the_future(
    offsets_ns: list[int],
) -> None:
    last = began = time.monotonic_ns()
    for offset_ns in offsets_ns:
        mark = stamp(told(max(0, time.time_ns() + offset_ns)), last)
        assert began <= last <= mark <= time.monotonic_ns()
        last = mark


async def test_the_end_of_a_connection_reads_as_empty(listener: socket.socket) -> None:
    async with connected(listener) as (connection, peer):
        peer.close()
        assert await connection.read(100) == b""


async def test_a_reset_is_a_read_error_and_writing_after_it_a_write_error(
    listener: socket.socket,
) -> None:
    async with connected(listener) as (connection, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        with pytest.raises(httpcore.ReadError):
            await connection.read(100)
        with pytest.raises(httpcore.WriteError):
            await connection.write(b"x")


async def test_a_silent_peer_ends_the_wait_with_its_time_and_not_the_connection(
    listener: socket.socket,
) -> None:
    async with connected(listener) as (connection, peer):
        with pytest.raises(httpcore.ReadTimeout):
            await connection.read(100, timeout=0.05)
        peer.sendall(b"late")
        assert await connection.read(100, timeout=5) == b"late"


async def test_a_peer_that_does_not_read_ends_a_long_write_with_its_time(
    listener: socket.socket,
) -> None:
    async with connected(listener) as (connection, _):
        with pytest.raises(httpcore.WriteTimeout):
            await connection.write(b"x" * 50_000_000, timeout=0.1)


async def test_whoever_waits_for_bytes_is_told_when_the_connection_is_let_go(
    listener: socket.socket,
) -> None:
    async with connected(listener) as (connection, _):
        waiting = asyncio.create_task(connection.read(100))
        await asyncio.sleep(0.02)
        await connection.aclose()
        with pytest.raises(httpcore.ReadError):
            await asyncio.wait_for(waiting, 2)
        await connection.aclose()  # a second time is nothing


async def test_a_connection_that_is_let_go_ends_with_a_farewell_also_where_something_was_unread(
    listener: socket.socket,
) -> None:
    """A reset would stand in a gateway's log as a fault."""
    async with connected(listener) as (connection, peer):
        peer.sendall(b"0\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.aclose()
        peer.settimeout(5)
        assert peer.recv(100) == b""


async def test_a_peer_that_never_pauses_does_not_keep_the_loop_from_others(
    listener: socket.socket,
) -> None:
    stop = threading.Event()

    def flood(peer: socket.socket) -> None:
        while not stop.is_set():
            try:
                peer.sendall(b"x" * 65_536)
            except OSError:
                return

    async with connected(listener) as (connection, peer):
        thread = threading.Thread(target=flood, args=(peer,))
        thread.start()

        async def read_for_ever() -> None:
            while True:
                await connection.read(65_536)

        reading = asyncio.create_task(read_for_ever())
        turns = 0
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            await asyncio.sleep(0)
            turns += 1
        reading.cancel()
        stop.set()
        await connection.aclose()
        await asyncio.to_thread(thread.join)
    assert turns > 10


async def test_a_port_where_nobody_listens_is_a_connect_error_in_the_systems_words(
    listener: socket.socket,
) -> None:
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(httpcore.ConnectError, match="Connection refused"):
        await Backend().connect_tcp("127.0.0.1", port, timeout=5)


async def test_a_name_that_nobody_knows_is_a_connect_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(httpcore.ConnectError, match="Name or service not known"):
        await Backend().connect_tcp("nobody.test", 80, timeout=5)


async def test_an_address_that_does_not_answer_ends_with_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(*_: Any) -> socket.socket:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(tcp, "_connect", silent)
    with pytest.raises(httpcore.ConnectTimeout):
        await Backend().connect_tcp("127.0.0.1", 80, timeout=0.05)


Address = tuple[socket.AddressFamily, tuple[object, ...]]


def addresses(monkeypatch: pytest.MonkeyPatch, *found: Address) -> None:
    """What the name stands for."""

    async def answer(host: str, port: int) -> list[Address]:
        return list(found)

    monkeypatch.setattr(tcp, "_addresses", answer)


async def test_an_address_that_refuses_is_followed_by_the_next(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        refusing = other.getsockname()
    addresses(monkeypatch, (socket.AF_INET, refusing), (socket.AF_INET, listener.getsockname()))
    sock = await tcp.connected_socket("two.test", 80)
    assert sock.getpeername() == listener.getsockname()
    sock.close()


async def test_an_address_that_is_silent_is_not_waited_for_and_is_let_go(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, given_up = tcp._connect, asyncio.Event()

    async def connect(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
        if address[0] == "silent":
            try:
                await asyncio.sleep(60)
            finally:
                given_up.set()
        return await really(family, address)

    monkeypatch.setattr(tcp, "_connect", connect)
    addresses(
        monkeypatch, (socket.AF_INET6, ("silent", 80)), (socket.AF_INET, listener.getsockname())
    )
    began = time.monotonic()
    sock = await tcp.connected_socket("two.test", 80)
    assert time.monotonic() - began < 10
    assert given_up.is_set()
    sock.close()


async def test_of_two_that_answer_at_once_one_is_kept_and_the_other_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = {"one": socket.socket(), "two": socket.socket()}
    both = asyncio.Event()

    async def connect(_: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
        if address[0] == "two":
            both.set()
        await both.wait()
        return made[address[0]]

    monkeypatch.setattr(tcp, "NEXT_ADDRESS_S", 0.01)
    monkeypatch.setattr(tcp, "_connect", connect)
    addresses(monkeypatch, (socket.AF_INET, ("one", 80)), (socket.AF_INET, ("two", 80)))
    kept = await tcp.connected_socket("two.test", 80)
    assert kept.fileno() >= 0
    assert [sock.fileno() >= 0 for sock in made.values()].count(True) == 1
    kept.close()


async def test_a_literal_address_asks_nobody(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a literal address was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    sock = await tcp.connected_socket("127.0.0.1", listener.getsockname()[1])
    sock.close()
