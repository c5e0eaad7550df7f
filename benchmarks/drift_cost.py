"""The cost of drift detection: `backtest` on a year of one target, and one step of the judge after
a month of samples.

    .venv/bin/python benchmarks/drift_cost.py [--write]

The year has one sample a minute from five probes with a GPU: half a million rows of 27 columns.
`--write` writes the figures into docs/detection-measured.md. About two minutes.
"""

from __future__ import annotations

import argparse
import gc
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from common import ROOT, machine, met_cell, percentile, table
from proofpage import DETECTION, stamp, write_section

from monitor.daemon.driftstate import codec
from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.replay.csv.points import SampleCsv

# Samples. The steps cover a week, so that they include the weekly rebuild of the baseline.
YEAR, MONTH, STEPS = 525_600, 43_200, 12_000
BLOCK = 5  # samples
BEGIN = datetime(2025, 11, 1, tzinfo=UTC)
COLUMNS = (
    "started_at,probe,class,phase,outcome,fingerprint,ttft_ms,e2e_ms,decode_tok_s,itl_p50_ms,completion_tokens,prompt_tokens,running,waiting,"
    "kv_usage,other_generation_tokens,other_prompt_tokens,gpu_uuid,gpu_temp_c,sm_clock_mhz,gpu_util,power_w,power_limit_w,"
    "throttle_thermal_ms,throttle_power_ms,throttle_brake_ms,gpu_margin_c"
)


def rows(count: int) -> Iterator[str]:
    """A healthy server under a light load, as CSV."""
    yield COLUMNS
    chance, noise = random.Random(1), 0.0
    for i in range(count):
        noise = noise * 0.975 + chance.gauss(0.0, 0.001)
        running = chance.choice([0, 0, 0, 1, 2])
        rate = 100 * (1 + noise + chance.gauss(0.0, 0.003)) / (1 + 0.02 * running)
        ttft = 20 * (1 + abs(chance.gauss(0.0, 0.05)))
        e2e = ttft + 63_000 / rate
        yield (
            f"{(BEGIN + timedelta(minutes=i)).isoformat()},{'abcde'[i % 5]},chat,warm,ok,x,"
            f"{ttft:.3f},{e2e:.3f},{rate:.3f},{1000 / rate:.3f},64,50,{running},0,0.1,"
            f"{64 * running},0,GPU-1,{60 + chance.gauss(0, 1):.0f},1980,0.9,"
            f"{400 + chance.gauss(0, 10):.1f},700,0,0,0,27"
        )


def year(file: Path) -> float:
    """Seconds that `backtest` takes on a year."""
    file.write_text("\n".join(rows(YEAR)) + "\n", encoding="utf-8")
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "monitor.cli", "backtest", str(file), "--json"],
        check=True,
        capture_output=True,
        cwd=ROOT,
    )
    return time.monotonic() - began


def steps(file: Path) -> tuple[list[float], list[float], float]:
    """Returns the CPU time in ms of each judging step after a month and of each serialisation of
    the state, and the size of the state in kB.
    """
    file.write_text("\n".join(rows(MONTH + STEPS)) + "\n", encoding="utf-8")
    points = [
        point for chunk in SampleCsv(file).chunks() for found in chunk.values() for point in found
    ]
    gc.collect()
    gc.freeze()  # as the daemon does; otherwise every collection scans all these points
    detector, settings, how = Detector(), DriftSettings(), codec(Detector)
    judged: list[float] = []
    serialised: list[float] = []
    for number, point in enumerate(points):
        began = time.thread_time()
        detector.observe(point, settings)
        detector.advance(point.known_us, settings)
        detector.findings("target", point.known_us, settings)
        if number >= MONTH:
            judged.append(1000 * (time.thread_time() - began))
            if number % BLOCK == 0:
                began = time.thread_time()
                state = how.dump(detector)
                serialised.append(1000 * (time.thread_time() - began))
    return judged, serialised, len(state) / 1000


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description="the cost of drift detection")
    parser.add_argument(
        "--write", action="store_true", help=f"write the figures into {DETECTION.relative_to(ROOT)}"
    )
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "year.csv"
        took_s = year(file)
        judged, serialised, size_kb = steps(file)
    lines = [
        "## Cost",
        "",
        f"`benchmarks/drift_cost.py`, {stamp()}; {machine()}.",
        "",
        *report(took_s, judged, serialised, size_kb).splitlines(),
    ]
    print("\n".join(lines))
    if o.write:
        write_section("cost", lines, DETECTION)
    return 0


def report(took_s: float, judged: list[float], serialised: list[float], size_kb: float) -> str:
    """The table of all figures and their limits."""
    rows = [
        (
            f"`backtest` of a year, {YEAR:,} samples",
            f"{took_s:.0f} s, {1e6 * took_s / YEAR:.0f} µs per sample",
            "20 s",
            met_cell(took_s <= 20),
        ),
        (
            "one step of the judge after 30 days",
            f"median {percentile(judged, 0.5):.2f} ms, p99.9 {percentile(judged, 0.999):.2f} ms, "
            f"maximum {max(judged):.1f} ms",
            "5 ms",
            met_cell(max(judged) <= 5),
        ),
        (
            "serialising the state, once per block",
            f"median {percentile(serialised, 0.5):.1f} ms, maximum {max(serialised):.1f} ms, "
            f"{size_kb:.0f} kB",
            "",
            "",
        ),
    ]
    return table(("", "measured", "limit", "met"), rows)


if __name__ == "__main__":
    raise SystemExit(main())
