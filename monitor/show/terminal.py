"""Tables and text for a terminal: local times, units in the headings, – for unknown, control
characters of servers and models escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from monitor.judge.percentiles import Percentile
from monitor.text import printable

UNKNOWN = "–"
PIPE_WIDTH = 240  # without a terminal: wide enough not to cut what a program may read
WRAPPED = (
    "detail",
    "before",
    "now",
    "value",
    "text",
    "from",
)  # columns that may take several lines
STYLES = {
    "good": "green",
    "ok": "green",
    "pass": "green",
    "bad": "bold red",
    "fail": "bold red",
    "hung": "bold red",
    "page": "bold red",
    "warning": "yellow",
    "queue_cap": "yellow",
    "unknown": "yellow",
}


class _Console(Console):
    """A console that raises on a broken pipe (`history | head`) instead of exiting with code 1,
    which here means a regression.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Returns the console of standard output."""
    # Text is printed verbatim: what a server or a model wrote may look like markup or contain
    # :emoji: names.
    is_terminal = sys.stdout.isatty()
    return _Console(
        width=None if is_terminal else PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not is_terminal,
    )


def progress_console() -> Console | None:
    """Returns the console for progress: standard error, or None if that is not a terminal."""
    return Console(stderr=True, highlight=False) if sys.stderr.isatty() else None


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Returns a figure with a fixed number of decimals; – if unknown."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}{unit}"


def milliseconds(value: float | None) -> str:
    """Returns milliseconds for reading: 7.4, 812, 27,310."""
    return UNKNOWN if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def local_time(at: datetime | None) -> str:
    """Returns the local date and time; – if unknown."""
    return UNKNOWN if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def percentile_text(value: Percentile, count: int) -> str:
    """Returns `41.2 (38.0 to 47.9)`; `> 2,000` if it falls among canaries without a first token;
    `no answer` if none of those waited a known time.
    """
    if count == 0:
        return UNKNOWN
    if value.value is None:
        return "no answer" if value.at_least is None else f"> {milliseconds(value.at_least)}"
    low, high = ("…" if end is None else milliseconds(end) for end in (value.low, value.high))
    return f"{milliseconds(value.value)} ({low} to {high})"


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Returns a plain table: cells are verbatim text, known words are coloured, and columns whose
    heading has a unit are aligned as numbers.
    """
    result = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        numeric = heading in {"waiting", "no first token"} or heading.endswith(
            (" ms", "/s", " °C", " MHz", " W", " s", "count", "id")
        )
        result.add_column(
            heading, justify="right" if numeric else "left", no_wrap=not heading.endswith(WRAPPED)
        )
    for row in rows:
        result.add_row(*(cell(value) for value in row))
    return result


def cell(value: Any) -> Text:
    """Returns one cell."""
    text = UNKNOWN if value is None else printable(str(value))
    return Text(text, style=STYLES.get(text, ""))
