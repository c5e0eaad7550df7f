"""Is the cause named right on a real vLLM? Part of `make proof`; writes its table into
docs/proof.md.

One server on CPU with a tiny model, watched by the daemon with a shortened memory (blocks of 10 s,
learning 4 minutes), and a GPU made of the C stub of NVML under the real binding. What is done to
them, one after the other, and what must be found:

    the engine's share of the processor is cut by a cgroup quota, while the GPU's clock falls and
    its counter of thermal slowdown runs
                                                                      -> cause heat
    the same cut, and the GPU shows nothing                          -> unexplained or host_bound,
    never heat
    24 long batch requests at once on four places, again and again    -> service_level, cause
    queueing

Needs root for the cgroup, gcc for the stub, and the server that `tests/vllm/install.sh` installs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "benchmarks"))

from nvml import StubNvml, build  # noqa: E402 - the test bed lies beside, not inside, the package
from proofpage import stamp, write_section  # noqa: E402 - likewise
from vllm_bed import OPTIONS, Canary, VllmServer, batch_load, chat_probe, free_port, say, wait_for  # noqa: E402 - likewise

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
    """The stub's GPU, whose counter of thermal slowdown runs while it is hot."""

    def __init__(self, folder: Path) -> None:
        self.stub = StubNvml(folder)
        self.hot = False
        self._thermal_ns = 12_000_000_000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
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
        """No more changes."""
        self._stop.set()
        self._thread.join(2.0)


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """A process that gets no more than QUOTA of one core meanwhile."""
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
            f"no cgroup with a quota of processor time can be made under {parent}: {error}; "
            "run it as root"
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # the process may have ended
            (parent / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()


@contextmanager
def batch_job(url: str) -> Iterator[None]:
    """24 batch requests at once, and when they are answered as many again: a job that lasts for
    minutes, as on a large model 24 do.
    """
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            with batch_load(url, 24, 900) as load:
                while not (load.done or over.is_set()):
                    time.sleep(0.2)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60.0)


def configured(canary: Canary) -> None:
    """Two steady decode probes and a capped chat, every two seconds; the shortened memory; the
    stub's GPU.
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


def drift(canary: Canary, after: int) -> list[dict[str, Any]]:
    """Incidents of drift, opened after that one, newest state."""
    sql = (
        "SELECT * FROM incident WHERE id > ? AND kind IN ('speed', 'thermal', 'power', "
        "'service_level', 'slow_start') ORDER BY id"
    )
    rows: list[dict[str, Any]] = canary.query(sql, after)
    return rows


def summary_of(rows: list[dict[str, Any]]) -> str:
    """The incidents of one act, for the table."""
    return (
        "; ".join(f"{row['kind']} ({row['cause']}, {row['severity']})" for row in rows) or "nothing"
    )


def act(
    canary: Canary,
    what: str,
    wanted: str,
    is_right: Callable[[list[dict[str, Any]]], bool],
    least_s: float = 0.0,
) -> Result:
    """Wait for what must be found; `least_s`: look on so long although it is right, since a cause
    may be refined.
    """
    after, began, found_s = canary.last_incident(), time.monotonic(), None
    while (passed := time.monotonic() - began) < FIND_S:
        if is_right(drift(canary, after)):
            found_s = found_s or passed
            if passed >= least_s:
                break
        time.sleep(1.0)
    rows = drift(canary, after)
    say(f"{what}: {summary_of(rows)}")
    return Result(what, wanted, summary_of(rows), found_s, is_right(rows))


def calm(canary: Canary) -> None:
    """Wait until nothing of the last act is open."""
    sql = (
        "SELECT id FROM incident WHERE closed_at_us IS NULL AND kind IN ('speed', 'thermal', "
        "'power', 'service_level', 'slow_start')"
    )
    wait_for("all of it to be over", lambda: not canary.query(sql), QUIET_S, canary.state_of_things)


def acts(canary: Canary, server: VllmServer, gpu: Gpu) -> list[Result]:
    """The story."""
    pid, results = server.engine_pid(), []
    before = canary.last_incident()
    say(f"learning the baseline for {LEARN_S:.0f} s")
    time.sleep(LEARN_S)
    healthy = drift(canary, before)
    results.append(
        Result(f"{LEARN_S:.0f} s of nothing", "nothing", summary_of(healthy), None, not healthy)
    )
    with slowed(pid):
        gpu.hot = True
        results.append(
            act(
                canary,
                f"engine cut to {QUOTA:.0%} of a core, the GPU throttles",
                "cause heat",
                lambda rows: bool(rows) and all(row["cause"] == "heat" for row in rows),
                240.0,
            )
        )
    gpu.hot = False
    calm(canary)
    with slowed(pid):
        results.append(
            act(
                canary,
                "the same cut, the GPU shows nothing",
                "host_bound or unexplained",
                lambda rows: (
                    bool(rows)
                    and all(row["cause"] in {"host_bound", "unexplained"} for row in rows)
                ),
                120.0,
            )
        )
    calm(canary)
    with batch_job(server.url):
        results.append(
            act(
                canary,
                "24 batch requests on four places, again and again",
                "service_level, cause queueing",
                lambda rows: (
                    any(
                        (row["kind"], row["cause"]) == ("service_level", "queueing") for row in rows
                    )
                    and all(row["cause"] == "queueing" for row in rows)
                ),
            )
        )
    return results


def main() -> int:
    """Play it and write the table. 1 when a cause was wrong."""
    model = ROOT / "tests" / "vllm" / "model"
    venv = subprocess.run(
        [str(ROOT / "tests/vllm/install.sh")], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vllm-canary-proof-") as folder:
        home = Path(folder)
        build(home)
        gpu = Gpu(home)
        os.environ["LD_LIBRARY_PATH"], os.environ["NVMLSTUB_STATE"] = (
            str(home),
            str(gpu.stub.state),
        )
        server = VllmServer.start(Path(venv), free_port(), model, *OPTIONS, work=home)
        (home / "canary").mkdir()
        canary = Canary(home / "canary", server.url, model, "http://127.0.0.1:9/")
        try:
            configured(canary)
            canary.start()
            results = acts(canary, server, gpu)
        finally:
            canary.kill()
            server.stop()
            gpu.stop()
    lines = ["| what happened | must be found | was found | after | |", "|---|---|---|---|---|"]
    lines += [
        (
            f"| {r.what} | {r.wanted} | {r.found} | "
            f"{'' if r.after_s is None else f'{r.after_s:.0f} s'} | "
            f"{'yes' if r.right else '**no**'} |"
        )
        for r in results
    ]
    threads = f", `OMP_NUM_THREADS={count}`" if (count := os.environ.get("OMP_NUM_THREADS")) else ""
    note = (
        f"`benchmarks/drift_vllm.py`, {stamp()}, {time.monotonic() - began:.0f} s: a real vLLM "
        "0.32 on CPU "
        f"(`{' '.join(OPTIONS)}`{threads}), the GPU played by the stub of NVML, the detector "
        "with blocks of 10 s and a learning time of "
        "4 minutes."
    )
    write_section(
        "causes on a real vLLM",
        ["## The cause is named right on a real vLLM", "", note, "", *lines],
    )
    print("\n".join(lines))
    return 0 if all(result.right for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
