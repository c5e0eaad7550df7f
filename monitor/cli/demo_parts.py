"""What `demo` is made of: child processes, a webhook's other end, the simulator's switches, and the
figures in the daemon's history.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from monitor.cli.common import CommandError
from monitor.errors import UNMEASURED
from monitor.model import Incident, Outcome, Phase, Sample

START_S = 30.0


class Child:
    """One of our own commands as a process; what it says goes to a file."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name, self._log = name, folder / f"{name}.log"
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("VLLM_CANARY", "NOTIFY_", "WATCHDOG_"))
        }
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "monitor.cli", *arguments]
            # A session of its own: Ctrl-C reaches us alone, and we end our children in order.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def said_after(self, mark: str) -> str:
        """The rest of the line in which it said this. Raises CommandError where it never does."""
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
        """Raises CommandError where it has ended."""
        if self._process.poll() is not None:
            raise CommandError(
                f"{self.name} ended with exit code {self._process.returncode}; see {self._log}",
                UNMEASURED,
            )

    def stop(self) -> None:
        """End it, gently first."""
        self._process.terminate()
        try:
            self._process.wait(8)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Receiver:
    """A webhook's other end on loopback: keeps what it is sent."""

    def __init__(self) -> None:
        self.deliveries: list[dict[str, Any]] = []
        deliveries = self.deliveries

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                deliveries.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Deliveries are told by the story."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def first(self, event: str, kind: str) -> dict[str, Any] | None:
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
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


class Simulator:
    """The simulated server's control endpoint."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/-/control"

    def set(self, **changes: Any) -> None:
        """Switch things, in this order; `__` in a name stands for a dot. Raises CommandError."""
        body = json.dumps(
            {name.replace("__", "."): value for name, value in changes.items()}
        ).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - our own child on loopback
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                answer.read()
        except OSError as error:
            raise CommandError(
                f"the simulated server could not be switched: {error}", UNMEASURED
            ) from None


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One window of the GPU as the daemon has stored it; None: not read."""

    at: datetime
    temp_c: float | None
    clock_mhz: float | None
    power_w: float | None
    thermal_ns: int | None


@dataclass(frozen=True, slots=True)
class History:
    """The daemon's database, read while it writes."""

    database: str

    def is_there(self) -> bool:
        """Whether the daemon has made it."""
        from monitor.store.database import DatabaseError, reading  # noqa: PLC0415 - --help needs no SQLAlchemy
        from monitor.store.queries import targets  # noqa: PLC0415

        try:
            with reading(self.database) as connection:
                return bool(targets(connection))
        except DatabaseError:
            return False

    def samples(
        self,
        probe: str,
        since: datetime,
        outcome: Outcome | None = Outcome.OK,
        phase: Phase | None = None,
    ) -> list[Sample]:
        """Of one probe, oldest first."""
        from monitor.store.database import reading  # noqa: PLC0415
        from monitor.store.queries import SampleFilter, samples  # noqa: PLC0415

        with reading(self.database) as connection:
            found = samples(connection, SampleFilter(since=since, probe=probe))
        return [s for s in found if outcome in {None, s.outcome} and phase in {None, s.phase}]

    def gpu(self, since: datetime) -> list[GpuLook]:
        """What the daemon has read of the GPU, oldest first."""
        from sqlalchemy import select  # noqa: PLC0415

        from monitor.store.database import reading  # noqa: PLC0415
        from monitor.store.tables import gpu_reading as t  # noqa: PLC0415
        from monitor.store.times import from_us, to_us  # noqa: PLC0415

        columns = (
            t.c.at_us,
            t.c.temp_c_max,
            t.c.sm_clock_mhz_median,
            t.c.power_w_median,
            t.c.throttle_thermal_ns,
        )
        with reading(self.database) as connection:
            rows = connection.execute(
                select(*columns).where(t.c.at_us >= to_us(since)).order_by(t.c.at_us)
            ).all()
        return [GpuLook(from_us(row[0]), *row[1:]) for row in rows]

    def incident(self, kind: str) -> Incident | None:
        """The open incident of this kind."""
        from monitor.alert import incidents  # noqa: PLC0415
        from monitor.store.database import reading  # noqa: PLC0415

        with reading(self.database) as connection:
            return next((i for i in incidents.open_incidents(connection) if i.kind == kind), None)


def now() -> datetime:
    """The time as the history has it."""
    return datetime.now(UTC)


def middle(values: Sequence[float | None]) -> float | None:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def told(value: float | None, digits: int = 0) -> str:
    """A figure, or a dash where it is unknown."""
    return "–" if value is None else f"{value:,.{digits}f}"
