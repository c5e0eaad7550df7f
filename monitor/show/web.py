"""The daemon's HTTP face, on loopback: health, readiness, Prometheus. It runs on a thread of its
own, away from the loop that measures.
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

#: What is wrong, as sentences; an empty list is good.
Complaints = Callable[[], list[str]]


class ListenError(UserError):
    """The address cannot be listened on."""

    exit_code = USAGE


def application(metrics: Callable[[], bytes], alive: Complaints, ready: Complaints) -> Starlette:
    """The routes. `alive` is for a supervisor that restarts, `ready` for one that waits."""

    def answer(complaints: list[str]) -> JSONResponse:
        return JSONResponse(
            {"status": "bad" if complaints else "good", "problems": complaints},
            503 if complaints else 200,
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
    """Serves an application on a thread. The address is taken in the constructor, so that a port in
    use is said at once.
    """

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(
                128
            )  # at once: who is told the address may come before the thread has begun
        except OSError as error:
            self._socket.close()
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror}; stop what holds it, or set "
                "another `listen`"
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
        """The port that is served; of use where port 0 was asked for."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End within about two seconds."""
        self._server.should_exit = True
        self._thread.join(3)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))
