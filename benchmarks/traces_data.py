"""Readings of real GPUs as points: the GB10 set, two RTX 3090, two V100, and sweeps of power caps.
Their sources are in data/gpu/PROVENANCE.md.
"""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common import HERE

from monitor.model import GpuPoint

EXTRACT = HERE / "data" / "gpu"
SECOND_US = 1_000_000
GB10 = "GB10"
GB10_LIMIT_C = (
    94.0  # a GB10 reports a margin of 13 °C at 81 °C (github.com/ollama/ollama/issues/13552)
)
BETWEEN_S = 60.0  # between consecutive tests of one model; their temperatures are continuous


#: Elapsed s, W, °C, SM MHz, utilisation 0..1.
TraceRow = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Trace:
    """One file: its name, its start (seconds after the first file; None: right after the previous
    one), and its rows.
    """

    name: str
    began_s: float | None
    rows: tuple[TraceRow, ...]


def spark(folder: Path | None) -> list[Trace]:
    """The GB10 files in the order of their recording, from `spark_telemetry.tar.gz` in a folder;
    without a folder the extract.
    """
    if folder is None:
        return _extract()
    archive = folder / "spark_telemetry.tar.gz"
    starts = _starts(folder / "spark__closed_loop_tables.csv")
    groups: dict[str, list[tuple[str, str]]] = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            stream = (
                tar.extractfile(member)
                if member.isfile() and member.name.endswith("-telemetry.csv")
                else None
            )
            if stream is not None:
                name = Path(member.name).name.removesuffix("-telemetry.csv")
                groups.setdefault(name[:-3], []).append((name, stream.read().decode()))
    order = sorted(groups, key=lambda group: (starts.get(group, 1e12), group))
    first_s = min(starts[group] for group in order if group in starts) if starts else 0.0
    return [
        Trace(
            name,
            starts[group] - first_s if number == 0 and group in starts else None,
            _rows(csv.DictReader(io.StringIO(text))),
        )
        for group in order
        for number, (name, text) in enumerate(sorted(groups[group]))
    ]


def _extract() -> list[Trace]:
    with (EXTRACT / "spark_qwen3.6_27b_bf16.csv").open() as file:
        rows = list(csv.DictReader(file))
    tests = list(dict.fromkeys(row["test"] for row in rows))
    return [
        Trace(f"qwen-3.6-27b_bf16_{test}", None, _rows(row for row in rows if row["test"] == test))
        for test in tests
    ]


def _rows(
    rows: Iterator[dict[str, str]] | csv.DictReader[str],
) -> tuple[TraceRow, ...]:
    return tuple(
        (
            float(r["elapsed_s"]),
            float(r["power_w"]),
            float(r["temp_c"]),
            float(r["sm_mhz"]),
            float(r["gpu_util"]) / 100,
        )
        for r in rows
    )


def _starts(file: Path) -> dict[str, float]:
    """The start of the first test of each model, from the tables of results."""
    found: dict[str, float] = {}
    if file.exists():
        with file.open() as rows:
            for row in csv.DictReader(rows):
                family, model, precision, test = row["source_path"].split("/")[1:]
                if test.startswith("01"):
                    found[f"{family}_{model}_{precision}"] = (
                        datetime.fromisoformat(row["date"]).replace(tzinfo=UTC).timestamp()
                    )
    return found


@dataclass(frozen=True, slots=True)
class Chained:
    """Traces one after another as the history of one GPU: the points, and the file of each."""

    points: list[GpuPoint]
    names: list[str]


def chained(traces: Sequence[Trace]) -> Chained:
    """Joins traces. A file without a start follows a minute after the previous one; none begins
    before the previous one has ended.
    """
    points: list[GpuPoint] = []
    names: list[str] = []
    end_s = 0.0
    for trace in traces:
        base_s = (
            end_s + BETWEEN_S if trace.began_s is None else max(end_s + BETWEEN_S, trace.began_s)
        )
        for elapsed_s, power_w, temp_c, clock, util in trace.rows:
            at_us = round((base_s + elapsed_s) * SECOND_US)
            points.append(
                GpuPoint(
                    at_us,
                    GB10,
                    temp_c,
                    margin_c=GB10_LIMIT_C - temp_c,
                    sm_clock_mhz=clock,
                    util=util,
                    power_w=power_w,
                )
            )
            names.append(trace.name)
        end_s = base_s + trace.rows[-1][0]
    return Chained(points, names)


def rtx3090() -> dict[str, list[GpuPoint]]:
    """Two RTX 3090 in two runs, once a second, without clocks."""
    found: dict[str, list[GpuPoint]] = {}
    for file in sorted(EXTRACT.glob("rtx3090__gpu_monitor_*.csv")):
        with file.open() as rows:
            for row in csv.DictReader(rows):
                name = f"RTX3090-{row['index']} {file.stem[-6:]}"
                point = GpuPoint(
                    round(float(row["ts"]) * SECOND_US),
                    name,
                    float(row["temp_c"]),
                    util=float(row["util_pct"]) / 100,
                    power_w=float(row["power_w"]),
                    power_limit_w=float(row["power_limit_w"]),
                    vram_used_mib=float(row["mem_used_mib"]),
                )
                found.setdefault(name, []).append(point)
    return found


def v100() -> dict[str, list[GpuPoint]]:
    """Two V100 that decode, once a second, with memory temperature and without clocks."""
    found: dict[str, list[GpuPoint]] = {}
    for line in (EXTRACT / "v100__dmon_load.txt").read_text().splitlines():
        cells = line.split()
        if line.startswith("#") or cells[3] == "-":
            continue
        name = f"V100-{cells[0]}"
        at_us = len(found.get(name, [])) * SECOND_US
        point = GpuPoint(
            at_us,
            name,
            float(cells[2]),
            mem_temp_c=float(cells[3]),
            util=float(cells[4]) / 100,
            power_w=float(cells[1]),
        )
        found.setdefault(name, []).append(point)
    return found


@dataclass(frozen=True, slots=True)
class Peak:
    """The extremes of a V100 at a power cap: highest temperatures, lowest clock."""

    work: str
    cap_w: float
    mem_temp_c: float
    temp_c: float
    power_w: float
    min_clock_mhz: float


def v100_peaks() -> list[Peak]:
    """The extremes of six runs."""
    found = []
    for work in ("t2i", "video"):
        with (EXTRACT / f"v100__power_sweep_{work}.csv").open() as rows:
            found += [
                Peak(
                    row["label"],
                    float(row["cap_w"]),
                    float(row["peak_hbm_c"]),
                    float(row["peak_core_c"]),
                    float(row["peak_power_w"]),
                    float(row["min_sm_mhz"]),
                )
                for row in csv.DictReader(rows)
            ]
    return found


@dataclass(frozen=True, slots=True)
class Capped:
    """One power cap: speed, power and clock."""

    cap_w: float
    speed: float
    power_w: float
    clock_mhz: float


def power_caps() -> dict[str, list[Capped]]:
    """Each sweep by name, highest cap first; rows without clock or measured power are skipped."""
    found: dict[str, list[Capped]] = {}
    with (EXTRACT / "club3090__power_cap_sweeps.csv").open() as rows:
        for row in csv.DictReader(rows):
            if not row["sm_mhz"] or not row["actual_w"]:
                continue
            name = f"{row['gpu']} {row['workload']} {row['model']} ({row['engine']})"
            capped = Capped(
                float(row["cap_w"]), float(row["tps"]), float(row["actual_w"]), float(row["sm_mhz"])
            )
            found.setdefault(name, []).append(capped)
    return {name: sorted(sweep, key=lambda capped: -capped.cap_w) for name, sweep in found.items()}
