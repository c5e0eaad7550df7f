"""Our programs as child processes: the stand-in for a server, and the daemon with shortened
periods.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
STANDIN = Path(__file__).parent / "standin.py"
#: Runs the command line with some constants replaced; an unknown constant is an error.
SHORTENED = """
import json, sys
from datetime import timedelta
from importlib import import_module
for name, value in json.loads(sys.argv[1]).items():
    module, _, constant = name.rpartition(".")
    was = getattr(import_module(module), constant)
    now = timedelta(seconds=value) if isinstance(was, timedelta) else value
    setattr(import_module(module), constant, now)
from monitor.cli import main
sys.exit(main(sys.argv[2:]))
"""
PERIODS = {
    "monitor.daemon.schedule.READING_EVERY_S": 0.5,
    "monitor.daemon.loops.JUDGE_EVERY_S": 0.3,
    "monitor.daemon.loops.GPUS_EVERY_S": 0.3,
    "monitor.daemon.service.NVML_IDENTITY_EVERY_S": 0.5,
    "monitor.daemon.service.DATABASE_RETRY_S": 0.3,
    "monitor.daemon.identity.SECOND_READING_S": 0.2,
    "monitor.judge.availability.DOWN_SPAN": 1.0,
}


def wait_for(check: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """Returns the first true result of `check`."""
    end = time.monotonic() + timeout_s
    while not (found := check()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.05)
    return found


def get(url: str) -> tuple[int, str]:
    """Status and text of a page, also for an error status."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without the variables that control our commands."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("VLLM_CANARY", "XDG_", "NOTIFY_", "WATCHDOG_"))
    }
    return kept | more


class ChildStandIn:
    """A stand-in in its own process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder, self._arguments = folder, arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, *more: str) -> None:
        """Starts to listen, after a stop on the same port."""
        port_file = self._folder / "standin-port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable,
            str(STANDIN),
            "--port",
            str(self.port),
            "--port-file",
            str(port_file),
            *self._arguments,
            *more,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for(port_file.exists, "the stand-in's port")
        self.port = int(port_file.read_text())

    def stop(self) -> None:
        """Kills the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def set(self, **fields: Any) -> None:
        """Changes fields of its state."""
        request = urllib.request.Request(
            f"{self.url}/-/control",
            json.dumps(fields).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.status == 200

    def restart(self, **fields: Any) -> None:
        """Simulates another server process with other settings."""
        self.set(process_start=time.time(), **fields)


class DaemonProcess:
    """`vllm-canary run` with shortened periods."""

    def __init__(
        self,
        config: Path,
        environment: Mapping[str, str] | None = None,
        log: str = "daemon.log",
        **periods: float,
    ) -> None:
        self.log_file = config.parent / log
        self._config = config
        self._environment = clean_environment(**(environment or {}))
        self._periods = PERIODS | periods
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts the daemon."""
        command = [
            sys.executable,
            "-c",
            SHORTENED,
            json.dumps(self._periods),
            "run",
            "-c",
            str(self._config),
        ]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment, cwd=self._config.parent
            )

    @property
    def log(self) -> str:
        """All output so far."""
        return self.log_file.read_text()

    @property
    def web(self) -> str:
        """The address of its web pages."""
        mark = "health and metrics on "
        wait_for(lambda: mark in self.log, "the address in the daemon's log")
        return self.log.rsplit(mark, 1)[1].split("\n", 1)[0]

    def terminate(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(40)

    def kill(self) -> None:
        """Sends SIGKILL if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
