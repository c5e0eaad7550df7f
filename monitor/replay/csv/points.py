"""Samples and readings from CSV files, as points. Any subset of the columns is accepted; only
`started_at` (of readings: `at`) is required.

Columns of samples have the names of a sample's fields (docs/units.md), as written by `history
--format csv`; a missing column or an empty cell is unknown. A column in another unit than that of
its name is refused (units.py): with a clock in Hz every GPU would look broken. Readings without a
UUID count as one GPU of their target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monitor.model import SAMPLE_FIELDS, CanaryPoint, GpuPoint, ServerPoint
from monitor.replay.csv.cells import HOUR_US, YEARS, Cells, Notes
from monitor.replay.csv.check import contradictions, doubts
from monitor.replay.csv.table import Column, CsvError, CsvTable
from monitor.replay.csv.units import COMPARED, TYPICAL, Bulk, ProbeOf

TARGET = "csv"  # the name of a target where the file has none
NAMED = {"traffic_class": "class", "at_us": "started_at", "process_start_us": "process_start"}
GPU_NAMED = {
    "at_us": "at",
    "uuid": "gpu_uuid",
    **{name: f"{name}_median" for name in ("temp_c", "sm_clock_mhz", "power_w", "util")},
}
SERVER_NAMED = {"at_us": "at"}
UNNAMED = "unnamed"  # the GPU of readings without a UUID
#: The columns of a sample that describe its GPU.
OF_GPU = (
    *("gpu_temp_c", "gpu_mem_temp_c", "gpu_margin_c", "sm_clock_mhz", "mem_clock_mhz", "gpu_util"),
    *("power_w", "power_limit_w", "vram_used_mib"),
    *("throttle_thermal_ms", "throttle_power_ms", "throttle_brake_ms"),
)


class SampleCsv:
    """A file of samples. `chunks` yields points by target, in the order of their start."""

    def __init__(self, path: Path) -> None:
        self._table = CsvTable(path)
        self._header = self._table.header
        self.name = path.name
        _require(self._table, "started_at", "every sample needs its start")
        self.notes = Notes(ignored=[name for name in self._header if name not in SAMPLE_FIELDS])
        # the newest time, and the targets and probes measured then
        self._last = (0, frozenset[ProbeOf]())
        self._bulk = Bulk()

    @property
    def names_targets(self) -> bool:
        """Whether the file has a target column."""
        return "target" in self._header

    def gpus(self) -> dict[str, set[str]]:
        """Every target of the file, with the GPUs named in its samples. Reads the whole file."""
        columns = [name for name in ("target", "gpu_uuid") if name in self._header]
        found: dict[str, set[str]] = {}
        for cells in self._table.distinct(columns):
            of = dict(zip(columns, cells, strict=False))
            gpus = found.setdefault(of.get("target") or TARGET, set())
            gpus.update({of["gpu_uuid"]} if of.get("gpu_uuid") else ())
        return found or {TARGET: set()}

    def chunks(self) -> Iterator[dict[str, list[CanaryPoint]]]:
        """Reads the points. Raises CsvError."""
        empty = CanaryPoint(0, 0)
        for start, columns in self._table.chunks():
            reader = Cells(self._table, self.notes, start)
            count = len(columns["started_at"])
            values: dict[str, Sequence[Any]] = {}
            for name, default in zip(CanaryPoint._fields, empty, strict=True):
                column = NAMED.get(name, name)
                cells = columns.get(column)
                values[name] = (
                    [default] * count
                    if cells is None or name == "known_us"
                    else reader.read(name, column, cells, default)
                )
            targets = columns.get("target", (TARGET,) * count)
            self._check_order(start, values, targets)
            self._table.check()
            values["gpu_uuid"] = _named(
                values["gpu_uuid"], [values[name] for name in OF_GPU if name in columns]
            )
            self._bulk.take(
                range(start, start + count),
                {name: values[name] for name in (*TYPICAL, *COMPARED) if name in columns},
            )
            self._bulk.take_times(values["at_us"], list(zip(targets, values["probe"], strict=True)))
            values["known_us"] = [
                at + int((ms or 0.0) * 1000)
                for at, ms in zip(values["at_us"], values["e2e_ms"], strict=True)
            ]
            points = list(map(CanaryPoint._make, zip(*values.values(), strict=True)))
            for name in ("decode_tok_s", "ttft_ms"):
                self.notes.note_values(name, values[name])
            yield _by_target(points, targets)
        _judge_units(self._table, self._bulk)
        self.notes.doubts += doubts(self._bulk)

    def _check_order(
        self, start: int, values: Mapping[str, Sequence[Any]], targets: Sequence[Any]
    ) -> None:
        """Checks that the file is sorted and has every run once."""
        notes, problems = self.notes, self._table.problems
        last_us, at_last = self._last
        for number, at_us in enumerate(values["at_us"]):
            if at_us is None or at_us < YEARS[0]:  # reported already
                continue
            if at_us < last_us:
                text = "is earlier than in the row before; sort the file by started_at"
                problems.add(start + number, "started_at", text)
            elif at_us == last_us:
                probe = (targets[number], values["probe"][number])
                if probe in at_last:
                    text = "repeats the time, target and probe of a row before; a run has one row"
                    problems.add(start + number, "started_at", text)
                at_last |= {probe}
            else:
                if last_us and at_us - last_us > HOUR_US:
                    notes.gaps.append((last_us, at_us))
                last_us, at_last = at_us, frozenset({(targets[number], values["probe"][number])})
        self._last = (last_us, at_last)
        notes.rows += len(targets)
        notes.first_us, notes.last_us = notes.first_us or values["at_us"][0], last_us


class ReadingCsv:
    """A file of readings between canaries: rows of kind `server` and of kind `gpu`, in the order of
    their times.
    """

    def __init__(self, path: Path) -> None:
        self._table = CsvTable(path)
        self.name = path.name
        for column in ("kind", "at"):
            _require(self._table, column, "a reading has a kind (server or gpu) and a time")
        known = {
            "kind",
            "target",
            "at",
            "count",
            *ServerPoint._fields,
            *(GPU_NAMED.get(name, name) for name in GpuPoint._fields),
        }
        known |= {
            f"{name}_{end}"
            for name in ("temp_c", "sm_clock_mhz", "power_w", "util")
            for end in ("min", "max")
        }
        self.notes = Notes(ignored=[name for name in self._table.header if name not in known])
        self._last_us = {"server": 0, "gpu": 0}
        # by target: the last reading without a UUID
        self._unnamed_us: dict[str, int] = {}
        self._bulk = Bulk()

    def chunks(self) -> Iterator[list[tuple[str, ServerPoint | GpuPoint]]]:
        """Reads the readings in order, each with the target of its row ("" where it has none).
        Raises CsvError.
        """
        for start, columns in self._table.chunks():
            kinds, targets = columns["kind"], columns.get("target", ("",) * len(columns["kind"]))
            for number, kind in enumerate(kinds):
                if kind not in {"server", "gpu"}:
                    self._table.problems.add(
                        start + number, "kind", f"is {kind!r}; it must be server or gpu"
                    )
            servers = self._points(start, columns, kinds, "server", ServerPoint, SERVER_NAMED)
            gpus = self._points(start, columns, kinds, "gpu", GpuPoint, GPU_NAMED)
            self._table.check()
            found = sorted(servers + gpus)
            yield [(str(targets[row]), point) for row, point in found]
        _judge_units(self._table, self._bulk)

    def _points(
        self,
        start: int,
        columns: Mapping[str, Column],
        kinds: Column,
        kind: str,
        make: Any,
        named: Mapping[str, str],
    ) -> list[tuple[int, Any]]:
        rows = [number for number, of in enumerate(kinds) if of == kind]
        if not rows:
            return []
        reader = Cells(self._table, self.notes, start, rows)
        defaults = make(*([0] if make is ServerPoint else [0, UNNAMED]))
        values, known = [], {}
        for name, default in zip(make._fields, defaults, strict=True):
            column = named.get(name, name)
            cells = columns.get(column)
            values.append(
                [default] * len(rows)
                if cells is None
                else reader.read(name, column, [cells[row] for row in rows], default)
            )
            if cells is not None and column in TYPICAL:
                known[column] = values[-1]
        self._check_order(start, rows, kind, values[0])
        if make is GpuPoint:
            self._check_unnamed(start, rows, columns.get("target"), values)
        self._bulk.take([start + row for row in rows], known)
        return list(zip(rows, map(make._make, zip(*values, strict=True)), strict=True))

    def _check_order(
        self, start: int, rows: Sequence[int], kind: str, times: Sequence[int | None]
    ) -> None:
        last_us = self._last_us[kind]
        for row, at_us in zip(rows, times, strict=True):
            if at_us is not None and YEARS[0] <= at_us < last_us:
                self._table.problems.add(
                    start + row,
                    "at",
                    f"is earlier than in the {kind} row before; sort the file by at",
                )
            last_us = max(last_us, at_us or 0)
        self._last_us[kind] = last_us
        self.notes.rows += len(rows)

    def _check_unnamed(
        self,
        start: int,
        rows: Sequence[int],
        targets: Column | None,
        values: Sequence[Sequence[Any]],
    ) -> None:
        """Checks for two GPUs without a UUID, which cannot be distinguished."""
        times, uuids = values[0], values[1]
        for row, at_us, uuid in zip(rows, times, uuids, strict=True) if UNNAMED in uuids else ():
            target = "" if targets is None else targets[row]
            if uuid == UNNAMED and self._unnamed_us.get(target) == at_us:
                text = "is empty, and there is another reading of this time: give the GPUs' UUIDs"
                self._table.problems.add(start + row, "gpu_uuid", text)
            elif uuid == UNNAMED:
                self._unnamed_us[target] = at_us


def _require(table: CsvTable, column: str, why: str) -> None:
    if column not in table.header:
        raise CsvError(
            [f"{table.path}:1: has no column {column}: {why}; it has {', '.join(table.header)}"]
        )


def _named(uuids: Sequence[str | None], figures: Sequence[Sequence[Any]]) -> Sequence[str | None]:
    """The GPUs of samples; a row with GPU figures and no UUID gets UNNAMED."""
    if not figures or None not in uuids:
        return uuids
    unknown = (None,) * len(figures)
    rows = zip(uuids, zip(*figures, strict=True), strict=True)
    return [uuid if uuid is not None or row == unknown else UNNAMED for uuid, row in rows]


def _judge_units(table: CsvTable, bulk: Bulk) -> None:
    """Raises CsvError for columns in another unit than that of their names."""
    found = {wrong.column: wrong for wrong in (*contradictions(bulk), *bulk.unlike())}
    for row, column, text in found.values():
        table.problems.add(row, column, text)
    table.check()


def _by_target(
    points: Sequence[CanaryPoint], targets: Sequence[Any]
) -> dict[str, list[CanaryPoint]]:
    names = set(targets)
    if len(names) == 1:
        return {str(names.pop()) or TARGET: list(points)}
    found: dict[str, list[CanaryPoint]] = {}
    for name, point in zip(targets, points, strict=True):
        found.setdefault(str(name) or TARGET, []).append(point)
    return found
