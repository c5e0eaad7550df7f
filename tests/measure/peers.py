"""The other end of a connection, on a thread: it goes on while the loop under test stands still."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TLS = Path(__file__).parent / "tls"
CA_FILE = str(TLS / "ca.pem")

#: What the peer does: it sends pieces, `pause` waits between them; the times at which pieces left
#: are kept.
Script = Callable[["Peer"], None]


def server_context() -> ssl.SSLContext:
    """A server's certificate for localhost, of the authority in CA_FILE."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    return context


class Peer:
    """One accepted connection, inside TLS where that is asked."""

    def __init__(self, sock: socket.socket, tls: bool) -> None:
        self._sock, self._tls = sock, tls
        self.left_ns: list[int] = []  # when each piece was handed to the kernel
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._inside = server_context().wrap_bio(self._in, self._out, server_side=True)
        if tls:
            self._do(self._inside.do_handshake)
            self._flush()

    def read_request(self) -> bytes:
        """Head and body of one request."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._read()
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            ),
            0,
        )
        while len(body) < length:
            body += self._read()
        return head + b"\r\n\r\n" + body

    def send(self, *events: bytes, halves_apart_s: float = 0.0) -> None:
        """All events in one piece: one TLS record, or one packet. With `halves_apart_s` its second
        half leaves later.
        """
        data = b"".join(events)
        if self._tls:
            self._inside.write(data)
            data = self._out.read()
        middle = len(data) // 2 if halves_apart_s else len(data)
        self._sock.sendall(data[:middle])
        if halves_apart_s:
            time.sleep(halves_apart_s)
            self.left_ns.append(time.monotonic_ns())
            self._sock.sendall(data[middle:])
        else:
            self.left_ns.append(time.monotonic_ns())

    def _read(self) -> bytes:
        return self._do(lambda: self._inside.read(65_536)) if self._tls else self._sock.recv(65_536)

    def _do(self, step: Callable[[], bytes]) -> bytes:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._sock.recv(65_536)
                if not data:
                    raise ConnectionError("the client has left") from None
                self._in.write(data)

    def _flush(self) -> None:
        if self._out.pending:
            self._sock.sendall(self._out.read())


@contextmanager
def peer(script: Script, tls: bool = False) -> Iterator[tuple[str, list[Peer]]]:
    """Serves one connection by a script; hands out the address and, once it was accepted, the
    connection.
    """
    accepted: list[Peer] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            sock, _ = listening.accept()
            sock.settimeout(10)
            with sock:
                try:
                    accepted.append(Peer(sock, tls))
                    script(accepted[0])
                except (OSError, ssl.SSLError):
                    pass  # the client has left

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{listening.getsockname()[1]}", accepted
        finally:
            thread.join(10)
