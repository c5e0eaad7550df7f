"""One trial as a picture, drawn by hand: no library is needed for four lines."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from xml.sax.saxutils import escape

from traces_data import Chained
from traces_faults import Trial, changed, snapshots

from monitor.judge.drift.settings import DriftSettings

WIDTH, PANEL, LEFT, RIGHT, TOP = 860, 96, 60, 120, 34
COLOURS = ("#1f6f8b", "#99582a", "#b02a30", "#4a5043")
Series = list[tuple[float, float]]


def trial(chain: Chained, found: Sequence[Trial], settings: DriftSettings) -> str:
    """The trial with the median lead: margin, residual, throttle time and decode loss over two
    hours, and the first of each sign.
    """
    timed = sorted(
        (t for t in found if t.loss_min is not None and t.warned_min is not None),
        key=lambda t: (t.loss_min or 0) - (t.warned_min or 0),
    )
    one = timed[len(timed) // 2]
    what = changed(chain, one.start, "cooling", 2.6, counters=True)
    channel, begun_us = (
        copy.deepcopy(snapshots(chain, settings)[one.start]),
        chain.points[one.start].at_us,
    )
    minutes = {}
    for point in what.points:
        channel.gpu(point, settings)
        channel.advance(point.at_us, settings)
        minutes |= {minute.at_us: minute for minute in channel.history.minutes[-3:]}
    drawn = [minute for at_us, minute in sorted(minutes.items()) if at_us >= begun_us]
    clock = [((minute.at_us - begun_us) / 6e7, minute) for minute in drawn]
    panels: list[tuple[str, Series]] = [
        (
            "margin, °C",
            [(at, minute.margin_c) for at, minute in clock if minute.margin_c is not None],
        ),
        (
            "hotter than power explains, °C",
            [(at, minute.residual_c) for at, minute in clock if minute.residual_c is not None],
        ),
        (
            "throttled for heat, % of time",
            [
                (at, 100 * minute.thermal_duty)
                for at, minute in clock
                if minute.thermal_duty is not None
            ],
        ),
        (
            "decoding slower by, %",
            _minutely(
                [(p.at_us - begun_us) / 6e7 for p in what.points],
                [100 * loss for loss in what.decode_loss],
            ),
        ),
    ]
    marks = [(at, name) for name, at in sorted(one.first.items(), key=lambda item: item[1])]
    return _svg(
        "Cooling that falls to 1/2.6 within an hour, put into a real GB10 trace",
        panels,
        marks,
        one.loss_min,
    )


def _minutely(at: Sequence[float], values: Sequence[float]) -> Series:
    """Means over five minutes."""
    return [(at[end - 1], sum(values[end - 30 : end]) / 30) for end in range(30, len(values), 6)]


def _svg(
    title: str,
    panels: Sequence[tuple[str, Series]],
    marks: Sequence[tuple[float, str]],
    loss_min: float | None,
) -> str:
    height = TOP + len(panels) * (PANEL + 26) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 '
        f'0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        (
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/><text x="{LEFT}" y="20" '
            f'font-size="14">{escape(title)}</text>'
        ),
    ]
    for number, (name, series) in enumerate(panels):
        parts += _panel(
            name, series, TOP + 18 + number * (PANEL + 26), COLOURS[number % len(COLOURS)]
        )
    bottom = TOP + len(panels) * (PANEL + 26) - 8
    for row, (at, name) in enumerate(marks):
        x = _x(at)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#d08c1d" '
            'stroke-dasharray="4 3"/>'
        )
        parts.append(
            f'<text x="{x + 4:.1f}" y="{TOP + 30 + 14 * row}" fill="#8a5a00">{escape(name)} '
            f"{at:.0f} min</text>"
        )
    if loss_min is not None:
        x = _x(loss_min)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#b02a30"/>')
        parts.append(
            f'<text x="{x + 4:.1f}" y="{bottom - 66}" fill="#b02a30">3 % slower over five '
            f"minutes: {loss_min:.0f} min</text>"
        )
    for minute in range(0, 121, 20):
        parts.append(
            f'<text x="{_x(minute):.1f}" y="{bottom + 18}" text-anchor="middle">{minute}</text>'
        )
    parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{bottom + 18}">minutes</text></svg>')
    return "\n".join(parts) + "\n"


def _x(minute: float) -> float:
    return LEFT + minute / 120.0 * (WIDTH - LEFT - RIGHT)


def _panel(name: str, series: Series, top: float, colour: str) -> list[str]:
    values = [value for _, value in series] or [0.0]
    low, high = min(0.0, *values), max(1.0, *values)

    def y(value: float) -> float:
        return top + PANEL - (value - low) / (high - low) * (PANEL - 8)

    path = " ".join(f"{_x(at):.1f},{y(value):.1f}" for at, value in series)
    return [
        f'<text x="{LEFT}" y="{top + 2:.1f}" fill="{colour}">{escape(name)}</text>',
        (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(0.0):.1f}" y2="{y(0.0):.1f}" '
            'stroke="#cccccc"/>'
        ),
        f'<text x="{LEFT - 6}" y="{y(high) + 4:.1f}" text-anchor="end">{high:.0f}</text>',
        f'<text x="{LEFT - 6}" y="{y(0.0) + 4:.1f}" text-anchor="end">0</text>',
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>',
    ]
