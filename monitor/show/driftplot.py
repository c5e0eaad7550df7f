"""A replay as one self-contained HTML page: speed relative to its median, GPU readings and findings
over time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from statistics import median, quantiles
from typing import NamedTuple

from monitor.model import CanaryPoint, GpuPoint, Point
from monitor.show.findings.texts import short_uuid

WIDTH, HEIGHT, LEFT, TOP, GAP = 1100, 150, 70, 20, 46
BLOCK_US = 300_000_000  # as the detectors see it
MOST_DOTS = 1_500  # points of a line: more than the pixels of a screen
COLOURS = {"info": "#7a9cc6", "warning": "#e0a100", "page": "#d1342f"}
STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:24px;max-width:1180px;color:#222;background:#fff}
svg{display:block;width:100%;height:auto}.line{fill:none;stroke:#1f5fa8;stroke-width:1.2}.axis{stroke:#999;stroke-width:.5}
.band{fill:#1f5fa8;opacity:.12}text{font:11px system-ui,sans-serif;fill:#444}
td:nth-child(-n+3){white-space:nowrap}
td,th{text-align:left;padding:2px 12px 2px 0;vertical-align:top}
@media(prefers-color-scheme:dark){body{background:#161719;color:#ddd}text{fill:#bbb}.line{stroke:#7fb2ef}.band{fill:#7fb2ef}}
"""


class Found(NamedTuple):
    """One incident as it is drawn. Times are integer UTC microseconds."""

    since_us: int
    until_us: int | None
    severity: str
    title: str
    text: str


@dataclass(slots=True)
class Series:
    """One figure over time: its values by block."""

    blocks: dict[int, list[float]] = field(default_factory=dict)

    def add(self, at_us: int, value: float) -> None:
        """Adds one value."""
        self.blocks.setdefault(at_us // BLOCK_US, []).append(value)

    def line(self) -> list[tuple[int, float]]:
        """Returns the medians of blocks; many blocks are joined into fewer, longer ones."""
        numbers = sorted(self.blocks)
        step = 1 if not numbers else 1 + (numbers[-1] - numbers[0]) // MOST_DOTS
        joined: dict[int, list[float]] = {}
        for number in numbers:
            joined.setdefault(number // step, []).extend(self.blocks[number])
        return [
            (int((number + 0.5) * step * BLOCK_US), median(values))
            for number, values in joined.items()
        ]


@dataclass(slots=True)
class Sketch:
    """Collects the lines of each target while its points are replayed."""

    # by target, figure and probe
    _ratios: dict[tuple[str, str, str], Series] = field(default_factory=dict)
    # by target and figure of one GPU
    _gpus: dict[tuple[str, str, str], Series] = field(default_factory=dict)

    def watch(self, target: str, point: Point) -> None:
        """Adds one point."""
        if isinstance(point, CanaryPoint):
            if point.phase == "warm" and point.outcome == "ok":
                for figure, value in (
                    ("decode rate", point.decode_tok_s),
                    ("time to first token", point.ttft_ms),
                ):
                    self._add(self._ratios, (target, figure, point.probe), point.at_us, value)
        elif isinstance(point, GpuPoint):
            for figure, value in (
                ("temperature, °C", point.temp_c),
                ("SM clock, MHz", point.sm_clock_mhz),
            ):
                line = f"{figure}, {short_uuid(point.uuid)}"
                self._add(self._gpus, (target, line, ""), point.at_us, value)

    @staticmethod
    def _add(
        of: dict[tuple[str, str, str], Series],
        key: tuple[str, str, str],
        at_us: int,
        value: float | None,
    ) -> None:
        if value is not None:
            of.setdefault(key, Series()).add(at_us, value)

    def panels(
        self, target: str, found: Sequence[Found] = ()
    ) -> dict[str, list[tuple[int, float]]]:
        """Returns lines by title. Probes are pooled as percentages of their median outside of
        incidents.
        """
        pooled: dict[str, Series] = {}
        for (of, figure, _probe), series in self._ratios.items():
            if of == target:
                calm = [
                    v
                    for number, values in series.blocks.items()
                    if not _within(number * BLOCK_US, found)
                    for v in values
                ]
                baseline = median(calm or [v for values in series.blocks.values() for v in values])
                for number, values in series.blocks.items() if baseline > 0 else ():
                    joined = pooled.setdefault(f"{figure}, % of median", Series())
                    joined.blocks.setdefault(number, []).extend(
                        100 * value / baseline for value in values
                    )
        lines = {title: series.line() for title, series in pooled.items()}
        return lines | {
            figure: series.line()
            for (of, figure, _), series in sorted(self._gpus.items())
            if of == target
        }


def page(
    title: str,
    panels: Mapping[str, Mapping[str, list[tuple[int, float]]]],
    found: Mapping[str, Sequence[Found]],
) -> str:
    """Returns the whole page: for each target its panels and a table of incidents."""
    parts = [
        (
            "<!doctype html><html lang=en><meta "
            f"charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
        )
    ]
    parts.append(
        f"<h1>{escape(title)}</h1><p>The band covers the middle 90 % of the line outside of "
        "incidents.</p>"
    )
    for target, lines in panels.items():
        own = found.get(target, ())
        parts.append(f"<h2>{escape(target)}</h2>{_drawing(lines, own)}{_table(own)}")
    return "\n".join(parts) + "\n"


def _within(at_us: int, found: Iterable[Found]) -> bool:
    return any(f.since_us <= at_us and (f.until_us is None or at_us <= f.until_us) for f in found)


def _table(found: Iterable[Found]) -> str:
    rows = "".join(map(_row, found))
    return (
        f"<table><tr><th>severity<th>since<th>until<th>what<th></tr>{rows}</table>"
        if rows
        else "<p>No incidents.</p>"
    )


def _row(f: Found) -> str:
    until = "open" if f.until_us is None else _when(f.until_us)
    return (
        f"<tr><td style='color:{COLOURS.get(f.severity, '#222')}'>{escape(f.severity)}"
        f"<td>{_when(f.since_us)}<td>{until}<td>{escape(f.title)}<td>{escape(f.text)}</tr>"
    )


def _when(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")


def _drawing(lines: Mapping[str, list[tuple[int, float]]], found: Sequence[Found]) -> str:
    times = [at for line in lines.values() for at, _ in line]
    if not times:
        return "<p>No data: no rates, times or GPU readings.</p>"
    begin = min(times)
    end = max(*times, begin + 1)
    height = TOP + len(lines) * (HEIGHT + GAP)
    parts = [f"<svg viewBox='0 0 {WIDTH} {height}' role=img aria-label='series over time'>"]
    for number, (title, line) in enumerate(lines.items()):
        parts.append(_panel(title, line, found, (begin, end), TOP + number * (HEIGHT + GAP)))
    return "".join([*parts, "</svg>"])


def _panel(
    title: str,
    line: list[tuple[int, float]],
    found: Sequence[Found],
    span: tuple[int, int],
    top: int,
) -> str:
    begin, end = span
    calm = [v for at, v in line if not _within(at, found)]
    low, high = min(v for _, v in line), max(v for _, v in line)
    margin = (high - low) * 0.08 or abs(high) * 0.02 or 1.0
    low, high = low - margin, high + margin

    def x(at: int) -> float:
        return LEFT + (min(max(at, begin), end) - begin) / (end - begin) * (WIDTH - LEFT - 10)

    def y(value: float) -> float:
        return top + (high - value) / (high - low) * HEIGHT

    parts = [f"<text x=0 y={top - 6}>{escape(title)}</text>"]
    for f in found:
        left, right = x(f.since_us), x(f.until_us if f.until_us is not None else end)
        parts.append(
            f"<rect x={left:.1f} y={top} width={max(right - left, 1.5):.1f} height={HEIGHT} "
            f"fill='{COLOURS.get(f.severity, '#888')}' "
            f"opacity=.22><title>{escape(f.title)}: {escape(f.text)}</title></rect>"
        )
    if len(calm) >= 20:  # fewer have no 20-quantiles
        twentieths = quantiles(calm, n=20)
        parts.append(
            f"<rect class=band x={LEFT} y={y(twentieths[-1]):.1f} width={WIDTH - LEFT - 10} "
            f"height={max(y(twentieths[0]) - y(twentieths[-1]), 1):.1f} />"
        )
    for value in (low + margin, (low + high) / 2, high - margin):
        at = y(value)
        parts.append(
            f"<line class=axis x1={LEFT} x2={WIDTH - 10} y1={at:.1f} y2={at:.1f} /><text x=0 "
            f"y={at + 4:.1f}>{value:,.4g}</text>"
        )
    for share in range(5):
        at_us = begin + (end - begin) * share // 4
        parts.append(
            f"<text x={min(x(at_us), WIDTH - 110):.1f} y={top + HEIGHT + 14}>{_when(at_us)}</text>"
        )
    drawn = [
        " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in piece) for piece in _pieces(line)
    ]
    return "".join([*parts, *(f"<polyline class=line points='{piece}' />" for piece in drawn)])


def _pieces(line: list[tuple[int, float]]) -> Iterable[list[tuple[int, float]]]:
    """Splits a line at gaps of an hour or more, which are not drawn as straight lines."""
    steps = sorted(b - a for (a, _), (b, _) in pairwise(line))
    widest = max(3 * steps[len(steps) // 2], 3_600_000_000) if steps else 0
    piece: list[tuple[int, float]] = []
    for at, value in line:
        if piece and at - piece[-1][0] > widest:
            yield piece
            piece = []
        piece.append((at, value))
    if piece:
        yield piece
