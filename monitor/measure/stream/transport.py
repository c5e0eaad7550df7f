"""Which road a client's requests take: ours, on connections that know when bytes came
(arrivals.py), or httpx's own through a proxy.
"""

from __future__ import annotations

import importlib.util
import ssl
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from monitor.config.values import is_loopback
from monitor.measure.stream.arrivals import Backend

if importlib.util.find_spec("sniffio") is None:
    # httpcore asks for it at every lock it makes (httpcore/_synchronization.py), and each time
    # Python looks through its whole path for what is not installed: 0.1 ms, six times a request.
    # Told once that it is not there, Python looks no more.
    sys.modules["sniffio"] = None  # type: ignore[assignment]


class Transport(httpx.AsyncBaseTransport):
    """httpcore's pool on connections of ours. What httpx's own transport does, from public parts
    only: httpx passes no backend through.

    No connection is kept: see monitor/measure/stream/client.py.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context, max_keepalive_connections=0, network_backend=Backend()
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; the answer's head. Raises httpx.TransportError."""
        url = request.url
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx_says_it():
            answer = await self._pool.handle_async_request(asked)
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Close what is open."""
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    """The answer's body as it comes."""

    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._answer.stream, AsyncIterable)  # noqa: S101 - of an asynchronous pool it is
        with _as_httpx_says_it():
            async for part in self._answer.stream:
                yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


#: httpx has an exception of the same name for each of httpcore's that reaches a caller.
_NAMES = (
    *(
        "ConnectTimeout",
        "ReadTimeout",
        "WriteTimeout",
        "PoolTimeout",
        "TimeoutException",
        "ConnectError",
        "ReadError",
        "WriteError",
    ),
    *(
        "NetworkError",
        "ProxyError",
        "UnsupportedProtocol",
        "LocalProtocolError",
        "RemoteProtocolError",
        "ProtocolError",
    ),
)
EXCEPTIONS: dict[type[Exception], type[httpx.TransportError]] = {
    getattr(httpcore, name): getattr(httpx, name) for name in _NAMES
}


@contextmanager
def _as_httpx_says_it() -> Iterator[None]:
    try:
        yield
    except tuple(EXCEPTIONS) as error:
        said = next(EXCEPTIONS[kind] for kind in type(error).__mro__ if kind in EXCEPTIONS)
        raise said(str(error)) from error


@cache
def well_known_authorities() -> ssl.SSLContext:
    """The well-known certificate authorities, read once: 20 ms and 0.7 MB that each client of a
    fleet would spend again.
    """
    return httpx.create_ssl_context()


def goes_through_a_proxy(url: str) -> bool:
    """Whether the environment names a proxy for this address (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY,
    NO_PROXY); never for loopback.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    return (
        not is_loopback(host)
        and bool({parts.scheme, "all"} & {*getproxies()})
        and not proxy_bypass(host)
    )


def roads(url: str, context: ssl.SSLContext) -> dict[str, httpx.AsyncBaseTransport]:
    """`mounts` of httpx for a server at `url`: our road for its address; everything else goes as
    the environment says.
    """
    if goes_through_a_proxy(url):
        return {}
    parts = urlsplit(url)
    return {f"{parts.scheme}://{parts.netloc}": Transport(context)}
