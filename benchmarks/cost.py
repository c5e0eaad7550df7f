"""The cost of monitoring: memory, CPU, disk, the time of commands, and 200 targets on one core."""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml
from common import HERE, Row, Section, at_most, figures, load, percentile, served
from sqlalchemy import Engine, Table, insert, literal, select

from monitor.store import tables as t
from monitor.store.database import open_writer

IDLE_S = 15.0
MEMORY_MB, CPU_PERCENT, SAMPLE_BYTES = 110.0, 1.0, 1000.0
HISTORY_RATIO, HELP_RATIO = 2.0, 4.0
FLEET, FLEET_LAG_MS = 200, 5.0
WARM_UP_S = 30.0
FLEET_WARM_UP_S = 75.0  # by then every target has its first, cold canary and its identity
#: Readings per sample at six probes a minute: one of the server every 15 s, one of a GPU every 5 s.
SERVER_READINGS, GPU_READINGS = 4 / 6, 12 / 6
CANARY = Path(sys.executable).with_name("vllm-canary")

PROBE: Mapping[str, Any] = {
    "class": "chat",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 32,
    "sampling": {"logprobs": 5},
    "expect": [{"contains": "Paris"}],
}


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running daemon and the history it writes."""

    process: psutil.Process
    database: Path

    def cpu_s(self) -> float:
        """CPU time so far, user and system."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of its history."""
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


@contextmanager
def daemon(
    ports: Sequence[int], probes: Mapping[str, Mapping[str, Any]], core: int | None = None
) -> Iterator[Daemon]:
    """Runs `vllm-canary run` on these servers with these probes, as a user starts it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "probes").mkdir()
        for probe, text in probes.items():
            (folder / "probes" / f"{probe}.yaml").write_text(yaml.safe_dump(dict(text)))
        targets = [
            {"name": f"target-{i}", "url": f"http://127.0.0.1:{port}"}
            for i, port in enumerate(ports)
        ]
        settings = {
            "database": "history.db",
            "listen": "127.0.0.1:0",
            "probes": "probes",
            "targets": targets,
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        command = [
            *([] if core is None else ["taskset", "-c", str(core)]),
            str(CANARY),
            "run",
            "-c",
            str(folder / "config.yaml"),
        ]
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            try:
                yield Daemon(psutil.Process(process.pid), folder / "history.db")
                if process.poll() is not None:
                    raise RuntimeError(
                        f"the daemon exited unexpectedly: {(folder / 'log').read_text()}"
                    )
            finally:
                process.terminate()
                process.wait(30)


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a daemon used in an interval, and the start of the interval."""

    cpu_percent: float
    memory_mb: float
    began_us: int


def usage(running: Daemon, warm_up_s: float, seconds: float) -> Usage:
    """Measures a running daemon for `seconds` after a warm-up."""
    time.sleep(warm_up_s)
    cpu_s, began_s, began_us = running.cpu_s(), time.monotonic(), time.time_ns() // 1000
    time.sleep(seconds)
    cpu_percent = (running.cpu_s() - cpu_s) / (time.monotonic() - began_s) * 100
    return Usage(cpu_percent, running.process.memory_info().rss / 1e6, began_us)


def watching(seconds: float) -> list[Row]:
    """Memory and CPU share of a daemon with one target and six probes a minute."""
    with (
        served("fleet_server.py", "1") as ports,
        daemon([int(ports)], {"chat": {**PROBE, "every": "10s"}}) as running,
    ):
        used = usage(running, WARM_UP_S, seconds)
        samples, bad = running.query("SELECT count(*), sum(outcome <> 'ok') FROM sample")[0]
    if not samples or bad:
        raise RuntimeError(f"{bad} of {samples} samples were not ok")
    what = "resident memory, one target, 6 probes a minute"
    cpu = f"CPU, the same, share of a core over {seconds:.0f} s"
    return [
        at_most(what, used.memory_mb, MEMORY_MB, " MB", 0),
        at_most(cpu, used.cpu_percent, CPU_PERCENT, " %"),
    ]


def fleet(seconds: float) -> list[Row]:
    """200 targets at one probe a minute: the daemon on one core, all servers on the other."""
    idle_lag_ms = _idle_lag_ms()
    other = None if (os.cpu_count() or 1) < 2 else 1
    probes = {"chat": {**PROBE, "every": "60s"}}
    with (
        served("fleet_server.py", str(FLEET), core=other) as ports,
        daemon([int(p) for p in ports.split()], probes, core=0) as running,
    ):
        used = usage(running, FLEET_WARM_UP_S, seconds)
        found = running.query(
            f"SELECT observer_lag_ms, outcome FROM sample WHERE started_at_us >= {used.began_us}"
        )
        skipped = running.query(
            f"SELECT coalesce(sum(count), 0) FROM skipped_run WHERE at_us >= {used.began_us}"
        )[0][0]
    lags = [lag for lag, _ in found if lag is not None]
    ok = sum(outcome == "ok" for _, outcome in found)
    p95_ms = percentile(lags, 0.95) if lags else float("inf")
    median_ms = f"{statistics.median(lags):.2f} ms" if lags else "–"
    what = f"{FLEET} targets at one probe a minute on one core"
    return [
        at_most(f"{what}: `observer_lag_ms` p95", p95_ms, FLEET_LAG_MS, " ms"),
        Row(f"{what}: `observer_lag_ms` median", median_ms),
        Row("an idle event loop on the same core just before: the same p95", idle_lag_ms),
        Row(
            f"{what}: samples stored as ok, of {FLEET * seconds / 60:.0f} due",
            f"{ok} ({skipped} skipped)",
        ),
        Row(f"{what}: share of that core", f"{used.cpu_percent:.0f} %"),
        Row(f"{what}: resident memory", f"{used.memory_mb:.0f} MB"),
    ]


def _idle_lag_ms() -> str:
    """The p95 lag of an idle event loop on the core of the daemon."""
    pinned = [] if (os.cpu_count() or 1) < 2 else ["taskset", "-c", "0"]
    command = [*pinned, sys.executable, str(HERE / "idle_loop.py"), str(IDLE_S)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"{float(printed):.2f} ms"


# -- the history


GPU = "GPU-8f6f1f0e-7f2e-4c58-a7f2-52f1d8d2b5c1"
#: Times and rates with all digits of a double; GPUs report whole numbers, and power in milliwatts.
MEASURED = (
    *(
        "idle_before_s",
        "connect_ms",
        "ttft_ms",
        "ttft_visible_ms",
        "e2e_ms",
        "decode_tok_s",
        "itl_p50_ms",
        "itl_p95_ms",
        "itl_max_ms",
    ),
    *(
        "observer_lag_ms",
        "queue_ms",
        "prefill_ms",
        "decode_ms",
        "kv_usage",
        "spec_acceptance",
        "gpu_age_ms",
        "logprob_shift",
    ),
)


def watts() -> float:
    """A random power reading."""
    return random.randrange(300_000, 700_000) / 1000


#: The values of a sample that are the same in every row.
CONSTANT = {
    "revision_id": 1,
    "process_start_id": 1,
    "fingerprint_id": 1,
    "output_id": 1,
    "phase": "warm",
    "outcome": "ok",
    "verdict": "pass",
    "stale": 0,
    "pin": 1,
    "priority": 0,
    "prompt_tokens": 26,
    "completion_tokens": 128,
    "cached_tokens": 0,
    "finish_reason": "length",
    "server_timing": "response",
    "preemptions": 0,
    "gpu_uuid": GPU,
    "mem_clock_mhz": 2619,
    "power_limit_w": 700,
    "throttle_thermal_ms": 0,
    "throttle_brake_ms": 0,
    "first_divergence": 31,
}


def sample_row(index: int, started_us: int) -> dict[str, Any]:
    """A sample without unknown values: a target with GPU, pin and per-request metrics."""
    whole = random.randrange
    return {
        **CONSTANT,
        **{name: random.random() * 1000 for name in MEASURED},
        "target_id": 1 + index % 8,
        "started_at_us": started_us,
        "running": whole(40),
        "waiting": whole(10),
        "other_prompt_tokens": whole(9000),
        "other_generation_tokens": whole(9000),
        "gpu_temp_c": whole(40, 90),
        "gpu_mem_temp_c": whole(40, 100),
        "gpu_margin_c": whole(40),
        "sm_clock_mhz": whole(900, 1980, 15),
        "gpu_util": whole(101),
        "power_w": watts(),
        "energy_j": watts(),
        "vram_used_mib": whole(70_000, 80_000),
        "throttle_power_ms": random.random() * 1000,
    }


def server_row(index: int, at_us: int) -> dict[str, Any]:
    """One reading of a metrics page."""
    names = {c.name for c in t.server_reading.columns} - {
        "id",
        "target_id",
        "at_us",
        "state",
        "process_start_id",
    }
    counters: dict[str, Any] = dict.fromkeys(names, index * 37)
    seconds = {
        name: random.random() * 10_000 for name in ("kv_usage", "queue_s_sum", "prefill_s_sum")
    }
    return {
        **counters,
        **seconds,
        "target_id": 1 + index % 8,
        "at_us": at_us,
        "state": "ok",
        "process_start_id": 1,
    }


def gpu_row(index: int, at_us: int) -> dict[str, Any]:
    """A window of readings of one GPU, with counters as large as after a year."""
    spread = {
        f"{name}_{kind}": random.randrange(low, high) if name != "power_w" else watts()
        for name, low, high in (
            ("temp_c", 40, 90),
            ("sm_clock_mhz", 900, 1980),
            ("power_w", 0, 0),
            ("util", 0, 101),
        )
        for kind in ("min", "median", "max")
    }
    counters = dict.fromkeys(
        ("throttle_thermal_ns", "throttle_power_ns", "throttle_brake_ns"), 10**15 + index
    )
    state = {
        "mem_temp_c": 80,
        "margin_c": 20,
        "mem_clock_mhz": 2619,
        "vram_used_mib": 75_000,
        "power_limit_w": 700,
        "event_reasons": 4,
    }
    return {
        **spread,
        **counters,
        **state,
        "gpu_uuid": GPU,
        "at_us": at_us,
        "count": 5,
        "energy_j": 10**9 + watts(),
    }


def parents(engine: Engine) -> None:
    """Inserts the rows that samples and readings refer to."""
    now = 1_796_000_000_000_000
    with engine.begin() as connection:
        rows = [
            {"name": f"target-{i}", "url": f"http://gpu-{i}:8000", "first_seen_us": now}
            for i in range(8)
        ]
        connection.execute(insert(t.target), rows)
        connection.execute(insert(t.probe).values(name="chat"))
        revision = {
            "probe_id": 1,
            "digest": "0" * 64,
            "class": "chat",
            "parameter_set": "chat",
            "definition": {},
            "first_seen_us": now,
        }
        connection.execute(insert(t.probe_revision).values(**revision))
        connection.execute(
            insert(t.process_start).values(target_id=1, seen_at_us=now, source="metrics")
        )
        mark = {
            "target_id": 1,
            "digest": "0" * 64,
            "fields": {},
            "first_seen_us": now,
            "last_seen_us": now,
        }
        connection.execute(insert(t.fingerprint).values(**mark))
        connection.execute(
            insert(t.output).values(sha256="0" * 64, text="The capital of France is Paris.")
        )


def fill(
    engine: Engine,
    table: Table,
    row: Callable[[int, int], dict[str, Any]],
    count: int,
    step_us: int,
) -> None:
    """Inserts `count` rows, `step_us` apart; the newest is from now."""
    first_us = time.time_ns() // 1000 - count * step_us
    batch = 20_000
    for start in range(0, count, batch):
        rows = [row(i, first_us + i * step_us) for i in range(start, min(count, start + batch))]
        with engine.begin() as connection:
            connection.execute(insert(table), rows)


def multiply(engine: Engine, table: Table, copies: int, span_us: int) -> None:
    """Copies all rows `copies` times, each time `span_us` later: faster than generating them."""
    names = [c.name for c in table.columns if c.name != "id"]
    with engine.begin() as connection:
        last = connection.execute(select(table.c.id).order_by(table.c.id.desc()).limit(1)).scalar()
        for copy in range(1, copies + 1):
            later = [
                table.c[name] + literal(copy * span_us)
                if name == "started_at_us"
                else table.c[name]
                for name in names
            ]
            connection.execute(
                insert(table).from_select(
                    names, select(*later).where(table.c.id <= last).order_by(table.c.id)
                )
            )


def size(database: Path) -> int:
    """Bytes of the database file after a checkpoint of its write-ahead log."""
    connection = sqlite3.connect(database)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    return database.stat().st_size


def disk(samples: int) -> list[Row]:
    """Bytes per sample, its share of the readings included."""
    step_us = 10_000_000
    kinds = (
        (t.sample, sample_row, 1.0),
        (t.server_reading, server_row, SERVER_READINGS),
        (t.gpu_reading, gpu_row, GPU_READINGS),
    )
    with tempfile.TemporaryDirectory() as name:
        database = Path(name) / "history.db"
        engine = open_writer(str(database))
        parents(engine)
        sizes = [size(database)]
        for kind, row, per_sample in kinds:
            fill(engine, kind, row, round(samples * per_sample), round(step_us / per_sample))
            sizes.append(size(database))
        engine.dispose()
    sample, server, gpu = ((after - before) / samples for before, after in pairwise(sizes))
    what = "database per sample, all included (6 probes a minute, one GPU)"
    return [
        at_most(what, sample + server + gpu, SAMPLE_BYTES, " bytes", 0),
        Row("of which the sample, every column filled, and its two indexes", f"{sample:.0f} bytes"),
        Row("of which its share of the server's readings (every 15 s)", f"{server:.0f} bytes"),
        Row("of which its share of the GPU's readings (every 5 s)", f"{gpu:.0f} bytes"),
    ]


# -- commands


def medians(commands: Mapping[str, Sequence[str]], repeats: int) -> dict[str, float]:
    """Median seconds of each command. They run in turn, so that other load affects all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats + 1):
        for name, command in commands.items():
            began_s = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - began_s)
    # the first run fills the caches
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def commands(rows: int, repeats: int) -> list[Row]:
    """Times of commands that only read, and of the shortest Python programs."""
    with tempfile.TemporaryDirectory() as name:
        database = Path(name) / "history.db"
        began_s = time.perf_counter()
        large_history(database, rows)
        print(f"cost: {rows} samples written in {time.perf_counter() - began_s:.0f} s", flush=True)
        took = medians(
            {
                "history": [str(CANARY), "history", "--limit", "20", "--db", str(database)],
                "sqlalchemy": [sys.executable, "-c", "import sqlalchemy"],
                "help": [str(CANARY), "--help"],
                "pass": [sys.executable, "-c", "pass"],
            },
            repeats,
        )
    ms = {name: f"{seconds * 1e3:.0f} ms" for name, seconds in took.items()}
    history = (
        f"`history --limit 20` on {rows:,} samples ({ms['history']}), relative to "
        f"`python -c 'import sqlalchemy'` ({ms['sqlalchemy']})"
    )
    help_ = f"`vllm-canary --help` ({ms['help']}), relative to `python -c pass` ({ms['pass']})"
    return [
        at_most(history, took["history"] / took["sqlalchemy"], HISTORY_RATIO, " times"),
        at_most(help_, took["help"] / took["pass"], HELP_RATIO, " times"),
    ]


def large_history(database: Path, rows: int) -> None:
    """Writes a history of `rows` samples, one a second."""
    engine = open_writer(str(database))
    parents(engine)
    made, second_us = min(rows, 20_000), 1_000_000
    earlier_us = (rows - made) * second_us
    fill(engine, t.sample, lambda i, at_us: sample_row(i, at_us - earlier_us), made, second_us)
    multiply(engine, t.sample, rows // made - 1, made * second_us)
    engine.dispose()


PARTS: Mapping[str, Callable[[bool], list[Row]]] = {
    "watching": lambda quick: watching(30 if quick else 150),
    "disk": lambda quick: disk(6_000 if quick else 60_000),
    "commands": lambda quick: commands(50_000 if quick else 1_000_000, 5 if quick else 25),
    "fleet": lambda quick: fleet(60 if quick else 120),
}


def section(quick: bool, parts: Sequence[str] = tuple(PARTS)) -> Section:
    """Measures the given parts."""
    rows: list[Row] = []
    loads = [load()]
    for part in parts:
        print(f"cost: {part} …", flush=True)
        found = PARTS[part](quick)
        loads.append(load())
        for row in found:
            print("  " + " | ".join(row.cells), flush=True)
        rows += found
    rows.append(Row("load average in this part", f"{min(loads):.1f} to {max(loads):.1f}"))
    text = (
        "The daemon as a user starts it, against stand-ins (`tests/standin.py`) whose metrics "
        "pages are as large as a real one. The machine has no GPU, so the daemon looks for NVML "
        "once a minute. Times of commands are medians of runs taken in turn."
    )
    return figures("Cost", text, rows)


if __name__ == "__main__":
    print(section(quick=True, parts=sys.argv[1:] or tuple(PARTS)).markdown())
