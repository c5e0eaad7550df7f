"""Measurement noise, which virtual time lacks and a detector must cope with.

The sizes are those of an idle server at concurrency 1 (266 cells of a benchmark on GB10: the decode
rate varies by 0.16 % at the median, the time to the first token by 20 % at its 90th percentile),
with AR(1) noise and rare slow samples on top, both assumed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

AR1_SD, AR1_TAU_S = 0.004, 2400.0
DECODE_SD, PREFILL_SD = 0.003, 0.05
SLOW_SHARE, SLOW_LEAST, SLOW_MOST = 0.004, 0.10, 0.40
NETWORK_MS = 1.2  # loopback, HTTP and the event loop of both sides
GAP_SD = 0.03  # of one gap between tokens; assumed
# root mean square move of log-probabilities from run to run of an idle server; assumed
SHIFT_NAT = 0.002


@dataclass(slots=True)
class SampleNoise:
    """The noise of one sample: factors on prefill and decode time, network time, factors on the
    slow gaps between tokens and on the longest, and the move of log-probabilities.
    """

    prefill: float
    decode: float
    network_ms: float
    gap_p95: float
    gap_max: float
    shift_nat: float

    def gaps(self, gaps: Sequence[tuple[float, int]]) -> list[float]:
        """Expands gaps between tokens, given with their number, and makes the slowest
        twentieth somewhat slower. They come in order of length: only their percentiles are
        stored.
        """
        uneven = [gap * self.decode for gap, times in sorted(gaps) for _ in range(times)]
        if uneven:
            for place in range(-(-19 * len(uneven) // 20) - 1, len(uneven)):
                uneven[place] *= self.gap_p95
            uneven[-1] *= self.gap_max / self.gap_p95
        return uneven


class Noise:
    """Seeded noise, drawn once per sample in order of time."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"noise/{seed}")  # noqa: S311 - reproducible, not a secret
        self._ar1 = 0.0
        self._at_s = 0.0

    def next(self, at_s: float) -> SampleNoise:
        """The noise of a sample at this time."""
        keep = exp(-(at_s - self._at_s) / AR1_TAU_S)
        self._ar1 = self._ar1 * keep + self._chance.gauss(0.0, AR1_SD) * sqrt(1.0 - keep * keep)
        self._at_s = at_s
        slow = 1.0 + (
            self._chance.uniform(SLOW_LEAST, SLOW_MOST)
            if self._chance.random() < SLOW_SHARE
            else 0.0
        )
        decode = exp(self._ar1 + DECODE_SD * self._heavy()) * slow
        prefill = exp(self._ar1 + PREFILL_SD * abs(self._heavy())) * slow
        gauss = self._chance.gauss
        p95, longest = (
            1.0 + GAP_SD * (1.6 + gauss(0.0, 0.2)),
            1.0 + GAP_SD * (2.6 + abs(gauss(0.0, 0.6))),
        )
        return SampleNoise(
            prefill,
            decode,
            NETWORK_MS * exp(gauss(0.0, 0.3)),
            p95,
            longest,
            shift_nat(self._chance),
        )

    def _heavy(self) -> float:
        """Student's t with five degrees of freedom, scaled to a standard deviation of 1:
        outliers are common.
        """
        gauss, chance = self._chance.gauss, self._chance.random
        # chi-squared with five degrees of freedom
        squares = gauss(0.0, 1.0) ** 2 - 2.0 * log((1.0 - chance()) * (1.0 - chance()))
        return gauss(0.0, 1.0) / sqrt(squares / 3)


def shift_nat(chance: random.Random) -> float:
    """How far log-probabilities move from one run of an idle server to the next."""
    return SHIFT_NAT * exp(chance.gauss(0.0, 0.2))
