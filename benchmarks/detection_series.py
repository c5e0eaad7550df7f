"""Real series with known changes, through the judge of canaries: each value is given to the
SpeedChannel as a decode rate.

Requirements. TigerBeetle's benchmark history: both known steps dated within two points, no other
above 5 %. Quality control 1 to 3 (TCPD): a change within the annotators' marks, extended by two
points on either side. NAB: every labelled window hit; alarms outside are counted and shown. Azure's
virtual machines: no pages in months of benchmark noise.

A series is fed twice, as it is and inverted, since the channel detects only a change for the worse.
A level that persists is accepted after a time, as a person would do with `relearn`; each series has
its own time. Only TigerBeetle's series may be redistributed (benchmarks/data).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median, stdev

from common import HERE, met_cell

from monitor.judge.drift.settings import SECOND_US, DriftSettings
from monitor.judge.drift.speed.channel import SpeedChannel
from monitor.model import CanaryPoint, Severity

POINT = DriftSettings(
    block_s=60.0, grace_s=0.0, block_samples=1, learn_h=0.1, learn_blocks=12, support_samples=10
)
STANDARDISED = replace(POINT, learn_blocks=50)  # the blocks used for standardisation
QUARTERS = DriftSettings(block_s=900.0, grace_s=0.0)  # three values of five minutes
SHIFTS = DriftSettings(
    block_s=6 * 3600.0, grace_s=0.0, learn_h=24.0, learn_blocks=60, remember_days=60.0
)
NEAR = 2  # points
# One standard deviation of a series without a unit is mapped to the smaller effect size of the
# detector.
STANDARD = 0.03


@dataclass(slots=True)
class Raised:
    """An effect: when it was raised, its dated onset, size, severity, and when it ended."""

    at_us: int
    since_us: int
    change_pct: float
    severity: Severity
    until_us: int

    def open_in(self, begin_us: int, end_us: int) -> bool:
        """Whether it was open at any time of the interval."""
        return self.at_us <= end_us and self.until_us > begin_us


def watch(
    times_us: Sequence[int], values: Sequence[float], settings: DriftSettings, accept_after_us: int
) -> list[Raised]:
    """All effects in either direction; the change of a rise is positive."""
    found = []
    for sign in (1, -1):
        channel = SpeedChannel()
        raised: Raised | None = None
        for at, value in zip(times_us, values, strict=True):
            rate = value if sign > 0 else 1 / value
            channel.canary(CanaryPoint(at, at, decode_tok_s=rate, fingerprint="a"), settings)
            channel.advance(at, settings)
            effects = {effect.channel: effect for effect in channel.effects(settings)}
            if raised is not None:
                raised.until_us = at
            if "decode" not in effects:
                raised = None
            elif raised is None:
                effect = effects["decode"]
                loss = effect.shift.change_pct
                change = loss if sign > 0 else -100 * loss / (100 + loss)
                raised = Raised(at, effect.since_us, change, effect.severity, at)
                found.append(raised)
            elif at - raised.at_us >= accept_after_us:
                channel.relearn(at - 1)
                raised = None
    return sorted(found, key=lambda r: r.at_us)


def numbered(
    values: Sequence[float], settings: DriftSettings = POINT, accept_after: int = 24
) -> list[tuple[int, int, float]]:
    """The effects in a series without times: point of the alarm, dated point, change in %."""
    step = round(settings.block_s * SECOND_US)
    found = watch([i * step for i in range(len(values))], values, settings, accept_after * step)
    return [(r.at_us // step, r.since_us // step, r.change_pct) for r in found]


def tigerbeetle() -> tuple[str, ...]:
    """TigerBeetle's benchmark history, with known steps at points 15 and 71."""
    with (HERE / "data" / "tigerbeetle_series.csv").open(newline="") as file:
        values = [float(row["value"]) for row in csv.DictReader(file)]
    found = numbered(values)
    dated = [min((abs(since - step) for _, since, _ in found), default=99) for step in (15, 71)]
    others = [
        f"{since} ({change:+.1f} %)"
        for _, since, change in found
        if all(abs(since - step) > NEAR for step in (15, 71))
    ]
    large = [o for o in others if abs(float(o.split("(")[1].split(" ")[0])) > 5]
    summary = ", ".join(f"{since} ({change:+.1f} %, known at {at})" for at, since, change in found)
    met = max(dated) <= NEAR and not large
    return (
        "TigerBeetle benchmark history (365 points)",
        "steps at 15 and 71 within 2 points, no other above 5 %",
        summary,
        met_cell(met),
    )


def quality_control(folder: Path) -> list[tuple[str, ...]]:
    """The quality-control series, standardised by their first fifty points."""
    marks = json.loads((folder / "annotations_quality_control.json").read_text())
    rows = []
    for number in (1, 2, 3):
        raw = json.loads((folder / f"quality_control_{number}.json").read_text())["series"][0][
            "raw"
        ]
        found = numbered(standardised(raw, 50), STANDARDISED)
        wanted = [
            point for points in marks[f"quality_control_{number}"].values() for point in points
        ]
        inside = [
            since for _, since, _ in found if min(wanted) - NEAR <= since <= max(wanted) + NEAR
        ]
        summary = ", ".join(f"{since} (known at {at})" for at, since, _ in found) or "nothing"
        asked = f"a change at {min(wanted)} … {max(wanted)}, as the annotators have it"
        rows.append(
            (
                f"TCPD quality control {number} ({len(raw)} points)",
                asked,
                summary,
                met_cell(bool(inside) and len(found) == len(inside)),
            )
        )
    return rows


def nab(folder: Path) -> list[tuple[str, ...]]:
    """NAB, one value every five minutes; a level that persists is accepted after a day."""
    windows = json.loads((folder / "combined_windows.json").read_text())
    rows = []
    for name in ("machine_temperature_system_failure", "ec2_request_latency_system_failure"):
        with (folder / f"{name}.csv").open(newline="") as file:
            pairs = [
                (_us(row["timestamp"]), max(1e-6, float(row["value"])))
                for row in csv.DictReader(file)
            ]
        found = watch(
            [at for at, _ in pairs],
            standardised([v for _, v in pairs], len(pairs) * 15 // 100),
            QUARTERS,
            86_400 * SECOND_US,
        )
        labelled = [(_us(a), _us(b)) for a, b in windows[f"realKnownCause/{name}.csv"]]
        hit = [any(r.open_in(a, b) for r in found) for a, b in labelled]
        before = [not any(a <= r.at_us <= b for r in found) for a, b in labelled]
        outside = [r for r in found if not any(r.open_in(a, b) for a, b in labelled)]
        days, open_days = (
            (pairs[-1][0] - pairs[0][0]) / 86_400e6,
            sum(r.until_us - r.at_us for r in found) / 86_400e6,
        )
        earlier = sum(h and b for h, b in zip(hit, before, strict=True))
        already = f" ({earlier} by an incident opened before the window)" if earlier else ""
        summary = f"{sum(hit)} of {len(hit)} windows{already}; "
        summary += (
            f"{len(outside)} alarms outside in {days:.0f} days; open for "
            f"{100 * open_days / days:.0f} % of the time"
        )
        rows.append(
            (
                f"NAB {name.replace('_', ' ')}",
                "every labelled window hit; alarms outside are counted",
                summary,
                met_cell(all(hit)),
            )
        )
    return rows


def vm_noise(folder: Path) -> tuple[str, ...]:
    """Azure VM noise: two machines, about an hour between values; a level that persists is accepted
    after two weeks.
    """
    machines: dict[str, list[tuple[int, float]]] = {}
    with (folder / "memcpy_1MB_long_eastus_D8s_v5.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            machines.setdefault(row["VM_id"], []).append(
                (_us(row["starttime"]), float(row["value"]))
            )
    pages, warnings, days = 0, 0, 0.0
    for pairs in machines.values():
        ordered = sorted(pairs)
        found = watch(
            [at for at, _ in ordered],
            [value for _, value in ordered],
            SHIFTS,
            14 * 86_400 * SECOND_US,
        )
        pages += sum(r.severity is Severity.PAGE for r in found)
        warnings += sum(r.severity is not Severity.PAGE for r in found)
        days += (ordered[-1][0] - ordered[0][0]) / 86_400e6
    summary = f"{pages} pages, {warnings} warnings in {days:.0f} machine-days"
    return (
        f"Azure VM noise, memcpy 1 MB ({len(machines)} machines)",
        "no pages",
        summary,
        met_cell(pages == 0),
    )


def rows(data: Path | None) -> list[tuple[str, ...]]:
    """The rows: series, requirement, result, and whether it is met."""
    found = [tigerbeetle()]
    readers: list[tuple[str, Callable[[Path], list[tuple[str, ...]]]]] = [
        ("tcpd", quality_control),
        ("nab", nab),
        ("vmnoise", lambda folder: [vm_noise(folder)]),
    ]
    for name, read in readers:
        folder = None if data is None else data / name
        found += (
            read(folder)
            if folder is not None and folder.is_dir()
            else [(name, "", "not read: no --data", "")]
        )
    return found


def standardised(values: Sequence[float], learn: int) -> list[float]:
    """Values without a unit as relative changes: one standard deviation of the first `learn` values
    is 3 %.
    """
    centre, spread = median(values[:learn]), stdev(values[:learn])
    return [math.exp(STANDARD * (v - centre) / spread) for v in values]


def _us(text: str) -> int:
    # local time without a zone; only differences matter
    return round(datetime.fromisoformat(text).timestamp() * 1e6)
