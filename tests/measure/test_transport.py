"""The road to a server: through TLS with one's own authority, through a gateway's path or a proxy,
and what fails on the way.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpcore
import httpx
import pytest
from httpcore._synchronization import current_async_library
from standin import StandIn

from monitor.config.target import TargetSettings
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream import tcp
from monitor.measure.stream.arrivals import Backend
from monitor.measure.stream.client import ConnectionSetupError, Stream, client, client_of, stream
from monitor.measure.stream.patience import Limits
from monitor.measure.stream.request import CanaryRequest
from monitor.measure.stream.transport import EXCEPTIONS, goes_through_a_proxy
from monitor.model import Outcome
from monitor.tls import well_known_authorities

from .peers import CA_FILE, Peer, peer

LIMITS = Limits(max_wait_s=5.0, hang_after_s=5.0, give_up_s=20.0, answer_s=20.0)
ASK = CanaryRequest(
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "Is the sky blue?"}], "stream": True},
    "canary-1",
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ROLE = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
)
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def token(word: str) -> bytes:
    """One token's event."""
    return (
        b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
        % word.encode()
    )


async def no_counter() -> float | None:
    return None


async def streamed(url: str, **settings: Any) -> Stream:
    """One canary through the client of a configured target."""
    async with client_of(
        TargetSettings.model_validate({"name": "local", "url": url, **settings})
    ) as http:
        return await stream(http, ASK, LIMITS, None, no_counter)


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# ---- TLS ----


def in_order(result: Stream) -> list[int]:
    """The marks of a good answer, each there and none before the one before it."""
    m = result.marks
    marks = [
        m.connect_started,
        m.connected,
        m.sent,
        m.headers,
        m.first_event,
        m.first_token,
        m.last_token,
        m.done,
    ]
    found = [mark for mark in marks if mark is not None]
    assert len(found) == len(marks)
    assert found == sorted(found)
    assert found[-1] <= time.monotonic_ns()
    return found


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_events_that_come_in_one_piece_came_at_one_moment(tls: bool) -> None:
    def script(server: Peer) -> None:
        server.read_request()
        server.send(HEAD)
        time.sleep(0.05)
        server.send(ROLE, token("one"), token("two"))
        time.sleep(0.2)
        server.send(token("three"), STOP, DONE)

    with peer(script, tls) as (url, _):
        result = await streamed(url, ca_file=CA_FILE)
    assert (result.outcome, result.answer.text) == (Outcome.OK, "onetwothree")
    in_order(result)
    one, two, three = result.answer.arrivals_ns
    assert one == two == result.marks.first_event == result.marks.first_token
    assert three - two >= 100_000_000


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_an_event_counts_from_when_its_last_byte_was_there(tls: bool) -> None:
    """Inside TLS the first half of a record says nothing yet, and the events before it keep their
    own time.
    """

    def script(server: Peer) -> None:
        server.read_request()
        server.send(HEAD, token("one"))
        time.sleep(0.2)
        server.send(token("two"), STOP, DONE, halves_apart_s=0.1)

    with peer(script, tls) as (url, accepted):
        result = await streamed(url, ca_file=CA_FILE)
    in_order(result)
    one, two = result.answer.arrivals_ns
    rest_left = accepted[0].left_ns[-1]
    assert one < rest_left - 100_000_000
    if tls:
        assert two >= rest_left


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_busy_loop_moves_no_mark_of_what_came_meanwhile(tls: bool) -> None:
    def script(server: Peer) -> None:
        server.read_request()
        for _ in range(20):  # the kernel begins to stamp a moment after it was asked
            server.send(b"" if server.left_ns else HEAD, b": keep-alive\n\n")
            time.sleep(0.002)
        time.sleep(0.1)
        server.send(token("one"))
        time.sleep(0.5)
        server.send(STOP, DONE)

    def stand_still() -> None:
        while len(accepted[0].left_ns) < 21:  # until the token has left, and for a while after
            time.sleep(0.01)
        time.sleep(0.3)

    with peer(script, tls) as (url, accepted):
        asyncio.get_running_loop().call_later(0.05, stand_still)
        result = await streamed(url, ca_file=CA_FILE)
    in_order(result)
    assert result.observer_lag_ms is not None
    assert result.observer_lag_ms > 300
    assert result.marks.first_token is not None
    assert result.marks.first_token < accepted[0].left_ns[20] + 50_000_000


async def test_a_large_answer_inside_tls_comes_whole() -> None:
    words = [f"w{number} " for number in range(3000)]

    def script(server: Peer) -> None:
        server.read_request()
        server.send(HEAD, *map(token, words[:1500]))
        server.send(*map(token, words[1500:]), STOP, DONE)

    with peer(script, tls=True) as (url, _):
        result = await streamed(url, ca_file=CA_FILE)
    assert result.outcome is Outcome.OK
    assert result.answer.text == "".join(words)
    assert result.answer.arrivals_ns == sorted(result.answer.arrivals_ns)


@pytest.mark.usefixtures("no_proxies")
async def test_the_name_in_the_certificate_must_be_the_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def here(_: str, port: int) -> list[Any]:
        return [(socket.AF_INET, ("127.0.0.1", port))]

    monkeypatch.setattr(tcp, "_addresses", here)
    with peer(lambda server: None, tls=True) as (url, _):
        result = await streamed(url.replace("127.0.0.1", "gpu.test"), ca_file=CA_FILE)
    assert result.outcome is Outcome.REFUSED
    assert "gpu.test" in (result.detail or "")


async def test_a_server_of_an_authority_that_nobody_named_is_refused_with_the_reason() -> None:
    with peer(lambda server: None, tls=True) as (url, _):
        result = await streamed(url)
    assert result.outcome is Outcome.REFUSED
    assert "CERTIFICATE_VERIFY_FAILED" in (result.detail or "")


async def test_a_plain_server_where_tls_was_expected_is_refused_with_the_reason() -> None:
    async def rude(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    result = await streamed(
        f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", ca_file=CA_FILE
    )
    server.close()
    assert result.outcome is Outcome.REFUSED
    assert "SSL" in (result.detail or "")


def test_an_authority_that_cannot_be_read_is_the_users_to_mend(tmp_path: Any) -> None:
    target = TargetSettings.model_validate(
        {"name": "local", "url": "https://gpu.test", "ca_file": str(tmp_path / "none.pem")}
    )
    with pytest.raises(ConnectionSetupError, match=r"none\.pem"):
        client_of(target)


async def test_a_fleet_reads_the_well_known_authorities_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200 targets had 200 copies of them: 0.7 MB and 20 ms each."""
    well_known_authorities.cache_clear()
    read: list[str | None] = []
    really = ssl.SSLContext.load_verify_locations

    def noted(self: ssl.SSLContext, cafile: str | None = None, *rest: Any, **named: Any) -> None:
        read.append(cafile)
        really(self, cafile, *rest, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", noted)
    for number in range(20):
        await client(f"https://gpu-{number}.test", None).aclose()
        await client(f"http://127.0.0.1:{8000 + number}", None).aclose()
    assert len(read) <= 1


# ---- gateways and proxies ----


async def test_a_gateways_path_is_before_every_path_of_ours(standin: StandIn) -> None:
    async with client(f"{standin.url}/team/a", None) as http:
        await stream(http, ASK, LIMITS, None, no_counter)
        await http.get("/v1/models")
    target = TargetSettings.model_validate({"name": "local", "url": f"{standin.url}/team/a/v1"})
    async with client_of(target) as http:
        await MetricsPage(http, target.metrics_page).read()
    assert standin.state.paths == [
        "POST /team/a/v1/chat/completions",
        "GET /team/a/v1/models",
        "GET /team/a/metrics",
    ]


async def test_a_metrics_page_behind_another_address_is_read_there(standin: StandIn) -> None:
    async with StandIn() as metrics:
        target = TargetSettings.model_validate(
            {"name": "local", "url": standin.url, "metrics_url": f"{metrics.url}/metrics"}
        )
        async with client_of(target) as http:
            page = await MetricsPage(http, target.metrics_page).read()
        assert (page.state, metrics.state.paths, standin.state.paths) == (
            "ok",
            ["GET /metrics"],
            [],
        )


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("127.0.0.1", "localhost")]
)
async def test_a_server_is_reached_by_number_and_by_name_on_a_road_of_ours(
    host: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, really = [], Backend.connect_tcp

    async def noted(self: Backend, *args: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        opened.append(args)
        return await really(self, *args, **named)

    monkeypatch.setattr(Backend, "connect_tcp", noted)
    try:
        standin = StandIn(host)
        await standin.start()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    async with client(f"http://{address}:{standin.port}", None) as http:
        result = await stream(http, ASK, LIMITS, None, no_counter)
        assert (
            await MetricsPage(http, f"http://{address}:{standin.port}/metrics").read()
        ).state == "ok"
    await standin.stop()
    assert result.outcome is Outcome.OK
    assert len(opened) == 2
    in_order(result)


async def test_extra_headers_go_with_every_request(standin: StandIn) -> None:
    await streamed(standin.url, headers={"X-Tenant": "canary"})
    assert standin.state.headers[-1]["x-tenant"] == "canary"


@asynccontextmanager
async def proxy(answer: Callable[[str], bytes]) -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP proxy that notes what it is asked for and answers by itself."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split("\r\n", 1)[0])
        writer.write(answer(head))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.usefixtures("no_proxies")
async def test_a_proxy_of_the_environment_is_used_and_marks_are_still_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with proxy(lambda _: HEAD + ROLE + token("Yes") + STOP + DONE) as (address, asked):
        monkeypatch.setenv("HTTP_PROXY", address)
        result = await streamed("http://gpu.test:8000")
    assert asked == ["POST http://gpu.test:8000/v1/chat/completions HTTP/1.1"]
    assert result.outcome is Outcome.OK
    in_order(result)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize(
    ("environment", "url", "through"),
    [
        ({}, "http://gpu.test", False),
        ({"HTTP_PROXY": "http://p:1"}, "http://gpu.test", True),
        ({"HTTP_PROXY": "http://p:1"}, "https://gpu.test", False),
        ({"HTTPS_PROXY": "http://p:1"}, "https://gpu.test", True),
        ({"ALL_PROXY": "http://p:1"}, "http://gpu.test", True),
        ({"ALL_PROXY": "http://p:1"}, "http://127.0.0.1:8000", False),
        ({"ALL_PROXY": "http://p:1"}, "http://localhost:8000", False),
        ({"ALL_PROXY": "http://p:1"}, "http://[::1]:8000", False),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "gpu.test"}, "http://gpu.test:8000", False),
        (
            {"ALL_PROXY": "http://p:1", "NO_PROXY": "other.test,.test"},
            "http://gpu.test:8000",
            False,
        ),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "10.0.0.7"}, "http://10.0.0.7:8000", False),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "*"}, "http://gpu.test:8000", False),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": "other.test"}, "http://gpu.test:8000", True),
    ],
)
def test_whether_a_proxy_is_on_the_way_is_as_the_environment_says(
    environment: dict[str, str], url: str, through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert goes_through_a_proxy(url) is through


def test_a_request_looks_through_no_folder_for_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each lock of httpcore asks for a library that may not be there; on the loop that takes time
    stamps that is 0.1 ms of file system.
    """
    looked_for: list[str] = []

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            looked_for.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    current_async_library()
    assert looked_for == []


# ---- errors ----


def test_every_exception_that_httpcore_can_raise_has_its_name_in_httpx() -> None:
    """What an update of either library adds must not come through under a name that nobody
    catches.
    """
    raised = {
        name: kind
        for name in httpcore.__all__
        if isinstance(kind := getattr(httpcore, name), type)
        and issubclass(kind, Exception)
        and hasattr(httpx, name)
    }
    assert set(raised.values()) == set(EXCEPTIONS)
    assert all(
        EXCEPTIONS[kind].__name__ == name and issubclass(EXCEPTIONS[kind], httpx.HTTPError)
        for name, kind in raised.items()
    )


async def test_a_server_that_breaks_off_in_its_head_and_in_its_body_raises_what_httpx_raises() -> (
    None
):
    for sent, error in (
        (b"", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nfour", httpx.RemoteProtocolError),
    ):

        def script(server: Peer, sent: bytes = sent) -> None:
            server.read_request()
            server.send(sent)

        with peer(script) as (url, _):
            async with client(url, None) as http:
                with pytest.raises(error):
                    await http.get("/")
