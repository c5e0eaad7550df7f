"""One trial as an SVG plot, written directly: four lines need no library."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from traces_data import Chained
from traces_faults import Trial, changed, snapshots

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.settings import DriftSettings
from monitor.model import GpuPoint

WIDTH, PANEL, LEFT, RIGHT, TOP = 860, 96, 60, 120, 34
COLOURS = ("#1f6f8b", "#99582a", "#b02a30", "#4a5043")
Series = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One line of the plot."""

    name: str
    series: Series


def trial(chain: Chained, found: Sequence[Trial], settings: DriftSettings) -> str:
    """The trial with the median lead, as SVG: margin, residual, throttle time and decode loss over
    two hours, and the first time of each condition.
    """
    timed = sorted(
        (t for t in found if t.loss_min is not None and t.warned_min is not None),
        key=lambda t: (t.loss_min or 0) - (t.warned_min or 0),
    )
    shown = timed[len(timed) // 2]
    faulty = changed(chain, shown.start, "cooling", 2.6, counters=True)
    channel = copy.deepcopy(snapshots(chain, settings)[shown.start])
    begun_us = chain.points[shown.start].at_us
    panels = [
        *_minute_panels(channel, faulty.points, begun_us, settings),
        Panel(
            "loss of decode rate, %",
            _minutely(
                [(p.at_us - begun_us) / 6e7 for p in faulty.points],
                [100 * loss for loss in faulty.decode_loss],
            ),
        ),
    ]
    marks = [(at, name) for name, at in sorted(shown.first.items(), key=lambda item: item[1])]
    title = "Cooling that falls to 1/2.6 within an hour, injected into a real GB10 trace"
    return _svg(title, panels, marks, shown.loss_min)


def _minute_panels(
    channel: GpuChannel, points: Sequence[GpuPoint], begun_us: int, settings: DriftSettings
) -> list[Panel]:
    """The lines of what the channel computes for each minute."""
    minutes = {}
    for point in points:
        channel.gpu(point, settings)
        channel.advance(point.at_us, settings)
        minutes |= {minute.at_us: minute for minute in channel.history.minutes[-3:]}
    drawn = [
        ((at_us - begun_us) / 6e7, minute)
        for at_us, minute in sorted(minutes.items())
        if at_us >= begun_us
    ]
    margins = [(at, m.margin_c) for at, m in drawn if m.margin_c is not None]
    residuals = [(at, m.residual_c) for at, m in drawn if m.residual_c is not None]
    duties = [(at, 100 * m.thermal_duty) for at, m in drawn if m.thermal_duty is not None]
    return [
        Panel("margin, °C", margins),
        Panel("hotter than power explains, °C", residuals),
        Panel("thermally throttled, % of time", duties),
    ]


def _minutely(at: Sequence[float], values: Sequence[float]) -> Series:
    """Means over five minutes."""
    return [(at[end - 1], sum(values[end - 30 : end]) / 30) for end in range(30, len(values), 6)]


def _svg(
    title: str,
    panels: Sequence[Panel],
    marks: Sequence[tuple[float, str]],
    loss_min: float | None,
) -> str:
    height = TOP + len(panels) * (PANEL + 26) + 30
    bottom = TOP + len(panels) * (PANEL + 26) - 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        top = TOP + 18 + number * (PANEL + 26)
        parts += _panel(panel, top, COLOURS[number % len(COLOURS)])
    for row, (at, name) in enumerate(marks):
        label = f"{name} {at:.0f} min"
        parts += [
            _vertical(at, bottom, 'stroke="#d08c1d" stroke-dasharray="4 3"'),
            _text(_x(at) + 4, TOP + 30 + 14 * row, label, 'fill="#8a5a00"'),
        ]
    if loss_min is not None:
        label = f"3 % slower over five minutes: {loss_min:.0f} min"
        parts += [
            _vertical(loss_min, bottom, 'stroke="#b02a30"'),
            _text(_x(loss_min) + 4, bottom - 66, label, 'fill="#b02a30"'),
        ]
    for minute in range(0, 121, 20):
        parts.append(_text(_x(minute), bottom + 18, str(minute), 'text-anchor="middle"'))
    parts += [_text(WIDTH - RIGHT + 12, bottom + 18, "minutes"), "</svg>"]
    return "\n".join(parts) + "\n"


def _vertical(minute: float, bottom: float, style: str) -> str:
    x = _x(minute)
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" {style}/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _x(minute: float) -> float:
    return LEFT + minute / 120.0 * (WIDTH - LEFT - RIGHT)


def _panel(panel: Panel, top: float, colour: str) -> list[str]:
    values = [value for _, value in panel.series] or [0.0]
    low, high = min(0.0, *values), max(1.0, *values)

    def y(value: float) -> float:
        return top + PANEL - (value - low) / (high - low) * (PANEL - 8)

    path = " ".join(f"{_x(at):.1f},{y(value):.1f}" for at, value in panel.series)
    zero = f'y1="{y(0.0):.1f}" y2="{y(0.0):.1f}"'
    return [
        _text(LEFT, top + 2, panel.name, f'fill="{colour}"'),
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" {zero} stroke="#cccccc"/>',
        _text(LEFT - 6, y(high) + 4, f"{high:.0f}", 'text-anchor="end"'),
        _text(LEFT - 6, y(0.0) + 4, "0", 'text-anchor="end"'),
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>',
    ]
