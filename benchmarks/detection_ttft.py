"""Time to first token: the product's channel for it on simulated months, measured as
detection_product.py measures the decode rate.

ln(wait) = ln(100 ms) + slow noise (Ornstein-Uhlenbeck, tau 40 min, SD 3 %) + Student's t noise with
5 degrees of freedom (scale 10 %; over three runs of real servers the coefficient of variation has a
90th percentile of 20 %) + 0.4 % of canaries 1.5 to 3 times as slow.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from multiprocessing.pool import Pool

import numpy as np
from detection_product import ANSWER_US, MONTH, RESTART_SD, SETTINGS, onsets
from detection_simulated import DAY, LEARN, Floats, ou

from monitor.judge.drift.settings import MINUTE_US
from monitor.judge.drift.speed.channel import SpeedChannel
from monitor.model import CanaryPoint

SLOW_SD, FAST_SCALE = 0.03, 0.10
FACTORS = (1.2, 1.5, 3.0)


def waits(seed: int) -> Floats:
    """Simulated waits in milliseconds, one per minute."""
    rng = np.random.default_rng([seed, 5])
    n = LEARN + MONTH + DAY
    outliers = np.where(rng.random(n) < 0.004, np.log(rng.uniform(1.5, 3.0, n)), 0.0)
    return np.asarray(
        np.exp(
            np.log(100.0)
            + SLOW_SD * ou(rng, n, 40.0)
            + FAST_SCALE * rng.standard_t(5, n)
            + outliers
        )
    )


def feed(channel: SpeedChannel, values: Floats, begin: int) -> Iterator[int]:
    """Feeds the waits; yields each minute in which an effect is open."""
    for minute, wait_ms in enumerate(values.tolist(), begin):
        at = minute * MINUTE_US
        channel.canary(
            CanaryPoint(
                at, at + ANSWER_US, "p", "chat", ttft_ms=wait_ms, running=0.0, fingerprint="a"
            ),
            SETTINGS,
        )
        if at + ANSWER_US >= channel.canaries.due_us:
            channel.advance(at + ANSWER_US, SETTINGS)
            if channel.baselines[-1].ttft.judge.effect is not None:
                yield minute


def one(seed: int) -> tuple[int, dict[float, list[int | None]]]:
    """Returns the false alarms of a month, and the delay of each onset by factor."""
    values, channel = waits(seed), SpeedChannel()
    list(feed(channel, values[:LEARN], 0))
    alarms, begun = 0, LEARN
    delays: dict[float, list[int | None]] = {factor: [] for factor in FACTORS}
    for onset in (*onsets(seed), LEARN + MONTH):
        for _ in feed(channel, values[begun:onset], begun):
            track = channel.baselines[-1].ttft
            alarms, track.judge.effect, track.judge.cusum.total = alarms + 1, None, 0.0
            track.judge.drop_test.restart(0.0, RESTART_SD, track.model.noise)
        begun, saved = onset, pickle.dumps(channel)
        for factor in FACTORS if onset < LEARN + MONTH else ():
            copy: SpeedChannel = pickle.loads(saved)  # written by this process
            raised = next(feed(copy, values[onset : onset + DAY] * factor, onset), None)
            delays[factor].append(None if raised is None else raised - onset)
    return alarms, delays


def measured(pool: Pool, seeds: int) -> tuple[float, dict[float, list[int | None]]]:
    """Returns the false alarms in 30 days, and all delays by factor."""
    results = pool.map(one, range(seeds))
    return sum(r[0] for r in results) / seeds, {
        factor: [d for r in results for d in r[1][factor]] for factor in FACTORS
    }
