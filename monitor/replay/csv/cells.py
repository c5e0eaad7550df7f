"""The cells of a CSV file as figures, words and times, and whether each is possible in its column:
no clock runs at 20 GHz.

Whether a whole column is in another unit than that of its name is checked over the file (units.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from monitor.model import Outcome, Phase, Verdict
from monitor.replay.csv.table import Column, CsvTable, converted, each, moment_us

HOUR_US = 3_600_000_000
YEARS = (0, 7_258_118_400_000_000)  # 1970 to 2200, in UTC microseconds: others are typing errors
TEXTS = frozenset(
    {
        "probe",
        "traffic_class",
        "phase",
        "outcome",
        "verdict",
        "fingerprint",
        "gpu_uuid",
        "uuid",
        "state",
    }
)
WORDS = {
    "phase": [p.value for p in Phase],
    "outcome": [o.value for o in Outcome],
    "verdict": [v.value for v in Verdict],
}


class Plausible(NamedTuple):
    """The range of a figure on any GPU or server, and what a larger one looks like."""

    low: float
    high: float
    looks: str


_TIME_MS = Plausible(
    0.0, 7 * 86_400_000.0, "nanoseconds or microseconds; the column is in milliseconds"
)
_CLOCK = Plausible(
    0.0, 20_000.0, "Hz or kHz; the column is in MHz: divide by 1,000,000 or by 1,000"
)
_SHARE = Plausible(0.0, 1.01, "per cent; the column is a share from 0 to 1: divide by 100")
_TEMP = Plausible(-60.0, 180.0, "another unit; the column is in degrees Celsius")
_POWER = Plausible(0.0, 5_000.0, "milliwatts; the column is in watts: divide by 1,000")
_COUNT = Plausible(0.0, 1e15, "an error; it is not a count")
_ANY = Plausible(-1e15, 1e15, "an error; no server or GPU has such a figure")
# DCGM writes 2^63 for a counter that a GPU does not have.
_COUNTER = Plausible(-1e19, 1e19, "an error; it is not a counter")
PLAUSIBLE: Mapping[str, Plausible] = {
    **dict.fromkeys(
        ("ttft_ms", "e2e_ms", "itl_p50_ms", "itl_p95_ms", "queue_ms", "prefill_ms"), _TIME_MS
    ),
    **dict.fromkeys(("throttle_thermal_ms", "throttle_power_ms", "throttle_brake_ms"), _TIME_MS),
    **dict.fromkeys(("sm_clock_mhz", "mem_clock_mhz", "sm_clock_mhz_median"), _CLOCK),
    **dict.fromkeys(("kv_usage", "gpu_util", "util_median", "spec_acceptance"), _SHARE),
    **dict.fromkeys(
        ("gpu_temp_c", "gpu_mem_temp_c", "gpu_margin_c", "temp_c_median", "mem_temp_c", "margin_c"),
        _TEMP,
    ),
    **dict.fromkeys(("power_w", "power_limit_w", "power_w_median"), _POWER),
    **dict.fromkeys(
        (
            "prompt_tokens",
            "completion_tokens",
            "cached_tokens",
            "running",
            "waiting",
            "engine_steps",
        ),
        _COUNT,
    ),
    **dict.fromkeys(("other_prompt_tokens", "other_generation_tokens", "preemptions"), _COUNT),
    **dict.fromkeys(
        ("throttle_thermal_ns", "throttle_power_ns", "throttle_brake_ns", "event_reasons"), _COUNTER
    ),
    "vram_used_mib": Plausible(
        0.0, 10_000_000.0, "bytes; the column is in MiB: divide by 1,048,576"
    ),
    "decode_tok_s": Plausible(0.0, 100_000.0, "an error; the column is in tokens per second"),
}


@dataclass(slots=True)
class Notes:
    """Remarks on a file that can be used."""

    ignored: list[str] = field(default_factory=list)  # unknown columns
    not_numbers: dict[str, int] = field(default_factory=dict)  # NaN and infinite cells by column
    gaps: list[tuple[int, int]] = field(default_factory=list)  # from, to: no row for over an hour
    rows: int = 0
    first_us: int | None = None
    last_us: int | None = None
    # up to two values of the figures that should vary
    different: dict[str, set[float]] = field(default_factory=dict)
    # of columns that may be in another unit, which nothing in the file proves
    doubts: list[str] = field(default_factory=list)

    def sentences(self, name: str) -> list[str]:
        """The remarks as sentences."""
        notes = []
        if self.ignored:
            columns = ", ".join(self.ignored)
            notes.append(f"{name}: the columns {columns} are not known and were ignored")
        for column, count in self.not_numbers.items():
            notes.append(
                f"{name}: {count} cells of {column} are not finite numbers and count as unknown"
            )
        if self.gaps:
            hours = sum(end - begin for begin, end in self.gaps) / HOUR_US
            notes.append(
                f"{name}: {len(self.gaps)} gaps of over an hour, {hours:.1f} h in total; "
                "they are not evaluated"
            )
        for column, values in self.different.items() if self.rows > 2 else ():
            if len(values) == 1:
                notes.append(
                    f"{name}: {column} is {next(iter(values)):g} in every row; a measured "
                    "figure varies"
                )
        notes += [f"{name}: {doubt}" for doubt in self.doubts]
        if self.rows == 0:
            notes.append(f"{name}: has no row below its first line, so there is nothing to judge")
        if self.rows == 1:
            notes.append(
                f"{name}: has one row; drift is a change from a baseline, and one sample is not "
                "enough for either"
            )
        return notes

    def note_values(self, column: str, values: Sequence[float | None]) -> None:
        """Notes the values of a figure that should vary."""
        noted = self.different.setdefault(column, set())
        if len(noted) < 2:
            noted.update(value for value in values if value is not None)


@dataclass(frozen=True, slots=True)
class Cells:
    """Reads the cells of one chunk. `rows`: which rows of the chunk they belong to; None: all."""

    table: CsvTable
    notes: Notes
    start: int
    rows: Sequence[int] | None = None

    def read(self, name: str, column: str, cells: Column, default: Any) -> Sequence[Any]:
        """A field's values; None where the cell is empty and there is no default."""
        if name.endswith("_us"):
            return self._times(column, cells, required=name == "at_us")
        if name in TEXTS:
            self._check_words(name, column, cells)
            return [cell or default for cell in cells]
        if name == "stale":
            return self._booleans(column, cells)
        return self._numbers(name, column, cells)

    def _row(self, number: int) -> int:
        return self.start + (number if self.rows is None else self.rows[number])

    def _problem(self, column: str, text: Callable[[str], str], number: int, cell: str) -> None:
        self.table.problems.add(self._row(number), column, text(cell))

    def _times(self, column: str, cells: Column, required: bool) -> Sequence[int | None]:
        failed = partial(
            self._problem,
            column,
            lambda cell: f"is {cell!r}, which is not an ISO 8601 time like 2026-01-05T08:00:00Z",
        )
        try:
            values: list[int | None] = converted(cells, moment_us)
        except ValueError:
            values = each(cells, moment_us, failed)
        there = [value for value in values if value is not None]
        if there and (min(there) < YEARS[0] or max(there) >= YEARS[1]):
            for number, value in enumerate(values):
                if value is not None and not YEARS[0] <= value < YEARS[1]:
                    text = f"is {cells[number]!r}; a time must lie between 1970 and 2200"
                    self.table.problems.add(self._row(number), column, text)
        if required and None in values:
            for number, cell in enumerate(cells):
                if not cell:
                    text = "is empty; every row needs a time"
                    self.table.problems.add(self._row(number), column, text)
        return values

    def _booleans(self, column: str, cells: Column) -> Sequence[bool | None]:
        failed = partial(self._problem, column, lambda cell: f"is {cell!r}; use true or false")
        try:
            return converted(cells, _boolean)
        except ValueError:
            return each(cells, _boolean, failed)

    def _numbers(self, name: str, column: str, cells: Column) -> Sequence[Any]:
        failed = partial(self._problem, column, lambda cell: f"is {cell!r}, which is not a number")
        try:
            values = converted(cells, float)
        except ValueError:
            values = each(cells, float, failed)
        # nan, inf, and numbers beyond a float, such as 1e400
        if not math.isfinite(sum(filter(None, values))):
            bad = sum(value is not None and not math.isfinite(value) for value in values)
            self.notes.not_numbers[column] = self.notes.not_numbers.get(column, 0) + bad
            values = [
                value if value is not None and math.isfinite(value) else None for value in values
            ]
        self._check_range(column, PLAUSIBLE.get(column, _ANY), values)
        if name in {"priority", "pin", "event_reasons"} or name.endswith("_ns"):
            return [None if value is None else int(value) for value in values]
        return values

    def _check_range(
        self, column: str, plausible: Plausible, values: Sequence[float | None]
    ) -> None:
        there = [value for value in values if value is not None]
        if not there or (min(there) >= plausible.low and max(there) <= plausible.high):
            return
        for number, value in enumerate(values):
            if value is not None and value > plausible.high:
                self.table.problems.add(
                    self._row(number), column, f"is {value:g}, which looks like {plausible.looks}"
                )
                return
            if value is not None and value < plausible.low:
                self.table.problems.add(
                    self._row(number), column, f"is {value:g}; it cannot be below {plausible.low:g}"
                )
                return

    def _check_words(self, name: str, column: str, cells: Column) -> None:
        known = WORDS.get(name)
        if known is None or set(cells) <= {*known, ""}:
            return
        for number, cell in enumerate(cells):
            if cell and cell not in known:
                self.table.problems.add(
                    self._row(number), column, f"is {cell!r}; it must be one of {', '.join(known)}"
                )


def _boolean(cell: str) -> bool:
    """Raises ValueError."""
    return ("false", "true", "0", "1").index(cell.strip().lower()) % 2 == 1
