"""The judges of GPUs on readings of real ones: no findings on healthy GPUs, findings on injected
faults, and the right cause.

    .venv/bin/python benchmarks/traces.py [--data FOLDER] [--orders N] [--write]

Without --data it reads the extract in benchmarks/data/gpu (eleven tests of one model); with it the
whole GB10 set, which is too large for this repository: FOLDER has spark_telemetry.tar.gz and
spark__closed_loop_tables.csv (sources in PROVENANCE.md). --write writes the tables into
docs/detection-measured.md and the plot into the same folder. About four minutes with the whole set.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import traces_data
import traces_others
import traces_plot
from common import ROOT, percentile, table
from proofpage import DETECTION, stamp, write_section
from traces_data import Chained, Trace
from traces_faults import Trial, snapshots, trials

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.settings import DriftSettings

PLOT = ROOT / "docs" / "detection-gpus.svg"
SETTINGS = DriftSettings()


@dataclass(frozen=True, slots=True)
class Healthy:
    """The findings on a healthy history of one GPU, and the minutes that were judged."""

    files: int
    hours: float
    findings: list[tuple[str, str]]  # file and condition
    busy: int  # minutes
    clock: int  # of them judged by clock
    heat: int  # of them judged by temperature


def healthy(chain: Chained) -> Healthy:
    """Plays the history; counts every condition of any severity once per file."""
    channel, found = GpuChannel(traces_data.GB10), dict[tuple[str, str], None]()
    busy = clock = heat = 0
    counted_us = -1
    for point, name in zip(chain.points, chain.names, strict=True):
        channel.gpu(point, SETTINGS)
        channel.advance(point.at_us, SETTINGS)
        for minute in channel.history.minutes[-1:]:
            if minute.at_us != counted_us and minute.busy:
                counted_us = minute.at_us
                busy, clock, heat = (
                    busy + 1,
                    clock + (minute.expected_clock_mhz is not None),
                    heat + (minute.residual_c is not None),
                )
        if channel.conditions.open:
            found |= dict.fromkeys(
                (name, warning.condition) for warning in channel.warnings(SETTINGS)
            )
    return Healthy(len(set(chain.names)), len(chain.points) / 360.0, list(found), busy, clock, heat)


def simple_rules(chain: Chained) -> list[tuple[str, int]]:
    """The number of the same healthy files in which simpler rules fire."""
    hot, steep, low = set[str](), set[str](), set[str]()
    for end in range(30, len(chain.points)):
        window = chain.points[end - 30 : end]
        if window[-1].at_us - window[0].at_us > 400_000_000:
            continue
        temps, name = [point.temp_c or 0.0 for point in window], chain.names[end]
        slope = (sum(temps[15:]) - sum(temps[:15])) / 15 / 150  # °C a second
        if median(temps) >= 84.0:
            hot.add(name)
        if slope > 0 and temps[-1] + slope * 600 > traces_data.GB10_LIMIT_C:
            steep.add(name)
        if any((p.util or 0) > 0.5 and (p.sm_clock_mhz or 0) < 0.95 * 2496 for p in window):
            low.add(name)
    return [
        ("temperature of 84 °C or more (margin 10 °C), median of 5 minutes", len(hot)),
        (
            "temperature that would reach 94 °C within 10 minutes at the slope of the last 5",
            len(steep),
        ),
        ("one busy reading with a clock 5 % below its usual 2496 MHz", len(low)),
    ]


def healthy_lines(traces: Sequence[Trace], orders: int) -> list[str]:
    """The table of findings on healthy traces."""
    chain = traces_data.chained(traces)
    found = healthy(chain)
    if found.files > 100:
        what = f"{found.files} files, {found.hours:.0f} hours of one GB10 that serves 24 models"
        what += " with vLLM"
    else:
        what = f"The extract: {found.files} files, {found.hours:.0f} hours of one GB10"
    headings = ("rule", "files with a finding", "judged")
    lines = [
        f"**Healthy.** {what} (`power_w, temp_c, sm_mhz, gpu_util` every 10 s; the margin is 94 °C "
        "less the temperature, as a GB10 reports it; throttle counters and event reasons are not "
        "in the files). They are played as the history of one GPU in the order in which they were "
        "recorded.",
        "",
        *table(headings, _healthy_rows(found)).splitlines(),
    ]
    lines += [
        f"| (simpler) {rule} | {count} of {found.files} | |" for rule, count in simple_rules(chain)
    ]
    return [*lines, "", _in_random_orders(traces, found.files, orders)] if orders else lines


def _healthy_rows(found: Healthy) -> list[tuple[str, str, str]]:
    together = len({name for name, _ in found.findings})
    heat = f"{_share(found.heat, found.busy)} of {found.busy} busy minutes"
    return [
        ("**all conditions together**", f"**{together} of {found.files}**", ""),
        ("unexplained heat", _files(found, "thermal_residual"), heat),
        (
            "clock against temperature and power",
            _files(found, "clock_deficit", "hidden_limit"),
            _share(found.clock, found.busy),
        ),
        ("margin", _files(found, "margin"), "from the first minute"),
        (
            "throttle time, hardware slowdown, power brake",
            "–",
            "counters are not in these files",
        ),
    ]


def _in_random_orders(traces: Sequence[Trace], files: int, orders: int) -> str:
    findings = 0
    for seed in range(orders):
        chain = traces_data.chained(_shuffled(traces, seed))
        findings += len({name for name, _ in healthy(chain).findings})
    return (
        f"In {orders} random orders of the models, with the baseline learned in another order each "
        f"time: {findings} findings in {files * orders} files."
    )


def _shuffled(traces: Sequence[Trace], seed: int) -> list[Trace]:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.name[:-3], []).append(replace(trace, began_s=None))
    names = list(groups)
    random.Random(seed).shuffle(names)
    return [trace for name in names for trace in groups[name]]


def _files(found: Healthy, *conditions: str) -> str:
    return f"{len({name for name, c in found.findings if c in conditions})} of {found.files}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


TRIALS = (
    ("cooling falls to 1/2.6 within an hour", "cooling", 2.6, True),
    ("the same, without throttle counters and event reasons", "cooling", 2.6, False),
    ("cooling falls to 1/1.5 within an hour", "cooling", 1.5, True),
    ("firmware limits the clock to 799 MHz", "hidden", 0.0, True),
)


def trial_lines(chain: Chained) -> tuple[list[str], list[Trial]]:
    """The table of findings on injected faults, and the trials of its first row."""
    starts = snapshots(chain, SETTINGS)
    results = [
        trials(chain, starts, kind, factor, counters, SETTINGS)
        for _, kind, factor, counters in TRIALS
    ]
    rows = [
        (text, *_trial_cells(found, "heat" if kind == "cooling" else "hidden_limit"))
        for (text, kind, _, _), found in zip(TRIALS, results, strict=True)
    ]
    headings = (
        "injected",
        "found",
        "right cause",
        "first condition, min: median (p90)",
        "lead, min: median (p5, minimum), trials",
        "first conditions",
    )
    lines = [
        f"**Injected.** Faults in the same traces, at {len(starts)} times 45 minutes apart, each "
        "with the baseline learned until then; two hours of each are played. The thermal model in "
        "`benchmarks/cooling.py` computes temperature, clock, power and counters from the real "
        "ones. *Right cause*: no condition names another cause than heat (or hidden limit). "
        "*Lead*: minutes from the first warning to the time at which decoding, by the same model, "
        "had been 3 % slower over five minutes, in the trials that reached it.",
        "",
        *table(headings, rows).splitlines(),
        "",
        _forecasts(results[0]),
    ]
    return lines, results[0]


def _forecasts(found: Sequence[Trial]) -> str:
    """The errors of the first forecast of each trial, in a sentence."""
    errors = sorted(
        trial.forecast[1] - trial.throttled_min
        for trial in found
        if trial.forecast is not None
        and trial.throttled_min is not None
        and trial.forecast[0] < trial.throttled_min
    )
    if not errors:
        return "No throttled minute was forecast before it came."
    return (
        "*Forecast* of the first throttled minute, first row: made before that minute in "
        f"{len(errors)} of {len(found)} trials; it came {median(errors):+.0f} min earlier than "
        f"forecast (median; p10 {percentile(errors, 0.1):+.0f}, p90 "
        f"{percentile(errors, 0.9):+.0f})."
    )


def _trial_cells(found: Sequence[Trial], cause: str) -> tuple[str, ...]:
    detected = [trial for trial in found if trial.first]
    right = [trial for trial in detected if trial.causes == {cause}]
    delays = [trial.first_min for trial in detected]
    leads = sorted(
        trial.loss_min - trial.warned_min
        for trial in detected
        if trial.loss_min is not None and trial.warned_min is not None
    )
    names = Counter(trial.first_condition for trial in detected)
    return (
        f"{len(detected)} of {len(found)}",
        f"{len(right)} of {len(detected)}",
        f"{median(delays):.0f} ({percentile(delays, 0.9):.0f})" if delays else "–",
        f"{median(leads):.0f} ({percentile(leads, 0.05):.1f}, {leads[0]:.1f}), {len(leads)}"
        if leads
        else "–",
        ", ".join(f"{name} {count}" for name, count in names.most_common()),
    )


def options() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(description="the judges of GPUs on real traces")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the whole GB10 set; default: the extract in benchmarks/data/gpu",
    )
    parser.add_argument(
        "--orders",
        type=int,
        default=20,
        help="random orders of the healthy files besides the recorded one (default 20)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write {DETECTION.relative_to(ROOT)} and {PLOT.relative_to(ROOT)}",
    )
    return parser.parse_args()


def main() -> int:
    """Plays the traces, prints the tables and writes them."""
    o = options()
    traces = traces_data.spark(o.data)
    chain = traces_data.chained(traces)
    injected, first = trial_lines(chain)
    command = "benchmarks/traces.py" + (" --data FOLDER" if o.data else "")
    command += f" --orders {o.orders}" if o.orders != 20 else ""
    lines = [
        "## GPUs: real traces",
        "",
        f"Measured {stamp()} with `{command}`. Sources and licences: "
        "`benchmarks/data/gpu/PROVENANCE.md`.",
        "",
        *traces_others.rule_lines(),
        "",
        *healthy_lines(traces, o.orders),
        "",
        *injected,
        "",
        f"![A trial: margin, residual, throttle time and decode loss over two hours]({PLOT.name})",
        "",
        *traces_others.lines(SETTINGS),
    ]
    print("\n".join(lines))
    if o.write:
        write_section("traces", lines, DETECTION)
        PLOT.write_text(traces_plot.trial(chain, first, SETTINGS), encoding="utf-8")
        print(f"written to {DETECTION} and {PLOT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
