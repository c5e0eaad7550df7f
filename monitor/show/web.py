"""The daemon's HTTP endpoints, on loopback: health, readiness and Prometheus metrics. They run on a
thread of their own, apart from the event loop that measures.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monitor.errors import USAGE, UserError

#: Returns problems as sentences; an empty list means healthy.
Problems = Callable[[], list[str]]


class ListenError(UserError):
    """The address cannot be bound."""

    exit_code = USAGE


def application(metrics: Callable[[], bytes], alive: Problems, ready: Problems) -> Starlette:
    """Returns the routes: `alive` is for a supervisor that restarts, `ready` for one that waits."""

    def answer(problems: list[str]) -> JSONResponse:
        return JSONResponse(
            {"status": "bad" if problems else "good", "problems": problems},
            503 if problems else 200,
        )

    async def healthz(_request: Request) -> Response:
        return answer(alive())

    async def readyz(_request: Request) -> Response:
        return answer(ready())

    async def metrics_page(_request: Request) -> Response:
        return Response(metrics(), headers={"content-type": CONTENT_TYPE_LATEST})

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics_page),
        ]
    )


class WebServer:
    """Serves an application on a thread. The constructor binds the address, so that a port in use
    is reported at once.
    """

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            # listens at once: a client may connect before the thread has started
            self._socket.listen(128)
        except OSError as error:
            self._socket.close()
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop the process that uses it, "
                "or set another `listen`"
            ) from None
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    @property
    def port(self) -> int:
        """The port in use; it differs from the requested one if that was 0."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Starts serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stops within about two seconds."""
        self._server.should_exit = True
        self._thread.join(3)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))
