"""The tables of docs/detection-measured.md out of the results of detection.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean, median
from typing import Any

import detection_levels
import detection_series
import detection_ttft
from detection_peers import result_path
from detection_product import ONSETS, Way
from detection_simulated import SCENARIOS

NEVER = 10**6  # minutes: not found within a day
LIMITS = {
    "busy": {"3 %": 190, "5 %": 60, "10 %": 22},
    "idle": {"3 %": 100, "5 %": 35, "10 %": 22},
}  # p90, minutes
MONTHS = (
    "One canary a minute, seven days to learn, thirty healthy days in which every alarm is a "
    "false one, and three drops of each size"
    " ({onsets} a target-month) put on the same days. Delays in minutes from the drop to the "
    "alarm: median (90th percentile); a drop"
    " that is not found within a day counts as never. The series are simulated (assumptions in "
    "`benchmarks/detection_simulated.py`): nothing"
    " here says how a real server behaves that is not like them. *residual*: with the "
    "product's load curve taken out, as it was after"
    " the seven days; *raw*: without. The product waits for the next canary after a block and "
    "its grace are over (up to 1.5 minutes),"
    " the others are read at the end of a block."
)
PAGES, WARNINGS = 0.05, 0.3  # false alarms a target in 30 days, at most


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(
        [_line(headings), _line(["---"] * len(headings)), *(_line(row) for row in rows)]
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def months_section(
    work: Path, folders: Sequence[Path], ways: Sequence[Way], extra: int, kept: Path
) -> str:
    """False alarms and delays of the product and of the others."""
    parts = [
        "### Decode rate: false alarms and delays",
        MONTHS.format(onsets=ONSETS),
    ]
    for kind, what in (
        ("busy", "Busy server (0 to some 25 requests running)"),
        ("idle", "Idle server (the canary is mostly alone)"),
    ):
        mine = [folder for folder in folders if folder.name.startswith(kind)]
        ours = [json.loads((folder / "ours.json").read_text()) for folder in mine]
        rows = [_ours_row("**the product**", ours)]
        for way in ways:
            name = f"{way.probes}-{'boost' if way.boost else 'steady'}"
            found = [
                json.loads((work / name / f"{kind}-{seed}" / "ours.json").read_text())
                for seed in range(extra)
            ]
            said = (
                "four times as often under suspicion"
                if way.boost
                else f"{way.probes} probes a minute"
            )
            rows.append(_ours_row(f"the product, {said} ({len(found)} months)", found))
        for which in ("river", "otava"):
            rows += _peer_rows(
                [json.loads(result_path(which, kept, folder).read_text()) for folder in mine]
            )
        parts += [
            f"#### {what}, {len(mine)} target-months",
            table(("detector", "false alarms in 30 d", *SCENARIOS), rows),
        ]
        parts += [_marks(kind, ours)]
    return "\n\n".join(parts)


def _ours_row(name: str, results: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    warnings, pages = fmean(r["warnings"] for r in results), fmean(r["pages"] for r in results)
    delays = [[d for r in results for d in r["delays"][scenario]] for scenario in SCENARIOS]
    return (
        name,
        f"{warnings:.2f} warnings, {pages:.2f} pages",
        *(_delay(values) for values in delays),
    )


def _peer_rows(results: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows = []
    for name in results[0]:
        alarms = fmean(r[name]["alarms"] for r in results)
        delays = [
            [d for r in results for d in r[name]["delays"][scenario]] for scenario in SCENARIOS
        ]
        rows.append(
            (
                name,
                f"{alarms:.2f}" if alarms < 10 else f"{alarms:.0f}",
                *(_delay(values) for values in delays),
            )
        )
    return rows


def _delay(values: Sequence[int | None]) -> str:
    found = sorted(NEVER if value is None else value for value in values)
    return f"{_minutes(median(found))} ({_minutes(ninth(found))})"


def ninth(ordered: Sequence[float]) -> float:
    """The 90th percentile, nearest rank."""
    return ordered[max(0, -(-len(ordered) * 9 // 10) - 1)]


def _minutes(value: float) -> str:
    return "never" if value >= NEVER / 2 else f"{value:.0f}"


def _marks(kind: str, ours: Sequence[dict[str, Any]]) -> str:
    """What was to be reached, in a sentence."""
    warnings, pages = fmean(r["warnings"] for r in ours), fmean(r["pages"] for r in ours)
    delays = [
        f"false pages {pages:.2f} of at most {PAGES} ({_yes(pages <= PAGES)})",
        f"false warnings {warnings:.2f} of at most {WARNINGS} ({_yes(warnings <= WARNINGS)})",
    ]
    for scenario, limit in LIMITS[kind].items():
        p90 = ninth(sorted(NEVER if d is None else d for r in ours for d in r["delays"][scenario]))
        delays.append(
            f"{scenario} p90 {_minutes(p90)} of at most {limit} min ({_yes(p90 <= limit)})"
        )
    masked = 100 * fmean(r["masked"] for r in ours)
    return (
        f"To reach, {kind}: {'; '.join(delays)}. Canaries left out because their load was not "
        f"known: {masked:.1f} %."
    )


def _yes(met: bool) -> str:
    return "met" if met else "**not met**"


def ttft_section(jobs: int, seeds: int) -> str:
    """Time to first token."""
    with Pool(jobs) as pool:
        alarms, delays = detection_ttft.measured(pool, seeds)
    text = (
        "### Time to first token\n\n"
        f"One canary a minute, {seeds} simulated target-months, noise of some 13 % a canary "
        "(`benchmarks/detection_ttft.py`)."
        " Minutes to the alarm, median (90th percentile)."
    )
    rows = [
        (
            "the product",
            f"{alarms:.2f}",
            *(_delay(delays[factor]) for factor in detection_ttft.FACTORS),
        )
    ]
    headings = (
        "detector",
        "false alarms in 30 d",
        *(f"{factor:g} times as long" for factor in detection_ttft.FACTORS),
    )
    return f"{text}\n\n{table(headings, rows)}"


def levels_section(jobs: int) -> str:
    """Service levels."""
    text = (
        "### Service levels: more than one in twenty waits too long\n\n"
        "Canaries until the alarm, median (90th percentile), when so many of them are over the "
        "level; false alarms in 30 days with 3 %"
        f" and with 5 % over, of {detection_levels.MONTHS} months. The product's threshold "
        "is that of"
        f" {detection_levels.SETTINGS.false_alarms_per_month:g} false alarms a month at the "
        "boundary."
    )
    headings = (
        "rule",
        "false alarms at 3 % / 5 %",
        *(f"{rate:.0%} over" for rate in detection_levels.RATES),
    )
    return f"{text}\n\n{table(headings, detection_levels.rows(jobs))}"


def series_section(data: Path | None) -> str:
    """Real series."""
    text = (
        "### Real series\n\n"
        "Values of other people's machines through the same judge, each as if it were a decode "
        "rate, both ways up; what is adapted is in"
        " `benchmarks/detection_series.py`. Spikes of some minutes are no drift to this judge, "
        "by design: the labelled windows of NAB's"
        " request latency hold nothing else (one to nine values of 4,032), and are not found. "
        "A window counts as hit when an incident is"
        " open in it; where one was raised before the window began, that is said, and so is "
        "how much of the time one is open at all."
    )
    return f"{text}\n\n{table(('series', 'asked', 'found', 'met'), detection_series.rows(data))}"
