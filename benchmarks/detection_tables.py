"""The tables of docs/detection-measured.md from the results of detection.py."""

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
from common import percentile, table
from detection_peers import result_path
from detection_product import ONSETS, RESULT, Cadence
from detection_simulated import SCENARIOS

NEVER = 10**6  # minutes: not detected within a day
LIMITS = {
    "busy": {"3 %": 190, "5 %": 60, "10 %": 22},
    "idle": {"3 %": 100, "5 %": 35, "10 %": 22},
}  # p90, minutes
MONTHS = (
    "One canary a minute, seven days to learn, thirty healthy days in which every alarm is a "
    f"false one, and three drops of each size ({ONSETS} a target-month) at the same times. Delays "
    "are minutes from the drop to the alarm: median (90th percentile); a drop that is not detected "
    "within a day counts as never. The series are simulated (assumptions in "
    "`benchmarks/detection_simulated.py`): a real server that differs from them may give other "
    "results. *residual*: with the product's load curve, as learned in the seven days, removed; "
    "*raw*: without. The product waits for the first canary after a block and its grace period "
    "(up to 1.5 minutes); the others are read at the end of a block."
)
PAGES, WARNINGS = 0.05, 0.3  # false alarms per target in 30 days, at most
Results = Sequence[dict[str, Any]]


def months_section(
    work: Path, folders: Sequence[Path], extra: Sequence[Cadence], extra_seeds: int, kept: Path
) -> str:
    """False alarms and delays of the product and of the other detectors."""
    parts = ["### Decode rate: false alarms and delays", MONTHS]
    for kind, what in (
        ("busy", "Busy server (0 to about 25 requests running)"),
        ("idle", "Idle server (the canary is mostly alone)"),
    ):
        mine = [folder for folder in folders if folder.name.startswith(kind)]
        product = _stored(mine)
        rows = [_product_row("**the product**", product)]
        for cadence in extra:
            months = [work / cadence.name / f"{kind}-{seed}" for seed in range(extra_seeds)]
            name = f"the product, {_described(cadence)} ({len(months)} months)"
            rows.append(_product_row(name, _stored(months)))
        for which in ("river", "otava"):
            paths = [result_path(which, kept, folder) for folder in mine]
            rows += _peer_rows([json.loads(path.read_text()) for path in paths])
        parts += [
            f"#### {what}, {len(mine)} target-months",
            table(("detector", "false alarms in 30 d", *SCENARIOS), rows),
            _limits(kind, product),
        ]
    return "\n\n".join(parts)


def _stored(folders: Iterable[Path]) -> Results:
    return [json.loads((folder / RESULT).read_text()) for folder in folders]


def _described(cadence: Cadence) -> str:
    if cadence.boost:
        return "four times the canaries under suspicion"
    return f"{cadence.probes} probes a minute"


def _product_row(name: str, results: Results) -> tuple[str, ...]:
    warnings, pages = fmean(r["warnings"] for r in results), fmean(r["pages"] for r in results)
    delays = [[d for r in results for d in r["delays"][scenario]] for scenario in SCENARIOS]
    return (
        name,
        f"{warnings:.2f} warnings, {pages:.2f} pages",
        *(_delay(values) for values in delays),
    )


def _peer_rows(results: Results) -> list[tuple[str, ...]]:
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
    known = [NEVER if value is None else value for value in values]
    return f"{_minutes(median(known))} ({_minutes(percentile(known, 0.9))})"


def _minutes(value: float) -> str:
    return "never" if value >= NEVER / 2 else f"{value:.0f}"


def _limits(kind: str, product: Results) -> str:
    """The limits and whether they are met, in a sentence."""
    warnings, pages = fmean(r["warnings"] for r in product), fmean(r["pages"] for r in product)
    met = [
        f"false pages {pages:.2f} of at most {PAGES} ({_met(pages <= PAGES)})",
        f"false warnings {warnings:.2f} of at most {WARNINGS} ({_met(warnings <= WARNINGS)})",
    ]
    for scenario, limit in LIMITS[kind].items():
        delays = [NEVER if d is None else d for r in product for d in r["delays"][scenario]]
        p90 = percentile(delays, 0.9)
        met.append(f"{scenario} p90 {_minutes(p90)} of at most {limit} min ({_met(p90 <= limit)})")
    masked = 100 * fmean(r["masked"] for r in product)
    return (
        f"Limits, {kind}: {'; '.join(met)}. Canaries not used because their load was unknown: "
        f"{masked:.1f} %."
    )


def _met(met: bool) -> str:
    return "met" if met else "**not met**"


def ttft_section(jobs: int, seeds: int) -> str:
    """Time to first token."""
    with Pool(jobs) as pool:
        alarms, delays = detection_ttft.measured(pool, seeds)
    text = (
        "### Time to first token\n\n"
        f"One canary a minute, {seeds} simulated target-months, noise of about 13 % per canary "
        "(`benchmarks/detection_ttft.py`). Minutes to the alarm, median (90th percentile)."
    )
    factors = detection_ttft.FACTORS
    row = ("the product", f"{alarms:.2f}", *(_delay(delays[factor]) for factor in factors))
    headings = (f"{factor:g} times as long" for factor in factors)
    return f"{text}\n\n{table(('detector', 'false alarms in 30 d', *headings), [row])}"


def levels_section(jobs: int) -> str:
    """Service levels."""
    text = (
        "### Service levels: more than one request in twenty waits too long\n\n"
        "Canaries until the alarm, median (90th percentile), when the given share of them exceeds "
        "the level; false alarms in 30 days with 3 % and with 5 % over the level, in "
        f"{detection_levels.MONTHS} months. The product's threshold is set for "
        f"{detection_levels.SETTINGS.false_alarms_per_month:g} false alarms a month at the "
        "boundary of 5 %."
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
        "Published series through the same judge, each as if it were a decode rate, in both "
        "directions; the adaptations are in `benchmarks/detection_series.py`. By design the judge "
        "does not treat spikes of a few minutes as drift: the labelled windows of NAB's request "
        "latency contain nothing else (one to nine values of 4,032), and are not detected. A "
        "window counts as hit when an incident is open in it; the table says how many of these "
        "were opened before the window began, and the share of time with an open incident."
    )
    headings = ("series", "required", "found", "met")
    return f"{text}\n\n{table(headings, detection_series.rows(data))}"
