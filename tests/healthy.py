"""Canaries of a healthy server, minute by minute, with the faults of a test. All random numbers
come from the seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from monitor.judge.drift.settings import MINUTE_US, DriftSettings
from monitor.judge.drift.speed.channel import SpeedChannel
from monitor.model import CanaryPoint

SETTINGS = DriftSettings()
HOUR = 60  # minutes
DAY = 24 * HOUR
START_US = 1_772_366_400_000_000

Factor = Callable[[int], float]  # of the decode rate, by minute


def canaries(
    minutes: range,
    factor: Factor = lambda _: 1.0,
    running: Callable[[int], float] = lambda _: 0.0,
    wait_factor: Factor = lambda _: 1.0,
    seed: int = 0,
    probes: tuple[str, ...] = ("decode-fixed",),
    **fields: Any,
) -> Iterator[CanaryPoint]:
    """Each probe once a minute: about 70 tokens/s alone, 5 % less for each other request, 0.4 %
    noise; 100 ms to the first token.
    """
    for minute in minutes:
        for number, probe in enumerate(sorted(probes)):
            draw = random.Random(f"{seed} {minute} {probe}")
            r = running(minute)
            rate = (
                (60.0 + len(probe))
                / (1 + 0.05 * r)
                * factor(minute)
                * math.exp(draw.gauss(0.0, 0.004))
            )
            wait = 100.0 * wait_factor(minute) * math.exp(draw.gauss(0.0, 0.05))
            at = START_US + minute * MINUTE_US + number * 1_000_000
            values = {
                "running": r,
                "decode_tok_s": rate,
                "ttft_ms": wait,
                "completion_tokens": 128.0,
                "fingerprint": "one",
                **fields,
            }
            yield CanaryPoint(
                at, at + 2_000_000, probe, "chat", **{"process_start_us": START_US, **values}
            )


def fed(
    channel: SpeedChannel, points: Iterator[CanaryPoint], settings: DriftSettings = SETTINGS
) -> SpeedChannel:
    """The channel after these canaries, advanced to the time of each."""
    for point in points:
        channel.canary(point, settings)
        channel.advance(point.known_us, settings)
    return channel


def step(at: int, share: float) -> Factor:
    """A factor that falls to `share` at a minute."""
    return lambda minute: share if minute >= at else 1.0
