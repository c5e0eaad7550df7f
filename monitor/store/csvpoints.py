"""Samples and readings as CSV files, read as points. Any subset of the columns will do; `started_at` (of readings: `at`) must be there.

Columns of samples are named as the fields of a sample (docs/units.md), as `history --format csv` writes them; a missing column or an empty
cell is unknown. A column in another unit than its name says is refused: a clock in Hz would make every card look broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monitor.model import SAMPLE_FIELDS, CanaryPoint, CardPoint, ServerPoint
from monitor.store.csvcells import HOUR_US, Cells, Notes
from monitor.store.csvtable import Column, CsvError, CsvTable

TARGET = "csv"  # what a target is called where the file does not say
NAMED = {"traffic_class": "class", "at_us": "started_at", "process_start_us": "process_start"}
CARD_NAMED = {"at_us": "at", "uuid": "gpu_uuid", **{name: f"{name}_median" for name in ("temp_c", "sm_clock_mhz", "power_w", "util")}}
SERVER_NAMED = {"at_us": "at"}
RATE_FACTOR = 3.0  # a rate so many times beside what the sample's own tokens and times make it is in another unit


class SampleCsv:
    """A file of samples. `chunks` gives points by target, in the order in which they were sent."""

    def __init__(self, path: Path) -> None:
        self._table = CsvTable(path)
        self._header = self._table.header
        self.name = path.name
        _require(self._table, "started_at", "every sample needs the time at which it was sent")
        self.notes = Notes(ignored=[name for name in self._header if name not in SAMPLE_FIELDS])
        self._last = (0, frozenset[tuple[Any, ...]]())  # the newest time, and who was measured then

    def chunks(self) -> Iterator[dict[str, list[CanaryPoint]]]:
        """Raises CsvError."""
        empty = CanaryPoint(0, 0)
        for start, columns in self._table.chunks():
            reader = Cells(self._table, self.notes, start)
            count = len(columns["started_at"])
            values: dict[str, Sequence[Any]] = {}
            for name, default in zip(CanaryPoint._fields, empty, strict=True):
                column = NAMED.get(name, name)
                cells = columns.get(column)
                values[name] = [default] * count if cells is None or name == "known_us" else reader.read(name, column, cells, default)
            targets = columns.get("target", (TARGET,) * count)
            self._check_order(start, values, targets)
            _check_rates(self._table, start, values)
            self._table.check()
            values["known_us"] = [at + int((ms or 0.0) * 1000) for at, ms in zip(values["at_us"], values["e2e_ms"], strict=True)]
            points = list(map(CanaryPoint._make, zip(*values.values(), strict=True)))
            for name in ("decode_tok_s", "ttft_ms"):
                self.notes.note_values(name, values[name])
            yield _by_target(points, targets)

    def _check_order(self, start: int, values: Mapping[str, Sequence[Any]], targets: Sequence[Any]) -> None:
        """Sorted, and every run once."""
        notes, problems = self.notes, self._table.problems
        last_us, there = self._last
        for number, at_us in enumerate(values["at_us"]):
            if at_us is None:
                continue
            if at_us < last_us:
                problems.add(start + number, "started_at", "is earlier than in the row before; sort the file by started_at")
            elif at_us == last_us:
                who = (targets[number], values["probe"][number])
                if who in there:
                    problems.add(start + number, "started_at", "repeats the time, target and probe of a row before; a run has one row")
                there |= {who}
            else:
                if last_us and at_us - last_us > HOUR_US:
                    notes.gaps.append((last_us, at_us))
                last_us, there = at_us, frozenset({(targets[number], values["probe"][number])})
        self._last = (last_us, there)
        notes.rows += len(targets)
        notes.first_us, notes.last_us = notes.first_us or values["at_us"][0], last_us


class ReadingCsv:
    """A file of readings between canaries: rows of kind `server` and of kind `gpu`, in the order of their times."""

    def __init__(self, path: Path) -> None:
        self._table = CsvTable(path)
        self.name = path.name
        for column in ("kind", "at"):
            _require(self._table, column, "a reading has a kind (server or gpu) and a time")
        known = {"kind", "target", "at", "count", *ServerPoint._fields, *(CARD_NAMED.get(name, name) for name in CardPoint._fields)}
        known |= {f"{name}_{end}" for name in ("temp_c", "sm_clock_mhz", "power_w", "util") for end in ("min", "max")}
        self.notes = Notes(ignored=[name for name in self._table.header if name not in known])
        self._last_us = {"server": 0, "gpu": 0}

    def chunks(self) -> Iterator[list[tuple[str, ServerPoint | CardPoint]]]:
        """Readings in order, each with the target that the row names ("" where it names none). Raises CsvError."""
        for start, columns in self._table.chunks():
            kinds, targets = columns["kind"], columns.get("target", ("",) * len(columns["kind"]))
            for number, kind in enumerate(kinds):
                if kind not in {"server", "gpu"}:
                    self._table.problems.add(start + number, "kind", f"is {kind!r}; it is server or gpu")
            servers = self._points(start, columns, kinds, "server", ServerPoint, SERVER_NAMED)
            cards = self._points(start, columns, kinds, "gpu", CardPoint, CARD_NAMED)
            self._table.check()
            found = sorted(servers + cards)
            yield [(str(targets[row]), point) for row, point in found]

    def _points(
        self, start: int, columns: Mapping[str, Column], kinds: Column, kind: str, make: Any, named: Mapping[str, str]
    ) -> list[tuple[int, Any]]:
        rows = [number for number, of in enumerate(kinds) if of == kind]
        if not rows:
            return []
        reader = Cells(self._table, self.notes, start, rows)
        defaults = make(*([0] if make is ServerPoint else [0, ""]))
        values = []
        for name, default in zip(make._fields, defaults, strict=True):
            column = named.get(name, name)
            cells = columns.get(column)
            values.append([default] * len(rows) if cells is None else reader.read(name, column, [cells[row] for row in rows], default))
        self._check_order(start, rows, kind, values[0])
        return list(zip(rows, map(make._make, zip(*values, strict=True)), strict=True))

    def _check_order(self, start: int, rows: Sequence[int], kind: str, times: Sequence[int | None]) -> None:
        last_us = self._last_us[kind]
        for row, at_us in zip(rows, times, strict=True):
            if at_us is not None and at_us < last_us:
                self._table.problems.add(start + row, "at", f"is earlier than in the {kind} row before; sort the file by at")
            last_us = max(last_us, at_us or 0)
        self._last_us[kind] = last_us
        self.notes.rows += len(rows)


def _require(table: CsvTable, column: str, why: str) -> None:
    if column not in table.header:
        raise CsvError([f"{table.path}:1: has no column {column}: {why}; it has {', '.join(table.header)}"])


def _check_rates(table: CsvTable, start: int, values: Mapping[str, Sequence[Any]]) -> None:
    """A rate that is no rate: its own tokens and times, or the time between its tokens, say otherwise."""
    picked = ("decode_tok_s", "completion_tokens", "e2e_ms", "ttft_ms", "itl_p50_ms")
    wrong: list[tuple[int, float, float]] = []
    usable = 0
    for number, (rate, tokens, e2e, ttft, itl) in enumerate(zip(*(values[name] for name in picked), strict=True)):
        if not rate:
            continue
        if tokens and e2e and ttft is not None and e2e > ttft and tokens >= 8:
            expected = (tokens - 1) * 1000 / (e2e - ttft)
        elif itl and abs(rate / itl - 1) < 0.2:  # it is the time between tokens itself
            expected = 1000 / itl
        else:
            continue
        usable += 1
        if not 1 / RATE_FACTOR < rate / expected < RATE_FACTOR:
            wrong.append((number, rate, expected))
    if wrong and len(wrong) > usable / 2:  # one odd sample is an odd sample
        number, rate, expected = wrong[0]
        told = f"is {rate:g} where the sample's own times make {expected:.3g} tokens a second; if it is ms a token, write 1000 over it"
        table.problems.add(start + number, "decode_tok_s", told)


def _by_target(points: Sequence[CanaryPoint], targets: Sequence[Any]) -> dict[str, list[CanaryPoint]]:
    names = set(targets)
    if len(names) == 1:
        return {str(names.pop()) or TARGET: list(points)}
    found: dict[str, list[CanaryPoint]] = {}
    for name, point in zip(targets, points, strict=True):
        found.setdefault(str(name) or TARGET, []).append(point)
    return found

