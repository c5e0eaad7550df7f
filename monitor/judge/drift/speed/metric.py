"""The metrics that are watched, with what is looked for in each, and their common threshold."""

from __future__ import annotations

import math
from typing import NamedTuple

from monitor.judge.drift.settings import DriftSettings
from monitor.judge.drift.stats.sequential import log_threshold

HOUR_S = 3600.0
CHANNELS = 3  # they learn in turn, so that no step of the judge takes long
DETECTORS = 2 * CHANNELS
# a warning wakes nobody, so it may be false six times as often as a page (0.3 a month where pages
# may cost 0.05)
WARNINGS_PER_PAGE = 6.0
# first tokens are noisy: their coefficient of variation over three runs has a p90 of 20 %
TTFT_DROPS = (math.log(1.15), math.log(1.5))
TTFT_PRACTICAL = math.log(1.10)
TTFT_PAGE = math.log(1.5)
DECODE_PAGE = -math.log(0.90)


class MetricSpec(NamedTuple):
    """Constants of a channel. Logarithms, as positive numbers."""

    channel: str
    name: str  # of the sample's field
    drops: tuple[float, float]  # the sizes looked for
    practical: float  # smaller changes have no practical effect
    page: float  # a change of this size is a page
    sign: int  # +1: the field rises when things get better
    least_noise_sd: float  # the AR(1) noise is taken to be at least this
    turn: int  # of CHANNELS, in which it learns


def practical_log(settings: DriftSettings) -> float:
    """The smallest change of the decode rate with a practical effect."""
    return -math.log1p(-settings.practical_pct / 100.0)


def decode_metric(settings: DriftSettings) -> MetricSpec:
    """Decode rate: the sensitive channel."""
    return MetricSpec(
        channel="decode",
        name="decode_tok_s",
        drops=(-math.log1p(-settings.small_drop), -math.log1p(-settings.large_drop)),
        practical=practical_log(settings),
        page=DECODE_PAGE,
        sign=1,
        least_noise_sd=0.0015,
        turn=0,
    )


def steps_metric(settings: DriftSettings) -> MetricSpec:
    """Engine steps per second: the same sizes as decode."""
    return decode_metric(settings)._replace(
        channel="steps", name="engine_steps_s", least_noise_sd=0.003, turn=1
    )


TTFT = MetricSpec(
    channel="ttft",
    name="ttft_ms",
    drops=TTFT_DROPS,
    practical=TTFT_PRACTICAL,
    page=TTFT_PAGE,
    sign=-1,
    least_noise_sd=0.02,
    turn=2,
)


class MetricContext(NamedTuple):
    """A metric with the length of the blocks, which stays what it was at the first point."""

    metric: MetricSpec
    block_s: float
    settings: DriftSettings

    @property
    def threshold(self) -> float:
        """Log evidence from which an effect is a warning."""
        return warning_threshold(self.settings, self.block_s)

    def blocks(self, hours: float) -> int:
        """Number of blocks in this many hours."""
        return round(hours * HOUR_S / self.block_s)


def metrics(settings: DriftSettings) -> tuple[MetricSpec, MetricSpec, MetricSpec]:
    """In the order of SpeedBaseline.tracks."""
    return decode_metric(settings), TTFT, steps_metric(settings)


def warning_threshold(settings: DriftSettings, block_s: float) -> float:
    """Log evidence from which an effect is a warning."""
    per_month = WARNINGS_PER_PAGE * settings.false_alarms_per_month
    return log_threshold(per_month, block_s, DETECTORS)
