"""A CSV file as columns, chunk by chunk, so that a year is read in seconds. Errors are reported
with their line and column.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, TypeVar

from monitor.errors import USAGE, UserError

CHUNK = 500  # rows: few enough to stay in the processor's cache, which halves the time
FEW = 40  # cells that show whether the values of a column repeat
REPORTED_AT_MOST = 10  # problems; a wrong column is wrong in every row
Column = Sequence[Any]  # cells
V = TypeVar("V")


class CsvError(UserError):
    """A file that cannot be used; each problem is a sentence with file, line and column."""

    exit_code = USAGE

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        more = len(problems) - REPORTED_AT_MOST
        rest = [f"… and {more} more"] if more > 0 else []
        super().__init__("\n".join([*problems[:REPORTED_AT_MOST], *rest]))


@dataclass(slots=True)
class Problems:
    """The problems found so far: row (from 0), column and sentence."""

    found: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, row: int, column: str, text: str) -> None:
        """Adds one."""
        self.found.append((row, column, text))


class CsvTable:
    """One file. `header` is read at once; `chunks` reads the rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems = Problems()
        self._source = _kept_pipe(path) or path
        if self._source != path:
            weakref.finalize(self, self._source.unlink, missing_ok=True)
        with self._reading() as rows:
            self.header = [name.strip() for name in next(rows, [])]
        if not self.header:
            raise CsvError([f"{path}: is empty; its first line names the columns"])
        if len(self.header) == 1 and any(mark in self.header[0] for mark in ";\t|"):
            raise CsvError(
                [f"{path}:1: is not separated by commas; write it with commas between the columns"]
            )
        twice = sorted({name for name in self.header if self.header.count(name) > 1})
        if twice:
            raise CsvError([f"{path}:1: the column {twice[0]} is a duplicate; keep one"])

    def chunks(self) -> Iterator[tuple[int, dict[str, Column]]]:
        """Reads the first row's number (from 0) and the columns of up to CHUNK rows. Raises
        CsvError for a file that is not a table.
        """
        width, start = len(self.header), 0
        with self._reading() as rows:
            next(rows, None)
            while chunk := list(islice(rows, CHUNK)):
                widths = set(map(len, chunk))
                if 0 in widths:  # an empty line is not a row
                    chunk = [row for row in chunk if row]
                for at, row in enumerate(chunk if widths - {0, width} else ()):
                    if len(row) != width:
                        text = f"has {len(row)} cells where the first line names {width} columns"
                        self.problems.add(start + at, "", text)
                self.check()
                if chunk:
                    yield start, dict(zip(self.header, zip(*chunk, strict=True), strict=True))
                start += len(chunk)

    def distinct(self, names: Sequence[str]) -> set[tuple[str, ...]]:
        """The distinct combinations of cells of these (existing) columns in the whole file; the
        first one is repeated at the end, so that one column is a tuple too.
        """
        places, width = [self.header.index(name) for name in names], len(self.header)
        with self._reading() as rows:
            next(rows, None)
            # Other rows are reported when the chunks are read.
            whole = (row for row in rows if len(row) == width)
            return set(map(itemgetter(*places, places[0]), whole)) if places else set()

    def check(self) -> None:
        """Raises CsvError if there are problems, with their lines."""
        if not self.problems.found:
            return
        found = sorted(self.problems.found, key=lambda problem: problem[0])
        lines = self._lines({row for row, _, _ in found[: REPORTED_AT_MOST + 1]})
        sentences = [
            f"{self.path}:{lines.get(row, '?')}: {f'column {column}: ' if column else ''}{text}"
            for row, column, text in found
        ]
        raise CsvError(sentences)

    def line(self, row: int) -> int:
        """The line on which a row (from 0) begins."""
        return self._lines({row}).get(row, 0)

    def _lines(self, wanted: set[int]) -> dict[int, int]:
        """The lines of rows. A cell may contain line breaks, so that lines are counted only for a
        message.
        """
        lines: dict[int, int] = {}
        with self._reading() as rows:
            next(rows, None)
            line, row = rows.line_num + 1, 0
            for cells in rows:
                if cells:
                    if row in wanted:
                        lines[row] = line
                    row += 1
                line = rows.line_num + 1
                if len(lines) == len(wanted):
                    break
        return lines

    def _reading(self) -> _Rows:
        return _Rows(self._source, self.path)


def _kept_pipe(path: Path) -> Path | None:
    """Copies a pipe to a file, since it can be read only once and lines are counted in a second
    pass. None for a regular file.
    """
    try:
        if path.is_file() or not path.exists():
            return None
        with (
            path.open("rb") as pipe,
            tempfile.NamedTemporaryFile(prefix="vllm-canary-", suffix=".csv", delete=False) as kept,
        ):
            shutil.copyfileobj(pipe, kept)
    except OSError as error:
        raise CsvError([f"{path}: cannot be read: {error.strerror}"]) from None
    return Path(kept.name)


class _Rows:
    """A csv.reader that opens and closes its file, and raises CsvError. `path` is the name of the
    file in messages.
    """

    def __init__(self, source: Path, path: Path) -> None:
        self._source = source
        self._path = path

    def __enter__(self) -> Self:
        try:
            self._file = self._source.open(encoding="utf-8-sig", newline="")
        except OSError as error:
            raise CsvError([f"{self._path}: cannot be read: {error.strerror}"]) from None
        self._reader = csv.reader(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Self:
        return self

    @property
    def line_num(self) -> int:
        """The number of lines read so far."""
        return self._reader.line_num

    def __next__(self) -> list[str]:
        try:
            return next(self._reader)
        except csv.Error as error:
            raise CsvError([f"{self._path}:{self._reader.line_num}: is not CSV: {error}"]) from None
        except UnicodeDecodeError:
            raise CsvError(
                [f"{self._path}:{self._reader.line_num + 1}: is not UTF-8 text"]
            ) from None
        except OSError as error:
            raise CsvError([f"{self._path}: cannot be read: {error.strerror}"]) from None


def converted(column: Column, convert: Callable[[str], V]) -> list[V | None]:
    """A column as values, None for an empty cell. Raises the errors of `convert`. Repeated cells
    are converted once: half of a real file is figures that seldom change.
    """
    if len(set(column[:FEW])) > FEW // 4:
        return [convert(cell) if cell else None for cell in column]
    known: dict[str, V | None] = {cell: convert(cell) for cell in set(column) if cell}
    return list(map((known | {"": None}).__getitem__, column))


def each(
    column: Column, convert: Callable[[str], V], failed: Callable[[int, str], None]
) -> list[V | None]:
    """Converts a column cell by cell, after an error of `converted`: calls `failed` for each
    invalid cell, which becomes None.
    """
    values: list[V | None] = []
    for number, cell in enumerate(column):
        try:
            values.append(convert(cell) if cell else None)
        except ValueError:
            failed(number, cell)
            values.append(None)
    return values


def moment_us(cell: str) -> int:
    """Integer UTC microseconds of an ISO 8601 time; one without a zone is UTC. Raises
    ValueError.
    """
    at = datetime.fromisoformat(cell)
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1e6)
