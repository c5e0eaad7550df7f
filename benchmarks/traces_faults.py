"""Faults injected into real GPU traces, each judged with the baseline learned until then."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import cooling
from traces_data import GB10, Chained

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.settings import DriftSettings
from monitor.model import GpuPoint, Severity

LEARN_POINTS = 1440  # four hours before the first trial
EVERY_POINTS = 270  # one trial every 45 minutes
SPAN_S, RAMP_S = 7200.0, 3600.0
LIMIT_MHZ = 799.0  # observed on a GB10 (github.com/Blackwellboy/model-serving-minefield, trap 124)
THROTTLED = 0.02
LOSS, LOSS_POINTS = 0.03, 30  # 3 % over five minutes


@dataclass(slots=True)
class Trial:
    """One trial: the first time of each condition, and when decoding became slower."""

    start: int
    # condition -> minutes after the onset
    first: dict[str, float] = field(default_factory=dict)
    warned: dict[str, float] = field(default_factory=dict)  # the same for warnings and pages
    causes: set[str] = field(default_factory=set)
    loss_min: float | None = None
    throttled_min: float | None = None  # the first minute with thermal throttling
    # the first forecast of throttling: when it was made, and its predicted time, in minutes
    forecast: tuple[float, float] | None = None

    @property
    def first_min(self) -> float:
        """Minutes to the first condition."""
        return min(self.first.values())

    @property
    def first_condition(self) -> str:
        """The name of the first condition."""
        return min(self.first, key=lambda condition: self.first[condition])

    @property
    def warned_min(self) -> float | None:
        """Minutes to the first warning."""
        return min(self.warned.values(), default=None)


def snapshots(chain: Chained, settings: DriftSettings) -> dict[int, GpuChannel]:
    """The state of the channel at every start, by the index of the point. A start has two hours of
    readings after it.
    """
    channel, found = GpuChannel(GB10), dict[int, GpuChannel]()
    for number, point in enumerate(chain.points):
        if (
            number >= LEARN_POINTS
            and number % EVERY_POINTS == 0
            and _is_whole(_span(chain, number))
        ):
            found[number] = copy.deepcopy(channel)
        channel.gpu(point, settings)
        channel.advance(point.at_us, settings)
    return found


def _span(chain: Chained, start: int) -> list[GpuPoint]:
    until_us = chain.points[start].at_us + SPAN_S * 1e6
    return [point for point in chain.points[start : start + 1000] if point.at_us < until_us]


def _is_whole(points: Sequence[GpuPoint]) -> bool:
    """Whether the points cover two hours without a gap of 5 minutes."""
    long = points[-1].at_us - points[0].at_us > 0.95 * SPAN_S * 1e6
    return long and all(later.at_us - sooner.at_us < 300e6 for sooner, later in pairwise(points))


def changed(
    chain: Chained, start: int, kind: str, factor: float, counters: bool
) -> cooling.Changed:
    """The two hours with the fault applied."""
    points = _span(chain, start)
    if kind == "hidden":
        return cooling.changed(points, limit_mhz=lambda _: LIMIT_MHZ, counters=counters)
    return cooling.changed(
        points, cooling=lambda s: 1.0 + (factor - 1.0) * min(1.0, s / RAMP_S), counters=counters
    )


def trials(
    chain: Chained,
    starts: dict[int, GpuChannel],
    kind: str,
    factor: float,
    counters: bool,
    settings: DriftSettings,
) -> list[Trial]:
    """Runs one trial from every start."""
    return [
        _trial(chain, start, channel, changed(chain, start, kind, factor, counters), settings)
        for start, channel in starts.items()
    ]


def _trial(
    chain: Chained, start: int, before: GpuChannel, what: cooling.Changed, settings: DriftSettings
) -> Trial:
    channel, found, begun_us = copy.deepcopy(before), Trial(start), chain.points[start].at_us
    for point in what.points:
        channel.gpu(point, settings)
        channel.advance(point.at_us, settings)
        since_min = (point.at_us - begun_us) / 6e7
        newest = channel.history.minutes[-1]
        if (
            found.throttled_min is None
            and newest.at_us >= begun_us
            and (newest.thermal_duty or 0.0) > THROTTLED
        ):
            found.throttled_min = since_min
        if not channel.conditions.open:
            continue
        for warning in channel.warnings(settings):
            found.first.setdefault(warning.condition, since_min)
            found.causes.add(warning.cause.value)
            if found.forecast is None and warning.figures.minutes_to_limit is not None:
                found.forecast = since_min, since_min + warning.figures.minutes_to_limit
            if warning.severity is not Severity.INFO:
                found.warned.setdefault(warning.condition, since_min)
    for end in range(LOSS_POINTS, len(what.points)):
        if sum(what.decode_loss[end - LOSS_POINTS : end]) / LOSS_POINTS >= LOSS:
            found.loss_min = (what.points[end].at_us - begun_us) / 6e7
            break
    return found
