"""A receiver of webhooks on a thread: stores the deliveries and answers as configured."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Listens on loopback. `statuses`: the next answers, then 204; `delay_s`: the time of each."""

    def __init__(self) -> None:
        self.deliveries: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.delay_s = 0.0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        """The address for deliveries; its last part looks like the secret of such addresses."""
        return f"http://127.0.0.1:{self.port}/hook/T0KEN-s3cret"

    def opened(self, kind: str) -> list[dict[str, Any]]:
        """The incidents of a kind in the `opened` deliveries."""
        return [
            d["incident"]
            for d in list(self.deliveries)
            if d["event"] == "opened" and d["incident"]["kind"] == kind
        ]

    def start(self, port: int = 0) -> None:
        """Starts to listen, after a stop on the same port."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                time.sleep(receiver.delay_s)
                receiver.headers.append(
                    {name.lower(): value for name, value in self.headers.items()}
                )
                receiver.deliveries.append(json.loads(body))
                try:
                    self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                    self.send_header("content-length", "0")
                    self.end_headers()
                except ConnectionError:
                    pass  # the sender has disconnected

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port or getattr(self, "port", 0)), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuses connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
