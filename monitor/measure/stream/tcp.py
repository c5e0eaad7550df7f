"""Opens TCP connections by name: each address in turn, without waiting for a slow one (RFC 8305,
"Happy Eyeballs").
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket

NEXT_ADDRESS_S = 0.25  # RFC 8305, section 8: the recommended delay between two attempts

Address = tuple[socket.AddressFamily, tuple[object, ...]]


async def connected_socket(host: str, port: int) -> socket.socket:
    """A connected non-blocking socket with TCP_NODELAY. Raises OSError: that of the last address,
    or for a name without an address.
    """
    addresses = await _addresses(host, port)
    attempts: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException = OSError(f"{host} has no address")
    try:
        while addresses or attempts:
            if addresses:
                attempts.add(asyncio.create_task(_connect(*addresses.pop(0))))
            done, _ = await asyncio.wait(
                attempts,
                timeout=NEXT_ADDRESS_S if addresses else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                attempts.discard(task)
                error = task.exception()
                if error is None:
                    return task.result()
                failure = error
    finally:
        await _cancelled(attempts)
    raise failure


async def _cancelled(attempts: set[asyncio.Task[socket.socket]]) -> None:
    for task in attempts:
        task.cancel()
    for late in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(late, socket.socket):
            late.close()


async def _addresses(host: str, port: int) -> list[Address]:
    """The addresses of a name, in this machine's order of preference. A literal address needs no
    resolver, and so no thread.
    """
    try:
        family = socket.AF_INET if ipaddress.ip_address(host).version == 4 else socket.AF_INET6
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(family, address) for family, _, _, _, address in found]
    return [(family, (host, port))]


async def _connect(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def why(error: OSError) -> str:
    """The reason in the system's words, for example "Connection refused"."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)
