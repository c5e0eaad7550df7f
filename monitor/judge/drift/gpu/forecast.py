"""When a GPU will reach its slowdown threshold, where that can be predicted: not from its
temperature, which every warm-up raises, but from the growth of what its power does not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import StatisticsError, correlation, linear_regression

from monitor.judge.drift.gpu.interval import Interval
from monitor.judge.drift.settings import MINUTE_US

LEAST_MINUTES = 10  # of growth, before it is a trend
STRAIGHT = 0.8  # correlation of residual and time: less is a jump, or noise
LEAST_C_PER_MIN = 0.05
FARTHEST_MIN = 60.0  # growth is not known to continue for longer


def minutes_to_limit(minutes: Sequence[Interval], margin_c: float | None) -> float | None:
    """Minutes until the margin is used up at the pace of the last minutes and the present power;
    None where there is no steady growth, or no limit is known.
    """
    known = [
        (minute.at_us / MINUTE_US, minute.residual_c)
        for minute in minutes
        if minute.residual_c is not None
    ]
    if margin_c is None or margin_c <= 0 or len(known) < LEAST_MINUTES:
        return None
    times, residuals = [at for at, _ in known], [residual for _, residual in known]
    try:
        straight, pace = correlation(times, residuals), linear_regression(times, residuals).slope
    except StatisticsError:  # the residual is constant
        return None
    if straight < STRAIGHT or pace < LEAST_C_PER_MIN:
        return None
    left = margin_c / pace
    return left if left <= FARTHEST_MIN else None
