"""The processes of `demo`: our own commands as children, the receiver of the webhook, and the
simulator's control endpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypedDict

from monitor.cli.common import CommandError
from monitor.errors import UNMEASURED

START_S = 30.0


class IncidentPart(TypedDict):
    """What the story reports of a delivery's incident."""

    kind: str
    summary: str


class SentAlert(TypedDict):
    """A notification as it was sent (docs/alerts.md)."""

    event: str
    incident: IncidentPart


class Child:
    """One of our own commands as a process; its output goes to a file."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name, self._log = name, folder / f"{name}.log"
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("VLLM_CANARY", "NOTIFY_", "WATCHDOG_"))
        }
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "monitor.cli", *arguments]
            # A session of its own, so that Ctrl-C reaches only us, who end our children in order.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def printed_after(self, mark: str) -> str:
        """The rest of the first line that contains `mark`. Raises CommandError if none comes."""
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            for line in self._log.read_text().splitlines():
                if mark in line:
                    return line.split(mark, 1)[1].strip()
            self.must_run()
            time.sleep(0.05)
        raise CommandError(
            f"{self.name} did not start within {START_S:g} s; see {self._log}", UNMEASURED
        )

    def must_run(self) -> None:
        """Raises CommandError if it has ended."""
        if self._process.poll() is not None:
            raise CommandError(
                f"{self.name} ended with exit code {self._process.returncode}; see {self._log}",
                UNMEASURED,
            )

    def stop(self) -> None:
        """Terminates it; kills it if that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(8)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Receiver:
    """A webhook receiver on loopback that keeps every delivery."""

    def __init__(self) -> None:
        self.deliveries: list[SentAlert] = []
        deliveries = self.deliveries

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                deliveries.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Prints nothing: the story reports deliveries."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def first(self, event: str, kind: str) -> SentAlert | None:
        """The first delivery of this kind."""
        return next(
            (
                d
                for d in list(self.deliveries)
                if d["event"] == event and d["incident"]["kind"] == kind
            ),
            None,
        )

    def stop(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()


class Simulator:
    """The simulated server's control endpoint."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/-/control"

    def set(self, **changes: object) -> None:
        """Changes settings in this order; `__` in a name is a dot. Raises CommandError."""
        body = json.dumps(
            {name.replace("__", "."): value for name, value in changes.items()}
        ).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - our own child on loopback
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                answer.read()
        except OSError as error:
            raise CommandError(
                f"the simulated server could not be controlled: {error}", UNMEASURED
            ) from None
