"""Whether the columns of a CSV file are in the units that their names say, judged over the whole
file.

A row may be odd in any file; a column in another unit is odd throughout. So, short of what cannot
be at all (csvcells.py), a file is refused for what the bulk of it shows: figures that no server or
GPU has (`TYPICAL`), and figures that contradict others (csvcheck.py). The bounds let very slow
servers and very fast ones pass: 0.1 to 2,000 tokens a second, a first token after 2 ms or after
minutes, clocks from 30 MHz on. What is plausible in both units and contradicted by nothing is no
ground to refuse it; where it is unusual it is a doubt, which is said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WHOLE = 500  # rows of a full chunk (csvtable.py), of which not all are looked at,
STRIDE = 19  # but one in so many: a prime, since probes take turns


class Typical(NamedTuple):
    """What the bulk of a column lies between, and what it looks like where it does not. `at`: the
    quantile that is held against `low`: one below the middle where only ever less than the truth
    would look right, one above it where a quiet GPU comes near to it.
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
_TOO_SLOW = "looks like seconds a token; the column is in tokens a second: write 1 over it"
_TOO_FAST = "is no rate of one answer; the column is in tokens a second"
_HALF_HOUR_MS, _SIX_HOURS_MS = 1_800_000.0, 21_600_000.0
_CLOCK = Typical(30.0, below=_GHZ)  # a parked GPU shows 100 to 300 MHz
_TEMP = Typical(-math.inf, 115.0, above=_FAHRENHEIT)  # GDDR6X is throttled at 110
TYPICAL: Mapping[str, Typical] = {
    # a first token takes a round trip and a forward pass: a millisecond is not enough for both
    "ttft_ms": Typical(1.0, _HALF_HOUR_MS, 0.25, _SECONDS, _MICROSECONDS),
    "e2e_ms": Typical(1.0, _SIX_HOURS_MS, 0.25, _SECONDS, _MICROSECONDS),
    "prefill_ms": Typical(0.3, _HALF_HOUR_MS, 0.25, _SECONDS, _MICROSECONDS),
    "queue_ms": Typical(0.0, _HALF_HOUR_MS, above=_MICROSECONDS),
    "itl_p50_ms": Typical(
        0.0, 20_000.0, above=_MICROSECONDS
    ),  # no lower bound: chunks that a proxy held back come together
    "itl_p95_ms": Typical(0.0, 60_000.0, above=_MICROSECONDS),
    **dict.fromkeys(("sm_clock_mhz", "mem_clock_mhz", "sm_clock_mhz_median"), _CLOCK),
    **dict.fromkeys(("gpu_temp_c", "gpu_mem_temp_c", "temp_c_median", "mem_temp_c"), _TEMP),
    **dict.fromkeys(
        ("power_w", "power_w_median"), Typical(1.0, at=0.9, below=_KW)
    ),  # a laptop's GPU rests at 1 to 3 W
    "power_limit_w": Typical(3.0, at=0.9, below=_KW),
    # an engine's context alone takes 300; without a server next to nothing is in use
    "vram_used_mib": Typical(
        200.0, at=0.99, below="looks like GiB; the column is in MiB: multiply by 1,024"
    ),
    "decode_tok_s": Typical(0.05, 20_000.0, below=_TOO_SLOW, above=_TOO_FAST),
}
#: What is needed of samples to compare figures with one another.
COMPARED = (
    "ttft_ms", "e2e_ms", "itl_p50_ms", "queue_ms", "prefill_ms", "decode_tok_s", "completion_tokens", "spec_acceptance",
    "throttle_thermal_ms", "throttle_power_ms", "throttle_brake_ms",
)  # fmt: skip


class Wrong(NamedTuple):
    """A column in another unit: a row (from 0) that shows it, the column, and the sentence."""

    row: int
    column: str
    text: str


@dataclass(slots=True)
class Bulk:
    """Some rows of every chunk of a file: enough to tell what most of it is like, and no more than
    that.
    """

    rows: list[int] = field(default_factory=list)
    columns: dict[str, list[float | None]] = field(default_factory=dict)
    who: list[Any] = field(default_factory=list)  # target and probe of each of the rows
    distances_us: dict[Any, list[float]] = field(
        default_factory=dict
    )  # between the samples of a target and probe, chunk by chunk

    def take(self, rows: Sequence[int], values: Mapping[str, Sequence[float | None]]) -> None:
        """Take up a chunk: the numbers of its rows, and its columns by the names that they have in
        the file.
        """
        step = 1 if len(rows) < WHOLE else STRIDE
        missing = [None] * len(self.rows)
        picked = rows[::step]
        self.rows += picked
        for name in {*self.columns, *values}:
            cells = values.get(name)
            self.columns.setdefault(name, list(missing)).extend(
                [None] * len(picked) if cells is None else cells[::step]
            )

    def take_times(self, times_us: Sequence[int], who: Sequence[Any]) -> None:
        """When the samples of a chunk were sent, and whose they are."""
        self.who += who[:: 1 if len(who) < WHOLE else STRIDE]
        for of, count in Counter(who).items():
            if count > 1:
                self.distances_us.setdefault(of, []).append(
                    (times_us[-1] - times_us[0]) / (count - 1)
                )

    def known(self, *names: str) -> Iterable[tuple[int, tuple[float, ...]]]:
        """The place and values of the rows in which all of these are known."""
        columns = [self.columns.get(name, ()) for name in names]
        for place, values in enumerate(zip(*columns, strict=False)):
            if None not in values:
                yield place, values

    def distance_us(self, place: int) -> float | None:
        """The usual distance of a sample from the next of its probe."""
        found = self.distances_us.get(self.who[place])
        return None if not found else quantile(found, 0.5)

    def unlike(self) -> list[Wrong]:
        """The columns the bulk of which is nothing that a server or GPU shows."""
        found = [
            _unlike(self, name, typical)
            for name, typical in TYPICAL.items()
            if name in self.columns
        ]
        return [wrong for wrong in found if wrong is not None]


def _unlike(bulk: Bulk, name: str, typical: Typical) -> Wrong | None:
    there = [
        (place, value) for place, (value,) in bulk.known(name) if value
    ]  # nought is nought in every unit
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
    """The value below which a share of them lies."""
    ordered = sorted(values)
    return ordered[int(at * (len(ordered) - 1))]
