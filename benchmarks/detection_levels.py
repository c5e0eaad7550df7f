"""Service levels from few canaries: the product's test and common hand-written rules, on canaries
that exceed the level at random.

One canary a minute; each exceeds its level independently with a fixed probability. Delay: canaries
from the rise of the probability to the alarm, after two hundred healthy ones (3 % over). False
alarms: in MONTHS healthy months, at 3 % over and at the boundary of 5 %.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median

import numpy as np
from detection_simulated import DAY

from monitor.judge.drift.settings import MINUTE_US, DriftSettings
from monitor.judge.drift.speed.levels import LevelChannel
from monitor.model import CanaryPoint

SETTINGS = DriftSettings()
RATES = (0.10, 0.20, 0.50, 1.00)
MONTHS = 60
MONTHS_A_TASK = 5
TRIALS = 100
HEALTHY = 0.03
MOST = 5000
GOOD = CanaryPoint(0, 0, "p", "chat", ttft_ms=100.0)
BAD = CanaryPoint(0, 0, "p", "chat", outcome="queue_cap")

Rule = Callable[[], Callable[[bool], bool]]  # creates a judge: one observation in, alarm out


def window(size: int, least: int) -> Callable[[bool], bool]:
    """A rule: at least `least` of the last `size` canaries exceed the level."""
    seen: list[bool] = []

    def judge(over: bool) -> bool:
        seen.append(over)
        del seen[:-size]
        return len(seen) == size and sum(seen) >= least

    return judge


def product() -> Callable[[bool], bool]:
    """The product's own test."""
    channel, minute = LevelChannel(), 0

    def judge(over: bool) -> bool:
        nonlocal minute
        minute += 1
        channel.canary(
            (BAD if over else GOOD)._replace(at_us=minute * MINUTE_US, known_us=minute * MINUTE_US),
            SETTINGS,
        )
        return channel.classes["chat"].open is not None

    return judge


RULES: dict[str, Rule] = {
    '"p95 of the last 20 is over"': partial(window, 20, 2),
    "at least 6 of the last 60": partial(window, 60, 6),
    "3 in a row": partial(window, 3, 3),
    "**the product: SR e-detector**": product,
}


def false_alarms(name: str, rate: float, seed: int) -> int:
    """Alarms in MONTHS_A_TASK healthy months; each alarm restarts the judge."""
    draws = (
        np.random.default_rng([seed, round(rate * 1000)]).random(MONTHS_A_TASK * 30 * DAY) < rate
    ).tolist()
    judge, found = RULES[name](), 0
    for over in draws:
        if judge(over):
            found, judge = found + 1, RULES[name]()
    return found


def delay(name: str, rate: float, seed: int) -> int:
    """Canaries from the rise to the alarm."""
    rng = np.random.default_rng([seed, round(rate * 1000), 9])
    judge = RULES[name]()
    for over in (rng.random(200) < HEALTHY).tolist():
        if judge(over):
            judge = RULES[name]()
    return next(
        (i + 1 for i, over in enumerate((rng.random(MOST) < rate).tolist()) if judge(over)), MOST
    )


def rows(jobs: int) -> list[tuple[str, ...]]:
    """The rows: rule, false alarms in 30 days at 3 % and 5 % over, delays."""
    found = []
    seeds = range(MONTHS // MONTHS_A_TASK)
    with ProcessPoolExecutor(jobs) as pool:
        for name in RULES:
            alarms = [
                sum(pool.map(partial(false_alarms, name, rate), seeds)) / MONTHS
                for rate in (HEALTHY, 0.05)
            ]
            delays = [sorted(pool.map(partial(delay, name, rate), range(TRIALS))) for rate in RATES]
            cells = [f"{median(d):.0f} ({d[len(d) * 9 // 10]})" for d in delays]
            found.append((name, f"{alarms[0]:.2f} / {alarms[1]:.2f}", *cells))
    return found
