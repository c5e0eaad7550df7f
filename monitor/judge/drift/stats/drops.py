"""Sequential test for a lasting drop in block residuals (Shiryaev-Roberts), and since when.

Block residuals are r = w + o + e: AR(1) noise w, a constant o of the running process, and the
sampling noise e of the block. A Kalman filter predicts the next residual; its innovations are
white, so likelihood ratios of its steps multiply (Willsky and Jones 1976). For every block in which
a drop may have begun and for each size looked for, the ratio "dropped since then" over "nothing
happened" is carried on; their sum is the Shiryaev-Roberts statistic, whose mean time to a false
alarm is at least its threshold (Pollak 1985; Shin, Ramdas, Rinaldo 2022). Innovations enter with
Huber's density, whose tails are exponential: one outlying block is no evidence. This uses what
a plain CUSUM on block means discards: noise with a correlation time of 40 minutes cannot drop by
3 % within one block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.stats.ar1 import Ar1Noise

TAIL = 2.0  # Huber's density is normal up to this many standard deviations, exponential beyond
TAIL_OFFSET = 0.5 * TAIL * TAIL
CLIP = 3.0  # standard deviations by which a single block moves the filter at most
# an onset with less log-likelihood than this adds nothing to a sum that must reach e^12
NEGLIGIBLE = -4.0
SETTLED = 0.001  # how well the constant of a process is known in the end, as a logarithm
MOST_LOG = 500.0  # exp of more than this overflows
MOST_ONSETS = 72  # six hours of blocks


class CandidateOnset(NamedTuple):
    """A block in which a loss may have begun: how far the filter has followed the loss, and the
    log-likelihood ratio of each shape.

    Three shapes: a step of the small size, a step of the large size, and a ramp of the small size
    per hour.
    """

    block: int
    noise: float  # share of a step that the filter took for AR(1) noise
    constant: float  # share that it took for the constant
    ramp_noise: float  # the same of the ramp, as logarithms
    ramp_constant: float
    small: float
    large: float
    ramp: float

    @property
    def best(self) -> float:
        """The largest of the three log-likelihood ratios."""
        return max(self.small, self.large, self.ramp)


class DropSizes(NamedTuple):
    """Sizes looked for, as positive logarithms: two steps, and the growth of a ramp per block."""

    small: float
    large: float
    growth: float


class Gain(NamedTuple):
    """One step of the filter: decay of the AR(1) noise, and the Kalman gains."""

    decay: float
    noise: float
    constant: float


@dataclass(slots=True)
class DropTest:
    """Kalman filter of two values, and the candidate onsets."""

    index: int | None = None  # the last block
    noise: float = 0.0  # estimate of the AR(1) noise
    constant: float = 0.0  # estimate of the constant of the process
    var_noise: float = 0.0
    covariance: float = 0.0
    var_constant: float = 0.0
    onsets: list[CandidateOnset] = field(default_factory=list)
    log_sum: float = NEGLIGIBLE  # of the Shiryaev-Roberts statistic

    def restart(self, constant: float, scatter: float, model: Ar1Noise) -> None:
        """Begins again for a new process, whose constant is known to within the scatter of
        starts.
        """
        self.noise, self.constant = 0.0, constant
        self.var_noise, self.covariance, self.var_constant = model.variance, 0.0, scatter * scatter
        self.onsets, self.log_sum = [], NEGLIGIBLE

    def settle(self) -> None:
        """Fixes the constant of this process: later movements are no part of it."""
        self.var_constant, self.covariance = min(self.var_constant, SETTLED**2), 0.0

    def step(
        self, index: int, residual: float, noise: float, model: Ar1Noise, sizes: DropSizes
    ) -> None:
        """Processes one block. `noise` is the standard deviation of its sampling."""
        decay = model.phi ** (1 if self.index is None else max(1, index - self.index))
        self.index = index
        self.noise *= decay
        self.var_noise = decay * decay * self.var_noise + model.variance * (1 - decay * decay)
        self.covariance *= decay
        of_noise = self.var_noise + self.covariance
        of_constant = self.covariance + self.var_constant
        spread = math.sqrt(of_noise + of_constant + noise * noise + model.white)
        innovation = (residual - self.noise - self.constant) / spread
        gain = Gain(decay, of_noise / spread**2, of_constant / spread**2)
        self._weigh(index, innovation, spread, gain, sizes)
        moved = max(-CLIP, min(CLIP, innovation)) * spread
        self.noise += gain.noise * moved
        self.constant += gain.constant * moved
        self.var_noise -= gain.noise * of_noise
        self.covariance -= gain.noise * of_constant
        self.var_constant -= gain.constant * of_constant

    def _weigh(
        self, index: int, innovation: float, spread: float, gain: Gain, sizes: DropSizes
    ) -> None:
        """Carries every candidate onset on by one block, adds a new one, and drops those that
        cannot matter.
        """
        decay, gain_noise, gain_constant = gain
        unchanged = _huber(innovation)
        step_small, step_large, growth = sizes.small / spread, sizes.large / spread, sizes.growth
        exp, most = math.exp, sizes.large
        kept: list[CandidateOnset] = []
        total = 0.0
        new = CandidateOnset(index, *NO_EVIDENCE)
        # The innermost loop of a replay: Huber's density and the bounds are written out.
        for block, noise, constant, ramp_noise, ramp_constant, small, large, ramp in (
            *self.onsets,
            new,
        ):
            noise, ramp_noise = noise * decay, ramp_noise * decay  # noqa: PLW2901
            left = 1.0 - noise - constant
            ramp_left = min(most, (index - block + 1) * growth) - ramp_noise - ramp_constant
            z = abs(innovation + step_small * left)
            small = small + unchanged - (0.5 * z * z if z <= TAIL else TAIL * z - TAIL_OFFSET)  # noqa: PLW2901
            z = abs(innovation + step_large * left)
            large = large + unchanged - (0.5 * z * z if z <= TAIL else TAIL * z - TAIL_OFFSET)  # noqa: PLW2901
            z = abs(innovation + ramp_left / spread)
            ramp = ramp + unchanged - (0.5 * z * z if z <= TAIL else TAIL * z - TAIL_OFFSET)  # noqa: PLW2901
            if small > NEGLIGIBLE or large > NEGLIGIBLE or ramp > NEGLIGIBLE:
                values = (
                    block,
                    noise + gain_noise * left,
                    constant + gain_constant * left,
                    ramp_noise + gain_noise * ramp_left,
                    ramp_constant + gain_constant * ramp_left,
                    small,
                    large,
                    ramp,
                )
                kept.append(CandidateOnset._make(values))
                total += (
                    exp(min(MOST_LOG, small)) + exp(min(MOST_LOG, large)) + exp(min(MOST_LOG, ramp))
                )
        if len(kept) > MOST_ONSETS:
            kept.remove(min(kept, key=lambda onset: onset.best))
        self.onsets = kept
        self.log_sum = math.log(total / 3.0) if total > 0 else NEGLIGIBLE

    def likeliest(self) -> CandidateOnset | None:
        """The onset that explains the residuals best."""
        return max(self.onsets, key=lambda onset: onset.best, default=None)

    def mean_spread(self, blocks: int, noise: float, model: Ar1Noise) -> float:
        """Standard deviation of the mean of this many blocks about the true level, AR(1) noise and
        the constant of the process included.
        """
        phi, n = model.phi, max(1, blocks)
        correlated = 1.0 + 2.0 * sum((1 - k / n) * phi**k for k in range(1, n))
        return math.sqrt(
            (model.variance * correlated + noise * noise + model.white) / n + self.var_constant
        )


NO_EVIDENCE = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _huber(z: float) -> float:
    """Minus the log of Huber's density, up to a constant."""
    size = abs(z)
    return 0.5 * z * z if size <= TAIL else TAIL * size - TAIL_OFFSET
