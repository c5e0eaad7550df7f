"""What drift detection costs: a year of one target through `backtest`, and one step of the judge on
a month of samples.

    .venv/bin/python benchmarks/drift_cost.py [--write]

The year has a sample a minute of five probes with a GPU, half a million rows of 27 columns.
`--write` puts the figures into docs/detection-measured.md. About two minutes.
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

from common import ROOT, machine, percentile
from proofpage import stamp, write_section

from monitor.daemon.driftstate import codec
from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import DriftSettings
from monitor.replay.csv.points import SampleCsv

YEAR, MONTH, STEPS = (
    525_600,
    43_200,
    12_000,
)  # samples; the steps hold a week, so that the weekly relearning is among them
BLOCK = 5  # samples
BEGIN = datetime(2025, 11, 1, tzinfo=UTC)
COLUMNS = (
    "started_at,probe,class,phase,outcome,fingerprint,ttft_ms,e2e_ms,decode_tok_s,itl_p50_ms,completion_tokens,prompt_tokens,running,waiting,"
    "kv_usage,other_generation_tokens,other_prompt_tokens,gpu_uuid,gpu_temp_c,sm_clock_mhz,gpu_util,power_w,power_limit_w,"
    "throttle_thermal_ms,throttle_power_ms,throttle_brake_ms,gpu_margin_c"
)


def rows(count: int) -> Iterator[str]:
    """A healthy server that others use a little, as CSV."""
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
    """Seconds of `backtest` over a year."""
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
    """Milliseconds of processor time of each judging step after a month, of each writing down of
    the state, and its size in kB.
    """
    file.write_text("\n".join(rows(MONTH + STEPS)) + "\n", encoding="utf-8")
    points = [
        point for chunk in SampleCsv(file).chunks() for found in chunk.values() for point in found
    ]
    gc.collect()
    # as the daemon does: the points that are read at once here would be looked through again and
    # again
    gc.freeze()
    detector, settings, how = Detector(), DriftSettings(), codec(Detector)
    judged: list[float] = []
    written: list[float] = []
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
                written.append(1000 * (time.thread_time() - began))
    return judged, written, len(state) / 1000


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what drift detection costs")
    parser.add_argument(
        "--write", action="store_true", help="write the figures into docs/detection-measured.md"
    )
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "year.csv"
        took_s = year(file)
        judged, written, size_kb = steps(file)
    lines = [
        "## What it costs",
        "",
        f"`benchmarks/drift_cost.py`, {stamp()}; {machine()}.",
        "",
        "| | measured | limit | met |",
        "|---|---|---|---|",
        f"| `backtest` of a year, {YEAR:,} samples | {took_s:.0f} s, {1e6 * took_s / YEAR:.0f} "
        "µs a sample | 20 s "
        f"| {_met(took_s <= 20)} |",
        f"| one step of the judge on 30 days | median {percentile(judged, 0.5):.2f} ms, p99.9 "
        f"{percentile(judged, 0.999):.2f} ms, most "
        f"{max(judged):.1f} ms | 5 ms | {_met(max(judged) <= 5)} |",
        (
            f"| keeping the state, each block | median {percentile(written, 0.5):.1f} ms, most "
            f"{max(written):.1f} ms, {size_kb:.0f} kB | | |"
        ),
    ]
    print("\n".join(lines))
    if o.write:
        write_section("cost", lines, ROOT / "docs" / "detection-measured.md")
    return 0


def _met(there: bool) -> str:
    return "yes" if there else "**no**"


if __name__ == "__main__":
    raise SystemExit(main())
