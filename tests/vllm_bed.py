"""The test bed of `make test-vllm`: a real vLLM server on CPU, batch load on it, a webhook
receiver, and the product.

The file is outside tests/vllm/ because a folder of that name on the import path shadows the package
vllm. Everything here uses the product as its users do: command line, configuration files, HTTP, the
view `samples`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import yaml

Json = dict[str, Any]
T = TypeVar("T")

SERVED_MODEL = "tiny-canary"
# for a command next to a real server on a small busy machine
COMMAND_TIMEOUT_S = 300.0
VLLM_TESTS = Path(__file__).parent / "vllm"
MODEL = VLLM_TESTS / "model"
OPTIONS = ("--max-num-seqs", "4", "--enable-per-request-metrics", "--enable-prompt-tokens-details")
CLASSES: Mapping[str, Json] = {
    "chat": {"max_wait": "800ms"},
    "sure": {"max_wait": "60s"},
    "batch": {"max_wait": "60s"},
}
ENGINE_COMM = "VLLM::EngineCor"  # VLLM::EngineCore; the kernel cuts a process name at 15 characters
_began = time.monotonic()


def say(text: str) -> None:
    """Prints progress with the seconds since the start of the run (shown by pytest -s and in the
    report of a failed test).
    """
    print(f"[{time.monotonic() - _began:5.0f} s] {text}", flush=True)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(
    what: str, check: Callable[[], T | None], timeout_s: float, context: Callable[[], str] = str
) -> T:
    """Returns the first true result of `check`. AssertionError with `context` after `timeout_s`."""
    began = time.monotonic()
    announced = began
    while True:
        found = check()
        if found:
            return found
        now = time.monotonic()
        if now - began > timeout_s:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s\n{context()}")
        if now - announced > 10:
            say(f"  … still waiting for {what} ({now - began:.0f} s)")
            announced = now
        time.sleep(0.25)


def tail(path: Path, lines: int = 40) -> str:
    """The last lines of a log file, under its name."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else "(no such file)"
    return f"--- end of {path}\n" + "\n".join(text.splitlines()[-lines:])


# -- the server


@dataclass(slots=True)
class VllmServer:
    """One process of a real vLLM server. Each start creates another object."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    inductor_cache: Path
    start_s: float = 0.0  # from the command to the first 200 from /health

    @classmethod
    def start(
        cls,
        venv: Path,
        port: int,
        model_dir: Path,
        *options: str,
        work: Path,
        env: Mapping[str, str] | None = None,
        inductor_cache: Path | None = None,
        timeout_s: float = 240.0,
    ) -> Self:
        """Serves `model_dir`; returns when /health answers, after 25 to 50 s.

        `inductor_cache`: the folder for what the first answer with log-probabilities compiles. By
        default a new folder under `work`, so that this first answer is slow; the folder of an
        earlier server saves that time.
        """
        number = len(list(work.glob("vllm-*.log"))) + 1
        log = work / f"vllm-{number}.log"
        cache = inductor_cache or work / f"inductor-{number}"
        command = _server_command(venv, port, model_dir, options)
        say(f"starting vLLM on port {port}: {' '.join(options)} (log {log})")
        with log.open("wb") as output:
            process = subprocess.Popen(  # a session of its own: stop() ends the whole group
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_server_env(venv, cache) | dict(env or {}),
                start_new_session=True,
            )
        server = cls(f"http://127.0.0.1:{port}", log, process, cache)
        try:
            server._wait_until_healthy(timeout_s)
        except BaseException:
            server.stop(grace_s=1.0)
            raise
        return server

    def _wait_until_healthy(self, timeout_s: float) -> None:
        began = time.monotonic()

        def healthy() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"vLLM exited unexpectedly with {self.process.returncode}\n{self.log_tail()}"
                )
            return self.health() == 200

        wait_for("vLLM's /health", healthy, timeout_s, self.log_tail)
        self.start_s = time.monotonic() - began
        say(f"vLLM answers after {self.start_s:.1f} s")

    @property
    def running(self) -> bool:
        """Whether the API server's process is running."""
        return self.process.poll() is None

    def health(self) -> int | None:
        """The HTTP status of /health; None without an answer."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5.0).status_code
        except httpx.TransportError:
            return None

    def tokens_generated(self) -> float:
        """Tokens generated since the start of the engine. (The gauge of running requests keeps its
        old value after the last one ends.)
        """
        return metric(
            httpx.get(f"{self.url}/metrics", timeout=10.0, follow_redirects=True).text,
            "vllm:generation_tokens_total",
        )

    def engine_pid(self) -> int:
        """The engine process: a descendant of the API server, found in /proc by its name."""
        parents = _parents()
        for pid in parents:
            with suppress(OSError):
                if _comm(pid) == ENGINE_COMM and self.process.pid in _ancestors(pid, parents):
                    return pid
        raise AssertionError(f"vLLM has no {ENGINE_COMM} process\n{self.log_tail()}")

    def freeze_engine(self) -> None:
        """SIGSTOP: /health still answers 200, but no request is answered."""
        os.kill(self.engine_pid(), signal.SIGSTOP)

    def thaw_engine(self) -> None:
        """SIGCONT: the engine continues."""
        os.kill(self.engine_pid(), signal.SIGCONT)

    def kill_engine(self) -> None:
        """SIGKILL: streams get an error event, and the API server exits about 5 s later."""
        os.kill(self.engine_pid(), signal.SIGKILL)

    def stop(self, grace_s: float = 20.0) -> None:
        """Ends the server: SIGTERM first, then SIGKILL for the process group. Killing only the API
        server would leave the engine running.
        """
        group = self.process.pid
        if self.running:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self.process.wait(10.0)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the server's log."""
        return tail(self.log, lines)


def _server_command(venv: Path, port: int, model_dir: Path, options: Sequence[str]) -> list[str]:
    # with setpriv the server also ends when the test run is killed
    setpriv = shutil.which("setpriv")
    return [
        *([setpriv, "--pdeathsig", "TERM"] if setpriv else []),
        *(str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model_dir), "--served-model-name", SERVED_MODEL),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--enforce-eager", "--dtype", "bfloat16", *options),
    ]


def vllm_environment() -> Path:
    """The virtual environment with vLLM, installed where it is missing. CalledProcessError with the
    reason in `stderr` when that fails.
    """
    done = subprocess.run(
        [str(VLLM_TESTS / "install.sh")],
        capture_output=True,
        text=True,
        timeout=1200.0,
        check=True,
    )
    return Path(done.stdout.splitlines()[-1])


def make_variant(venv: Path, model_dir: Path, work: Path, name: str) -> Path:
    """Makes a copy of a model with a silent fault (make_variants.py); returns its folder."""
    script, out = VLLM_TESTS / "make_variants.py", work / "variants"
    command = [str(venv / "bin" / "python"), str(script), str(model_dir), str(out), name]
    subprocess.run(command, check=True, timeout=120.0)
    return out / name


def metric(page: str, name: str) -> float:
    """One value of a metrics page, summed over its labels."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith((f"{name}{{", f"{name} "))
    )


def _server_env(venv: Path, inductor_cache: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VLLM_", "PYTHON", "VIRTUAL_ENV"))
    }
    return kept | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # the engine without worker processes, as with one GPU: a start takes 25 s instead of 37 s
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": str(venv.parent / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(inductor_cache),
    }


def _parents() -> dict[int, int]:
    """The parent of every process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    return parents


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


# -- load


class BatchLoad:
    """Long completions running on a server; see `batch_load`."""

    def __init__(self, url: str, count: int, max_tokens: int) -> None:
        self._url, self._count, self._max_tokens = url, count, max_tokens
        self._loop = asyncio.new_event_loop()
        self._all: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-load", daemon=True)
        self._began = time.monotonic()
        self.answered = 0
        self.errors: list[str] = []
        # from the first request to the last answer; None when cancelled
        self.took_s: float | None = None
        self._thread.start()
        self._ready.wait()

    @property
    def done(self) -> bool:
        """Whether all requests have ended."""
        return not self._thread.is_alive()

    def wait_until_queued(self, timeout_s: float = 30.0) -> None:
        """Waits until the server has all requests, so that a new request queues behind them."""

        def held() -> bool:
            page = httpx.get(f"{self._url}/metrics", timeout=10.0, follow_redirects=True).text
            return (
                metric(page, "vllm:num_requests_running")
                + metric(page, "vllm:num_requests_waiting")
                >= self._count
            )

        wait_for(
            "the batch requests to be queued",
            lambda: held() or self.done,
            timeout_s,
            lambda: f"{self.errors[:3]}",
        )

    def wait(self, timeout_s: float) -> None:
        """Waits until every request is answered. AssertionError after the time-out, or when one of
        them failed.
        """
        self._thread.join(timeout_s)
        assert self.done, (
            f"{self.answered} of {self._count} batch requests were answered in {timeout_s:.0f} s"
        )
        assert not self.errors, f"batch requests failed: {self.errors[:3]}"

    def cancel(self) -> None:
        """Cancels the open requests: vLLM aborts a request whose client disconnects."""
        if not self.done and self._all is not None:
            self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join(30.0)

    def _run(self) -> None:
        try:
            self._all = self._loop.create_task(self._send_all())
            self._loop.call_soon(self._ready.set)
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._all)
                self.took_s = time.monotonic() - self._began
        finally:
            self._ready.set()
            self._loop.close()

    async def _send_all(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=self._url, timeout=600.0, limits=limits, verify=False
        ) as client:
            await asyncio.gather(*(self._send(client, number) for number in range(self._count)))

    async def _send(self, client: httpx.AsyncClient, number: int) -> None:
        body = {
            "model": SERVED_MODEL,
            "prompt": f"batch {number}",
            "max_tokens": self._max_tokens,
            "min_tokens": self._max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        try:
            answer = await client.post("/v1/completions", json=body)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            self.errors.append(repr(error))
        else:
            self.answered += 1


@contextmanager
def batch_load(url: str, count: int = 24, max_tokens: int = 900) -> Iterator[BatchLoad]:
    """Sends `count` completions of `max_tokens` tokens each at once, and yields when the server has
    all of them.

    `wait` waits for their answers; requests still open at the end are cancelled. With
    `--max-num-seqs 4` and 900 tokens, 24 of them delay a new request by 25 to 60 s.
    """
    load = BatchLoad(url, count, max_tokens)
    try:
        load.wait_until_queued()
        yield load
    finally:
        load.cancel()


# -- the receiver


@dataclass(frozen=True, slots=True)
class Delivery:
    """One POST to the receiver."""

    at: float  # monotonic seconds
    body: Json

    @property
    def event(self) -> str:
        """The event: opened, updated or resolved."""
        return str(self.body["event"])

    @property
    def incident(self) -> Json:
        """The incident of the delivery."""
        incident: Json = self.body["incident"]
        return incident

    @property
    def kind(self) -> str:
        """The kind of that incident."""
        return str(self.incident["kind"])


class WebhookReceiver:
    """The receiver of alerts. While it is `down`, its port refuses connections."""

    def __init__(self) -> None:
        self.port = free_port()
        self.deliveries: list[Delivery] = []
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address for deliveries."""
        return f"http://127.0.0.1:{self.port}/hook"

    def up(self) -> None:
        """Starts to listen."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.deliveries.append(Delivery(time.monotonic(), body))
                say(
                    f"webhook: {body.get('event')} {body.get('incident', {}).get('kind')} "
                    f"{body.get('incident', {}).get('subject')}"
                )
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server gives it
                """No access log: deliveries are printed above."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def down(self) -> None:
        """Refuses connections."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(5.0)
            self._server = self._thread = None

    def opened(self, kind: str, since: float = 0.0) -> list[Delivery]:
        """The `opened` deliveries of a kind after `since` (monotonic seconds)."""
        return [
            d for d in self.deliveries if d.at >= since and d.event == "opened" and d.kind == kind
        ]


# -- the product


class CommandError(AssertionError):
    """A command of the product ended with an unexpected exit code."""


@dataclass(slots=True)
class Canary:
    """vllm-canary as installed by a user: a folder with config.yaml, probes and a database, the
    command line, and one daemon.
    """

    home: Path
    server_url: str
    model_path: Path
    webhook_url: str
    port: int = field(default_factory=free_port)
    daemon: subprocess.Popen[bytes] | None = None

    @property
    def database(self) -> Path:
        """The history database."""
        return self.home / "history.db"

    @property
    def log(self) -> Path:
        """The log of all daemons, one after another."""
        return self.home / "daemon.log"

    def write(self, probes: Mapping[str, Json], classes: Mapping[str, Json]) -> None:
        """Writes config.yaml and exactly these probes."""
        folder = self.home / "probes"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, probe in probes.items():
            (folder / f"{name}.yaml").write_text(
                yaml.safe_dump(probe, sort_keys=False, allow_unicode=True), encoding="utf-8"
            )
        config = {
            "database": "history.db",
            "listen": f"127.0.0.1:{self.port}",
            "probes": "probes",
            "classes": dict(classes),
            "targets": [
                {
                    "name": "tiny",
                    "url": self.server_url,
                    "model_path": str(self.model_path),
                    "gpus": "none",
                    # these probes run every few seconds; the budget must not skip any of them
                    "token_budget_per_hour": 10_000_000,
                }
            ],
            "channels": [{"name": "hook", "kind": "webhook", "url": self.webhook_url}],
        }
        (self.home / "config.yaml").write_text(
            yaml.safe_dump(config, sort_keys=False), encoding="utf-8"
        )

    def start(self) -> None:
        """Starts the daemon and waits until its /healthz answers."""
        assert self.daemon is None, "a daemon is already running"
        with self.log.open("ab") as output:
            self.daemon = subprocess.Popen(
                self._command("run"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_product_env(),
            )
        began = time.monotonic()
        wait_for("the daemon's /healthz", self._alive, 30.0, self.log_tail)
        say(f"the daemon answers after {time.monotonic() - began:.1f} s (pid {self.daemon.pid})")

    def _alive(self) -> bool:
        assert self.daemon is not None
        if self.daemon.poll() is not None:
            raise AssertionError(
                f"the daemon exited unexpectedly with {self.daemon.returncode}\n{self.log_tail()}"
            )
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=2.0).is_success
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """Sends SIGTERM, as a service manager does. AssertionError unless the daemon exits with 0
        within 20 s.
        """
        if self.daemon is None:
            return
        daemon, self.daemon = self.daemon, None
        daemon.terminate()
        try:
            code = daemon.wait(20.0)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(5.0)
            raise AssertionError(
                f"the daemon did not exit within 20 s of SIGTERM\n{self.log_tail()}"
            ) from None
        assert code == 0, f"the daemon exited with {code} after SIGTERM\n{self.log_tail()}"

    def kill(self) -> None:
        """Sends SIGKILL: the daemon cannot store anything more."""
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait(5.0)
            self.daemon = None

    def run(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """The output of a command. CommandError unless its exit code is one of `codes`."""
        command = self._command(*arguments)
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            env=_product_env(),
            check=False,
        )
        if done.returncode not in codes:
            raise CommandError(
                f"vllm-canary {' '.join(arguments)} exited with {done.returncode}, not "
                f"{' or '.join(map(str, codes))}\n"
                f"{done.stdout}\n{done.stderr}\n{self.log_tail()}"
            )
        return done.stdout

    def json(self, *arguments: str, codes: Sequence[int] = (0,)) -> Json:
        """The output of a command with `--json`: one object."""
        result: Json = json.loads(self.run(*arguments, "--json", codes=codes))
        return result

    def _command(self, *arguments: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "monitor.cli",
            *arguments,
            "-c",
            str(self.home / "config.yaml"),
        ]

    def samples(self, after: int = 0, **fields: str) -> list[Json]:
        """Rows of the view `samples` with an id above `after` and these values, oldest first."""
        conditions = "".join(f' AND "{name}" = ?' for name in fields)
        return self.query(
            f"SELECT * FROM samples WHERE id > ?{conditions} ORDER BY id", after, *fields.values()
        )

    def last_id(self) -> int:
        """The id of the newest sample; 0 before the first."""
        return self._last_id("samples")

    def last_incident(self) -> int:
        """The id of the newest incident; 0 before the first."""
        return self._last_id("incident")

    def _last_id(self, table: str) -> int:
        rows = self.query(f"SELECT max(id) AS id FROM {table}")
        return max((int(row["id"]) for row in rows if row["id"]), default=0)

    def incidents(self, kind: str, after: int = 0) -> list[Json]:
        """The incidents of a kind with an id above `after`, open and closed, oldest first.

        Read from the table: a command takes a second to start, and an incident may close sooner.
        """
        return self.query(
            "SELECT * FROM incident WHERE kind = ? AND id > ? ORDER BY id", kind, after
        )

    def open_incidents(self, kind: str) -> list[Json]:
        """The open incidents of a kind."""
        return [row for row in self.incidents(kind) if row["closed_at_us"] is None]

    def skipped(self, probe: str, since: datetime, until: datetime) -> int:
        """The number of skipped runs of a probe in an interval."""
        sql = (
            "SELECT coalesce(sum(count), 0) AS runs FROM skipped_run WHERE probe = ? AND "
            "at_us BETWEEN ? AND ?"
        )
        rows = self.query(sql, probe, int(since.timestamp() * 1e6), int(until.timestamp() * 1e6))
        return int(rows[0]["runs"]) if rows else 0

    def query(self, sql: str, *values: object) -> list[Json]:
        """Rows of the database; none before the daemon has created its tables."""
        if not self.database.exists():
            return []
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10.0)
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, values)]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
        finally:
            connection.close()

    def wait_for_samples(
        self, what: str, count: int, timeout_s: float, after: int = 0, **fields: str
    ) -> list[Json]:
        """Waits until there are `count` such samples (see `samples`)."""

        def enough() -> list[Json] | None:
            self.check_running()
            rows = self.samples(after, **fields)
            return rows if len(rows) >= count else None

        return wait_for(what, enough, timeout_s, self.state_report)

    def check_running(self) -> None:
        """AssertionError when a daemon that should run has exited."""
        if self.daemon is not None and self.daemon.poll() is not None:
            raise AssertionError(
                f"the daemon exited unexpectedly with {self.daemon.returncode}\n{self.log_tail()}"
            )

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the daemon's log."""
        return tail(self.log, lines)

    def state_report(self) -> str:
        """The newest samples, incidents, deliveries and log lines, for a failure report."""
        wanted = (
            "id",
            "probe",
            "phase",
            "outcome",
            "verdict",
            "started_at",
            "ttft_ms",
            "e2e_ms",
            "queue_ms",
        )
        rows = [
            {name: row.get(name) for name in wanted}
            for row in self.query("SELECT * FROM samples ORDER BY id DESC LIMIT 12")
        ]
        rows += self.query(
            "SELECT id, kind, subject, severity, summary, opened_at_us, closed_at_us FROM "
            "incident ORDER BY id DESC LIMIT 8"
        )
        rows += self.query(
            "SELECT id, incident_id, event, state, attempts, last_error FROM delivery ORDER BY "
            "created_at_us DESC LIMIT 8"
        )
        return "\n".join([*map(str, rows), self.log_tail()])


def _product_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}


def chat_probe(
    prompt: str, answer: str, traffic_class: str, every: str, max_tokens: int = 8, **more: object
) -> Json:
    """A gated chat probe with one accepted answer."""
    return {
        "class": traffic_class,
        "every": every,
        "endpoint": "chat",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "sampling": {"logprobs": 5},
        "expect": [{"equals": answer}],
        **more,
    }


def started_at(sample: Json) -> datetime:
    """The start time of a sample."""
    return datetime.fromisoformat(sample["started_at"])


# -- all of it


@dataclass(slots=True)
class Bed:
    """The server and the daemon that the tests share in order, and the measured figures."""

    venv: Path
    work: Path
    model_dir: Path
    receiver: WebhookReceiver
    canary: Canary
    port: int
    server: VllmServer | None = None
    figures: dict[str, str] = field(default_factory=dict)

    def start_server(self, max_model_len: int = 1024) -> VllmServer:
        """Starts the server, always at the same address. Later starts use what the first one
        compiled.
        """
        self.stop_server()
        # empty at first, so that the first answer with log-probabilities is slow
        cache = self.work / "inductor"
        options = ("--max-model-len", str(max_model_len), *OPTIONS)
        self.server = VllmServer.start(
            self.venv, self.port, self.model_dir, *options, work=self.work, inductor_cache=cache
        )
        self.figures[f"start {self.server.log.stem}"] = f"{self.server.start_s:.1f} s"
        return self.server

    def stop_server(self) -> None:
        """Stops the server, if there is one."""
        if self.server is not None:
            self.server.stop()
            self.server = None

    def watch(self, probes: Mapping[str, Json]) -> None:
        """Restarts the daemon with these probes on the same history."""
        self.canary.stop()
        self.canary.write(probes, CLASSES)
        self.canary.start()

    def replace_weights(self, variant: str) -> None:
        """Replaces the weights of the model by those of a variant (make_variants.py)."""
        changed = make_variant(self.venv, self.model_dir, self.work, variant)
        shutil.copyfile(changed / "model.safetensors", self.model_dir / "model.safetensors")
