"""The judges of GPUs on readings of real ones: silent while they are healthy, loud when they are
not, and right about the cause.

    .venv/bin/python benchmarks/traces.py [--data FOLDER] [--orders N] [--write]

Without --data it reads the extract in benchmarks/data/gpu (one model's eleven tests); with it the
whole GB10 set, which is too large for this repository: FOLDER holds spark_telemetry.tar.gz and
spark__closed_loop_tables.csv (PROVENANCE.md says where they come from). --write puts the tables
into docs/detection-measured.md and the plot beside it. About four minutes with the whole set.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import traces_data
import traces_others
import traces_plot
from common import ROOT, percentile
from proofpage import stamp, write_section
from traces_data import Chained, Trace
from traces_faults import Trial, snapshots, trials

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.settings import DriftSettings

PAGE = ROOT / "docs" / "detection-measured.md"
PLOT = ROOT / "docs" / "detection-gpus.svg"
SETTINGS = DriftSettings()
SECTION = "traces"


@dataclass(frozen=True, slots=True)
class Healthy:
    """What a healthy life of one GPU showed."""

    files: int
    hours: float
    findings: list[tuple[str, str]]  # file and sign
    busy: int  # minutes
    clock: int  # of them judged by clock
    heat: int  # likewise by temperature


def healthy(chain: Chained) -> Healthy:
    """Play it, and count every sign of any severity once a file."""
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
                    clock + (minute.usual_clock_mhz is not None),
                    heat + (minute.residual_c is not None),
                )
        if channel.open:
            found |= dict.fromkeys((name, warning.sign) for warning in channel.warnings(SETTINGS))
    return Healthy(len(set(chain.names)), len(chain.points) / 360.0, list(found), busy, clock, heat)


def naive(chain: Chained) -> list[tuple[str, int]]:
    """What simpler rules would have said about the same healthy files: in how many of them they
    fire.
    """
    hot, steep, low = set[str](), set[str](), set[str]()
    for end in range(30, len(chain.points)):
        window = chain.points[end - 30 : end]
        if window[-1].at_us - window[0].at_us > 400_000_000:
            continue
        temps, name = [point.temp_c or 0.0 for point in window], chain.names[end]
        slope = (sum(temps[15:]) - sum(temps[:15])) / 15 / 150  # °C a second
        hot |= {name} if median(temps) >= 84.0 else set()
        steep |= (
            {name} if slope > 0 and temps[-1] + slope * 600 > traces_data.GB10_LIMIT_C else set()
        )
        low |= (
            {name}
            if any((p.util or 0) > 0.5 and (p.sm_clock_mhz or 0) < 0.95 * 2496 for p in window)
            else set()
        )
    return [
        ("temperature of 84 °C or more (10 °C of margin), median of 5 minutes", len(hot)),
        (
            "temperature that would reach 94 °C within 10 minutes at the slope of the last 5",
            len(steep),
        ),
        ("one busy look with a clock 5 % below its usual 2496 MHz", len(low)),
    ]


def healthy_lines(traces: Sequence[Trace], orders: int) -> list[str]:
    """The table of what healthy traces raise."""
    chain = traces_data.chained(traces)
    quiet = healthy(chain)
    lines = [
        (
            f"**Healthy.** {quiet.files} files, {quiet.hours:.0f} hours of one GB10 that serves 24 "
            "models through vLLM"
        )
        if quiet.files > 100
        else f"**Healthy.** The extract: {quiet.files} files, {quiet.hours:.0f} hours of one GB10",
        (
            "(`power_w, temp_c, sm_mhz, gpu_util` every 10 s; margin = 94 °C less the temperature, "
            "as a GB10 tells it; throttle counters and"
        ),
        (
            "reasons are not in them). They are played as the life of one GPU in the order in "
            "which they were made."
        ),
        "",
        "| rule | files with a finding | armed |",
        "| --- | --- | --- |",
        (
            f"| **all signs together** | **{len({name for name, _ in quiet.findings})} of "
            f"{quiet.files}** | |"
        ),
        (
            f"| unexplained heat | {_files(quiet, 'thermal_residual')} | "
            f"{_share(quiet.heat, quiet.busy)} of {quiet.busy} busy minutes |"
        ),
        (
            "| clock against temperature and power | "
            f"{_files(quiet, 'clock_deficit', 'hidden_limit')} | "
            f"{_share(quiet.clock, quiet.busy)} |"
        ),
        f"| margin | {_files(quiet, 'margin')} | from the first minute |",
        "| throttle time, hardware slowdown, power brake | – | counters are not in these files |",
    ]
    lines += [f"| (simpler) {rule} | {count} of {quiet.files} | |" for rule, count in naive(chain)]
    if orders:
        shuffled = [
            len(
                {name for name, _ in healthy(traces_data.chained(_shuffled(traces, seed))).findings}
            )
            for seed in range(orders)
        ]
        lines += [
            "",
            f"In {orders} random orders of the models, so with other things learnt before "
            f"others: {sum(shuffled)} findings in "
            f"{quiet.files * orders} files.",
        ]
    return lines


def _shuffled(traces: Sequence[Trace], seed: int) -> list[Trace]:
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.name[:-3], []).append(replace(trace, began_s=None))
    names = list(groups)
    random.Random(seed).shuffle(names)
    return [trace for name in names for trace in groups[name]]


def _files(quiet: Healthy, *signs: str) -> str:
    return f"{len({name for name, sign in quiet.findings if sign in signs})} of {quiet.files}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


TRIALS = (
    ("cooling falls to 1/2.6 within an hour", "cooling", 2.6, True),
    ("the same, without throttle counters and reasons", "cooling", 2.6, False),
    ("cooling falls to 1/1.5 within an hour", "cooling", 1.5, True),
    ("firmware holds the clock at 799 MHz", "hidden", 0.0, True),
)


def trial_lines(chain: Chained) -> tuple[list[str], list[Trial]]:
    """The table of what injected faults raise, and the trials of the first row."""
    starts = snapshots(chain, SETTINGS)
    lines = [
        (
            f"**Injected.** Into the same traces, at {len(starts)} moments 45 minutes apart, each "
            "with what was learnt until then; two hours"
        ),
        (
            "of each are played. The physics of `benchmarks/cooling.py` makes temperature, clock, "
            "power and counters out of the real ones."
        ),
        (
            "*Right*: no sign names another cause than heat (or hidden limit). *Lead*: minutes "
            "from the first warning to the moment at"
        ),
        (
            "which decoding, by the same physics, had been 3 % slower over five minutes; over the "
            "trials that came to that."
        ),
        "",
        (
            "| injected | found | right cause | first sign, min: median (p90) | lead, min: median "
            "(p5, least), trials | first signs |"
        ),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    first: list[Trial] = []
    for text, kind, factor, counters in TRIALS:
        found = trials(chain, starts, kind, factor, counters, SETTINGS)
        first = first or found
        lines.append(
            f"| {text} | {_trial_cells(found, 'heat' if kind == 'cooling' else 'hidden_limit')} |"
        )
    return [*lines, "", _forecasts(first)], first


def _forecasts(found: Sequence[Trial]) -> str:
    """How good the first forecast of each trial was, where it was one."""
    errors = sorted(
        trial.forecast[1] - trial.throttled_min
        for trial in found
        if trial.forecast is not None
        and trial.throttled_min is not None
        and trial.forecast[0] < trial.throttled_min
    )
    if not errors:
        return "No forecast of the first throttled minute was made before it."
    return (
        "*Forecast* (“at this pace it slows itself down in about N min”), first row: one was "
        "made before the first throttled minute in "
        f"{len(errors)} of {len(found)} trials, which then came {median(errors):+.0f} min "
        "earlier than forecast (median; p10 "
        f"{percentile(errors, 0.1):+.0f}, p90 {percentile(errors, 0.9):+.0f})."
    )


def _trial_cells(found: Sequence[Trial], cause: str) -> str:
    seen = [trial for trial in found if trial.first]
    right = [trial for trial in seen if trial.causes == {cause}]
    delays = [trial.first_min for trial in seen]
    leads = sorted(
        trial.loss_min - trial.warned_min
        for trial in seen
        if trial.loss_min is not None and trial.warned_min is not None
    )
    names: dict[str, int] = {}
    for trial in seen:
        names[trial.first_sign] = names.get(trial.first_sign, 0) + 1
    quiet = ", ".join(
        f"{name} {count}" for name, count in sorted(names.items(), key=lambda item: -item[1])
    )
    delay = f"{median(delays):.0f} ({percentile(delays, 0.9):.0f})" if delays else "–"
    lead = (
        f"{median(leads):.0f} ({percentile(leads, 0.05):.1f}, {leads[0]:.1f}), {len(leads)}"
        if leads
        else "–"
    )
    return f"{len(seen)} of {len(found)} | {len(right)} of {len(seen)} | {delay} | {lead} | {quiet}"


def main() -> int:
    """Play, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the whole GB10 set; default: the extract in benchmarks/data/gpu",
    )
    parser.add_argument(
        "--orders",
        type=int,
        default=20,
        help="random orders of the healthy files beside the true one (default 20)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"write {PAGE.relative_to(ROOT)} and {PLOT.relative_to(ROOT)}",
    )
    o = parser.parse_args()
    traces = traces_data.spark(o.data)
    chain = traces_data.chained(traces)
    injected, first = trial_lines(chain)
    command = (
        "benchmarks/traces.py"
        + (" --data FOLDER" if o.data else "")
        + (f" --orders {o.orders}" if o.orders != 20 else "")
    )
    lines = [
        "## GPUs: real traces",
        "",
        (
            f"Measured {stamp()} with `{command}`. Sources and licences: "
            "`benchmarks/data/gpu/PROVENANCE.md`."
        ),
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
        write_section(SECTION, lines, PAGE)
        PLOT.write_text(traces_plot.trial(chain, first, SETTINGS), encoding="utf-8")
        print(f"written to {PAGE} and {PLOT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
