"""When a GPU will reach its own limit, where that can be said: not from its temperature, which
every warm-up drives up, but from the growth of what its power does not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import StatisticsError, correlation, linear_regression

from monitor.judge.drift.gpu.readings import Stretch
from monitor.judge.drift.settings import MINUTE_US

LEAST_MINUTES = 10  # of growth, before it is a trend
STRAIGHT = 0.8  # correlation of residual and time: less is a jump, or weather
LEAST_C_PER_MIN = 0.05
FARTHEST_MIN = 60.0  # cooling is not known to go on like this for longer


def minutes_to_limit(minutes: Sequence[Stretch], room_c: float | None) -> float | None:
    """At the pace of the last minutes, with the power there is now; None where there is no steady
    growth, or no limit is known.
    """
    known = [
        (minute.at_us / MINUTE_US, minute.residual_c)
        for minute in minutes
        if minute.residual_c is not None
    ]
    if room_c is None or room_c <= 0 or len(known) < LEAST_MINUTES:
        return None
    times, residuals = [at for at, _ in known], [residual for _, residual in known]
    try:
        straight, pace = correlation(times, residuals), linear_regression(times, residuals).slope
    except StatisticsError:  # it did not move at all
        return None
    if straight < STRAIGHT or pace < LEAST_C_PER_MIN:
        return None
    left = room_c / pace
    return left if left <= FARTHEST_MIN else None
