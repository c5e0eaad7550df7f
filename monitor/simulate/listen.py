"""A port and who answers on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Self

from monitor.errors import USAGE, UserError
from monitor.simulate.wire import Connection, Exchange


class PortTakenError(UserError):
    """An address that cannot be listened on."""

    exit_code = USAGE


class Listener:
    """Listens on one address and hands every request to `handle`. `port` 0 picks a free one."""

    def __init__(
        self, handle: Callable[[Exchange], None], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.host, self.port = host, port
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()

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
        """Listen. Raises PortTakenError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._handle, self._connections), self.host, self.port
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
        """Close the port and cut what is open, as a killed process does."""
        if self._server is None:
            return
        self._server.close()
        self.cut()
        await self._server.wait_closed()
        self._server = None

    def cut(self, keep: Callable[[Connection], bool] = lambda _: False) -> None:
        """Close every connection at once, but for those that `keep` names."""
        for connection in list(self._connections):
            if not keep(connection):
                connection.abort()
