"""Checks whether the columns of a CSV file are in the units of their names, over the whole file.

A single row may be unusual in any file; a column in another unit is unusual throughout. So, apart
from impossible values (cells.py), a file is refused for what most of its rows show: figures that no
server or GPU has (`TYPICAL`), and figures that contradict others (check.py). The bounds accept very
slow and very fast servers: 0.1 to 2,000 tokens per second, a first token after 2 ms or after
minutes, clocks from 30 MHz. A column that is plausible in both units and contradicts nothing is
accepted; where it is unusual, the doubt is reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WHOLE = 500  # rows of a full chunk (table.py)
STRIDE = 19  # of a full chunk every 19th row is sampled: a prime, since probes alternate


ProbeOf = tuple[str, str]  # target and probe


class Typical(NamedTuple):
    """The range of most of a column, and what it looks like outside. `at`: the quantile that is
    compared with `low`: below the median where a wrong unit can only be too small, above it where
    an idle GPU comes close to `low`.
    """

    low: float
    high: float = math.inf
    at: float = 0.5
    below: str = ""
    above: str = ""


_SECONDS = "looks like seconds; the column is in milliseconds: multiply by 1,000"
_MICROSECONDS = (
    "looks like microseconds or nanoseconds; the column is in milliseconds: divide "
    "by 1,000 or by 1,000,000"
)
_GHZ = "looks like GHz; the column is in MHz: multiply by 1,000"
_FAHRENHEIT = (
    "looks like degrees Fahrenheit; the column is in degrees Celsius: subtract 32 and divide by 1.8"
)
_KW = "looks like kilowatts; the column is in watts: multiply by 1,000"
_TOO_SLOW = (
    "looks like seconds per token; the column is in tokens per second: convert with 1 / value"
)
_TOO_FAST = "is not a rate of one answer; the column is in tokens per second"
_HALF_HOUR_MS, _SIX_HOURS_MS = 1_800_000.0, 21_600_000.0
_CLOCK = Typical(30.0, below=_GHZ)  # an idle GPU runs at 100 to 300 MHz
_TEMP = Typical(-math.inf, 115.0, above=_FAHRENHEIT)  # GDDR6X is throttled at 110
TYPICAL: Mapping[str, Typical] = {
    # A first token takes a round trip and a forward pass, more than a millisecond.
    "ttft_ms": Typical(1.0, _HALF_HOUR_MS, 0.25, _SECONDS, _MICROSECONDS),
    "e2e_ms": Typical(1.0, _SIX_HOURS_MS, 0.25, _SECONDS, _MICROSECONDS),
    "prefill_ms": Typical(0.3, _HALF_HOUR_MS, 0.25, _SECONDS, _MICROSECONDS),
    "queue_ms": Typical(0.0, _HALF_HOUR_MS, above=_MICROSECONDS),
    # No lower bound: chunks that a proxy has buffered come together.
    "itl_p50_ms": Typical(0.0, 20_000.0, above=_MICROSECONDS),
    "itl_p95_ms": Typical(0.0, 60_000.0, above=_MICROSECONDS),
    **dict.fromkeys(("sm_clock_mhz", "mem_clock_mhz", "sm_clock_mhz_median"), _CLOCK),
    **dict.fromkeys(("gpu_temp_c", "gpu_mem_temp_c", "temp_c_median", "mem_temp_c"), _TEMP),
    # An idle laptop GPU draws 1 to 3 W.
    **dict.fromkeys(("power_w", "power_w_median"), Typical(1.0, at=0.9, below=_KW)),
    "power_limit_w": Typical(3.0, at=0.9, below=_KW),
    # An engine's context alone takes 300 MiB; without a server almost nothing is used.
    "vram_used_mib": Typical(
        200.0, at=0.99, below="looks like GiB; the column is in MiB: multiply by 1,024"
    ),
    "decode_tok_s": Typical(0.05, 20_000.0, below=_TOO_SLOW, above=_TOO_FAST),
}
#: The columns of samples that are compared with each other.
COMPARED = (
    *("ttft_ms", "e2e_ms", "itl_p50_ms", "queue_ms", "prefill_ms", "decode_tok_s"),
    *("completion_tokens", "spec_acceptance"),
    *("throttle_thermal_ms", "throttle_power_ms", "throttle_brake_ms"),
)


class Wrong(NamedTuple):
    """A column in another unit: a row (from 0) that proves it, the column, and the sentence."""

    row: int
    column: str
    text: str


@dataclass(slots=True)
class Bulk:
    """A sample of the rows of every chunk, which represents the file."""

    rows: list[int] = field(default_factory=list)
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    probes: list[ProbeOf] = field(default_factory=list)  # of each of the rows
    # between the samples of a target and probe, chunk by chunk
    distances_us: dict[ProbeOf, list[float]] = field(default_factory=dict)

    def take(self, rows: Sequence[int], values: Mapping[str, Sequence[float | None]]) -> None:
        """Adds a chunk: the numbers of its rows, and its columns by their names in the file."""
        step = 1 if len(rows) < WHOLE else STRIDE
        missing = [None] * len(self.rows)
        picked = rows[::step]
        self.rows += picked
        for name in {*self.columns, *values}:
            cells = values.get(name)
            self.columns.setdefault(name, list(missing)).extend(
                [None] * len(picked) if cells is None else cells[::step]
            )

    def take_times(self, times_us: Sequence[int], probes: Sequence[ProbeOf]) -> None:
        """Adds the times of a chunk's samples, with their targets and probes."""
        self.probes += probes[:: 1 if len(probes) < WHOLE else STRIDE]
        for probe, count in Counter(probes).items():
            if count > 1:
                distance_us = (times_us[-1] - times_us[0]) / (count - 1)
                self.distances_us.setdefault(probe, []).append(distance_us)

    def known(self, *names: str) -> Iterable[tuple[int, tuple[float, ...]]]:
        """The position and values of the rows in which all of these are known."""
        columns = [self.columns.get(name, ()) for name in names]
        for place, values in enumerate(zip(*columns, strict=False)):
            if None not in values:
                yield place, values

    def distance_us(self, place: int) -> float | None:
        """The median time from a sample to the next one of its probe."""
        found = self.distances_us.get(self.probes[place])
        return None if not found else quantile(found, 0.5)

    def unlike(self) -> list[Wrong]:
        """The columns with mostly values that no server or GPU has."""
        found = [
            _unlike(self, name, typical)
            for name, typical in TYPICAL.items()
            if name in self.columns
        ]
        return [wrong for wrong in found if wrong is not None]


def _unlike(bulk: Bulk, name: str, typical: Typical) -> Wrong | None:
    # 0 is 0 in every unit.
    there = [(place, value) for place, (value,) in bulk.known(name) if value]
    if not there:
        return None
    values = [value for _, value in there]
    if quantile(values, typical.at) < typical.low:
        place, value = next((place, value) for place, value in there if value < typical.low)
        return Wrong(
            bulk.rows[place], name, f"is {value:g}, as in much of the file; it {typical.below}"
        )
    if quantile(values, 0.5) > typical.high:
        place, value = next((place, value) for place, value in there if value > typical.high)
        return Wrong(
            bulk.rows[place], name, f"is {value:g}, as in most of the file; it {typical.above}"
        )
    return None


def quantile(values: Iterable[float], at: float) -> float:
    """The quantile `at` of the values."""
    ordered = sorted(values)
    return ordered[int(at * (len(ordered) - 1))]
