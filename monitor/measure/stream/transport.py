"""The transport of a client's requests: our own, on connections that time the arrival of bytes
(arrivals.py), or httpx's through a proxy.
"""

from __future__ import annotations

import importlib.util
import ssl
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from monitor.config.values import is_loopback
from monitor.measure.stream.arrivals import Backend

if importlib.util.find_spec("sniffio") is None:
    # httpcore imports it for every lock it makes (httpcore/_synchronization.py), and each time
    # Python searches its whole path for a module that is not installed: 0.1 ms, six times per
    # request. This entry makes the import fail at once.
    sys.modules["sniffio"] = None  # type: ignore[assignment]


class Transport(httpx.AsyncBaseTransport):
    """httpcore's pool on our own connections. Does what httpx's transport does, from public parts
    only: httpx does not pass a backend through.

    No connection is kept alive: see monitor/measure/stream/client.py.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context, max_keepalive_connections=0, network_backend=Backend()
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends one request and returns the response's head. Raises httpx.TransportError."""
        url = request.url
        forwarded = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _httpx_exceptions():
            answer = await self._pool.handle_async_request(forwarded)
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Closes the open connections."""
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    """The body of a response as it comes."""

    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._answer.stream, AsyncIterable)  # noqa: S101 - true of an asynchronous pool
        with _httpx_exceptions():
            async for part in self._answer.stream:
                yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


#: For each exception of httpcore that reaches a caller, httpx has one of the same name.
_NAMES = (
    "ConnectTimeout",
    "ReadTimeout",
    "WriteTimeout",
    "PoolTimeout",
    "TimeoutException",
    "ConnectError",
    "ReadError",
    "WriteError",
    "NetworkError",
    "ProxyError",
    "UnsupportedProtocol",
    "LocalProtocolError",
    "RemoteProtocolError",
    "ProtocolError",
)
EXCEPTIONS: dict[type[Exception], type[httpx.TransportError]] = {
    getattr(httpcore, name): getattr(httpx, name) for name in _NAMES
}


@contextmanager
def _httpx_exceptions() -> Iterator[None]:
    try:
        yield
    except tuple(EXCEPTIONS) as error:
        mapped = next(EXCEPTIONS[kind] for kind in type(error).__mro__ if kind in EXCEPTIONS)
        raise mapped(str(error)) from error


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


def mounts(url: str, context: ssl.SSLContext) -> dict[str, httpx.AsyncBaseTransport]:
    """httpx `mounts` for a server at `url`: our transport for its address; for everything else the
    environment decides.
    """
    if goes_through_a_proxy(url):
        return {}
    parts = urlsplit(url)
    return {f"{parts.scheme}://{parts.netloc}": Transport(context)}
