"""Whether the right cause is named on a real vLLM server. Part of `make proof`; writes its table
into docs/proof.md.

One server on CPU with a tiny model, monitored by the daemon with a shortened memory (blocks of
10 s, learning time 4 minutes), and a GPU simulated by the C stub of NVML under the real binding.
The steps and the expected incidents:

    the engine's CPU share is cut by a cgroup quota, while the GPU's clock falls and its counter of
    thermal slowdown rises                               -> cause heat
    the same cut, and the GPU shows nothing              -> unexplained or host_bound, never heat
    24 long batch requests on four slots, repeatedly     -> service_level, cause queueing

Needs root for the cgroup, gcc for the stub, and the server that `tests/vllm/install.sh` installs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, met_cell, table
from proofpage import stamp, write_section

sys.path.insert(0, str(ROOT / "tests"))
# tests/ is not a package, so these imports follow the path
from nvml import StubNvml, build
from vllm_bed import (
    MODEL,
    OPTIONS,
    Canary,
    Json,
    VllmServer,
    batch_load,
    chat_probe,
    free_port,
    say,
    vllm_environment,
    wait_for,
)

LEARN_S, FIND_S, QUIET_S = 330.0, 420.0, 300.0
QUOTA = 0.30  # of one core
PERIOD_US = 20_000
DETECTOR = {
    "block": "10s",
    "card_step": "5s",
    "grace": "4s",
    "block_samples": 3,
    "learn": "4m",
    "learn_blocks": 20,
    "remember": "2h",
    "support_samples": 20,
}
HEALTHY = {"temp": 61, "margin": 24, "clock.1": 1755, "power_mw": 421_500, "reasons": "0x0"}
DRIFT_KINDS = "('speed', 'thermal', 'power', 'service_level', 'slow_start')"
HOT = {"temp": 88, "margin": 1, "clock.1": 1290, "power_mw": 300_000, "reasons": "0x20"}


@dataclass(slots=True)
class Result:
    """One row of the table."""

    what: str
    wanted: str
    found: str
    after_s: float | None
    right: bool


class Gpu:
    """The stub's GPU, whose counter of thermal slowdown rises while it is hot."""

    def __init__(self, folder: Path) -> None:
        self.stub = StubNvml(folder)
        self.hot = False
        self._thermal_ns = 12_000_000_000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._update, daemon=True)
        self._thread.start()

    def _update(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.5):
            now = time.monotonic()
            if self.hot:
                self._thermal_ns += int((now - last) * 0.8e9)
            last = now
            values: dict[str, object] = {
                f"gpu0.{key}": value for key, value in (HOT if self.hot else HEALTHY).items()
            }
            self.stub.set(values | {"gpu0.field.269": f"ull:{self._thermal_ns}"})

    def stop(self) -> None:
        """Stops the updates."""
        self._stop.set()
        self._thread.join(2.0)


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Limits a process to QUOTA of one core."""
    v1 = Path("/sys/fs/cgroup/cpu")
    parent = v1 if (v1 / "cgroup.procs").exists() else Path("/sys/fs/cgroup")
    group = parent / f"vllm-canary-proof-{os.getpid()}"
    try:
        group.mkdir()
        if parent is v1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(int(QUOTA * PERIOD_US)))
        else:
            (parent / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{int(QUOTA * PERIOD_US)} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise SystemExit(
            f"cannot create a cgroup with a CPU quota under {parent}: {error}; run as root"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # the process may have exited
            (parent / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()


@contextmanager
def batch_job(url: str) -> Iterator[None]:
    """Keeps sending 24 batch requests at once: a job of some minutes, as on a large model."""
    stopped = threading.Event()

    def send() -> None:
        while not stopped.is_set():
            with batch_load(url, 24, 900) as load:
                while not (load.done or stopped.is_set()):
                    time.sleep(0.2)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(60.0)


def configure(canary: Canary) -> None:
    """Writes the configuration: two steady decode probes and a capped chat probe every two seconds,
    the shortened memory, and the stub's GPU.
    """
    long = {"sampling": {"ignore_eos": True, "min_tokens": 64}, "max_wait": "2s"}
    probes: dict[str, Any] = {
        name: {
            "class": "steady",
            "every": "2s",
            "endpoint": "completions",
            "prompt": prompt,
            "max_tokens": 64,
            **long,
        }
        for name, prompt in (
            ("decode-a", "Count up from one."),
            ("decode-b", "Name the months of the year."),
        )
    }
    probes["chat"] = chat_probe("Is the sky blue? Answer yes or no.", "yes", "chat", "2s") | {
        "expect": []
    }
    canary.write(probes, {"chat": {"max_wait": "2s"}, "steady": {"max_wait": "2s"}})
    path = canary.home / "config.yaml"
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings["detector"] = DETECTOR
    settings["targets"][0]["gpus"] = "auto"
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def drift_incidents(canary: Canary, after: int) -> list[Json]:
    """The drift incidents with an id above `after`, in their present state."""
    sql = f"SELECT * FROM incident WHERE id > ? AND kind IN {DRIFT_KINDS} ORDER BY id"
    return canary.query(sql, after)


def summary_of(rows: list[Json]) -> str:
    """The incidents of one step, for the table."""
    return (
        "; ".join(f"{row['kind']} ({row['cause']}, {row['severity']})" for row in rows) or "nothing"
    )


def expect(
    canary: Canary,
    what: str,
    wanted: str,
    is_right: Callable[[list[Json]], bool],
    minimum_s: float = 0.0,
) -> Result:
    """Waits for the wanted incidents, at least `minimum_s`, since a cause may still be refined."""
    after, began, found_s = canary.last_incident(), time.monotonic(), None
    while (passed := time.monotonic() - began) < FIND_S:
        if is_right(drift_incidents(canary, after)):
            found_s = found_s or passed
            if passed >= minimum_s:
                break
        time.sleep(1.0)
    rows = drift_incidents(canary, after)
    say(f"{what}: {summary_of(rows)}")
    return Result(what, wanted, summary_of(rows), found_s, is_right(rows))


def wait_until_closed(canary: Canary) -> None:
    """Waits until no drift incident is open."""
    sql = f"SELECT id FROM incident WHERE closed_at_us IS NULL AND kind IN {DRIFT_KINDS}"
    wait_for("all incidents closed", lambda: not canary.query(sql), QUIET_S, canary.state_report)


def run_steps(canary: Canary, server: VllmServer, gpu: Gpu) -> list[Result]:
    """Runs all steps, one after another, each on a server without open incidents."""
    pid = server.engine_pid()
    results = [healthy(canary)]
    with slowed(pid):
        gpu.hot = True
        what = f"engine cut to {QUOTA:.0%} of a core, the GPU throttles"
        results.append(expect(canary, what, "cause heat", only_causes("heat"), 240.0))
    gpu.hot = False
    wait_until_closed(canary)
    with slowed(pid):
        what = "the same cut, the GPU shows nothing"
        wanted = "host_bound or unexplained"
        is_right = only_causes("host_bound", "unexplained")
        results.append(expect(canary, what, wanted, is_right, 120.0))
    wait_until_closed(canary)
    with batch_job(server.url):
        what = "24 batch requests on four slots, repeatedly"
        wanted = "service_level, cause queueing"
        results.append(expect(canary, what, wanted, is_queueing))
    return results


def healthy(canary: Canary) -> Result:
    """Learns the baseline; no incident may open meanwhile."""
    before = canary.last_incident()
    say(f"learning the baseline for {LEARN_S:.0f} s")
    time.sleep(LEARN_S)
    rows = drift_incidents(canary, before)
    return Result(f"healthy for {LEARN_S:.0f} s", "nothing", summary_of(rows), None, not rows)


def only_causes(*causes: str) -> Callable[[list[Json]], bool]:
    """A predicate: there are incidents, and all have one of these causes."""
    return lambda rows: bool(rows) and all(row["cause"] in causes for row in rows)


def is_queueing(rows: list[Json]) -> bool:
    """A predicate: a service level is breached and queueing is the only cause."""
    found = any((row["kind"], row["cause"]) == ("service_level", "queueing") for row in rows)
    return found and only_causes("queueing")(rows)


def main() -> int:
    """Runs the steps and writes the table. Exit code 1: a cause was wrong."""
    venv = vllm_environment()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vllm-canary-proof-") as folder:
        home = Path(folder)
        build(home)
        gpu = Gpu(home)
        os.environ["LD_LIBRARY_PATH"] = str(home)
        os.environ["NVMLSTUB_STATE"] = str(gpu.stub.state)
        server = VllmServer.start(venv, free_port(), MODEL, *OPTIONS, work=home)
        (home / "canary").mkdir()
        canary = Canary(home / "canary", server.url, MODEL, "http://127.0.0.1:9/")
        try:
            configure(canary)
            canary.start()
            results = run_steps(canary, server, gpu)
        finally:
            canary.kill()
            server.stop()
            gpu.stop()
    lines = report(results, time.monotonic() - began)
    print("\n".join(lines))
    write_section("causes on a real vLLM", lines)
    return 0 if all(result.right for result in results) else 1


def report(results: Sequence[Result], took_s: float) -> list[str]:
    """The section of docs/proof.md."""
    threads = f", `OMP_NUM_THREADS={count}`" if (count := os.environ.get("OMP_NUM_THREADS")) else ""
    note = (
        f"`benchmarks/drift_vllm.py`, {stamp()}, {took_s:.0f} s: a real vLLM 0.32 on CPU "
        f"(`{' '.join(OPTIONS)}`{threads}), the GPU simulated by a stub of NVML, the detector with "
        "blocks of 10 s and a learning time of 4 minutes."
    )
    rows = [
        (
            r.what,
            r.wanted,
            r.found,
            "" if r.after_s is None else f"{r.after_s:.0f} s",
            met_cell(r.right),
        )
        for r in results
    ]
    headings = ("scenario", "expected", "found", "after", "met")
    title = "## The right cause is named on a real vLLM server"
    return [title, "", note, "", *table(headings, rows).splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
