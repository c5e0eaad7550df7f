"""Sequential tests: is a lasting change more than noise, and since when? Thresholds follow from how
rare a false alarm must be.

`StepWatch` watches block residuals r = w + o + e: a slow wander w (an AR(1) in blocks), a constant
o of the running process, and the sampling noise e of the block. A Kalman filter predicts the next
residual; what is left over is white, so likelihood ratios of its steps multiply (Willsky and Jones
1976). For every block in which a drop may have begun and for each size looked for, the ratio
"dropped since then" over "nothing happened" is carried on; their sum is the Shiryaev-Roberts
statistic, whose mean time to a false alarm is at least its threshold (Pollak 1985; Shin, Ramdas,
Rinaldo 2022). Innovations enter with Huber's density, whose tails are exponential: one wild block
is no proof. This uses what a plain CUSUM on block means throws away: a wander of 40 minutes cannot
drop by 3 % within one block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.settings import DriftSettings

MONTH_S = 30 * 86_400.0
TAIL = 2.0  # Huber's density is normal up to so many standard deviations, exponential beyond
TAIL_LESS = 0.5 * TAIL * TAIL
CLIP = 3.0  # so far a single block moves the filter
FORGET = (
    -4.0
)  # an onset with less log-likelihood than this adds nothing to a sum that must reach e^12
SETTLED = 0.001  # how well the constant of a process is known in the end, as a logarithm
MOST = 500.0  # exp of more than this is no number
MOST_ONSETS = 72  # six hours of blocks


class Wander(NamedTuple):
    """How the residual of a healthy server moves by itself."""

    phi: float  # correlation from block to block
    variance: float  # of the slow wander
    white: float = (
        0.0  # variance from block to block beyond what the scatter of single canaries explains
    )

    def long_run(self) -> float:
        """Variance of the mean of many blocks, times their number: neighbours wander together."""
        return self.variance * (1 + self.phi) / (1 - self.phi)


class Onset(NamedTuple):
    """A loss that may have begun in a block: how far the filter has followed it, and the
    log-likelihood ratio of each shape.

    Three shapes: a step of the small size, a step of the large size, and a ramp of the small size
    an hour.
    """

    block: int
    wander: float  # share of a step that the filter's wander has swallowed
    constant: float  # likewise its constant
    ramp_wander: float  # of the ramp, as a logarithm
    ramp_constant: float
    small: float
    large: float
    ramp: float

    @property
    def best(self) -> float:
        """The largest of the three."""
        return max(self.small, self.large, self.ramp)


NEW = Onset(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Sizes(NamedTuple):
    """What is looked for, as positive logarithms: two steps, and the growth of a ramp in one
    block.
    """

    small: float
    large: float
    growth: float


@dataclass(slots=True)
class StepWatch:
    """Looks for a lasting drop in block residuals. State is a filter of two values and the onsets
    that are still possible.
    """

    index: int | None = None  # the last block
    wander: float = 0.0
    constant: float = 0.0
    var_wander: float = 0.0
    var_both: float = 0.0
    var_constant: float = 0.0
    onsets: list[Onset] = field(default_factory=list)
    log_sum: float = FORGET  # of the Shiryaev-Roberts statistic

    def restart(self, constant: float, scatter: float, model: Wander) -> None:
        """A new process: its constant is unknown within the scatter of starts; whatever was
        suspected is forgotten.
        """
        self.wander, self.constant = 0.0, constant
        self.var_wander, self.var_both, self.var_constant = model.variance, 0.0, scatter * scatter
        self.onsets, self.log_sum = [], FORGET

    def settle(self) -> None:
        """The constant of this process is known now: what moves from here on is no part of it."""
        self.var_constant, self.var_both = min(self.var_constant, SETTLED**2), 0.0

    def step(self, index: int, residual: float, noise: float, model: Wander, sizes: Sizes) -> None:
        """One more block. `noise` is the standard deviation of its sampling."""
        decay = model.phi ** (1 if self.index is None else max(1, index - self.index))
        self.index = index
        self.wander *= decay
        self.var_wander = decay * decay * self.var_wander + model.variance * (1 - decay * decay)
        self.var_both *= decay
        seen_wander, seen_constant = (
            self.var_wander + self.var_both,
            self.var_both + self.var_constant,
        )
        spread = math.sqrt(seen_wander + seen_constant + noise * noise + model.white)
        surprise = (residual - self.wander - self.constant) / spread
        gain_wander, gain_constant = seen_wander / spread**2, seen_constant / spread**2
        self._weigh(index, surprise, spread, (decay, gain_wander, gain_constant), sizes)
        moved = max(-CLIP, min(CLIP, surprise)) * spread
        self.wander += gain_wander * moved
        self.constant += gain_constant * moved
        self.var_wander -= gain_wander * seen_wander
        self.var_both -= gain_wander * seen_constant
        self.var_constant -= gain_constant * seen_constant

    def _weigh(
        self,
        index: int,
        surprise: float,
        spread: float,
        filter_: tuple[float, float, float],
        sizes: Sizes,
    ) -> None:
        """Carry every possible onset on by one block, begin a new one, and drop those that cannot
        matter.
        """
        decay, gain_wander, gain_constant = filter_
        nothing = _huber(surprise)
        step_small, step_large, growth = sizes.small / spread, sizes.large / spread, sizes.growth
        exp, most = math.exp, sizes.large
        kept: list[Onset] = []
        total = 0.0
        # The inmost loop of a replay: Huber's density and the bounds are written out.
        for block, gone, constant, ramp_gone, ramp_constant, was_small, was_large, was_ramp in (
            *self.onsets,
            NEW._replace(block=index),
        ):
            wander, ramp_wander = gone * decay, ramp_gone * decay
            left = 1.0 - wander - constant
            grown = (index - block + 1) * growth
            ramp_left = min(most, grown) - ramp_wander - ramp_constant
            z = abs(surprise + step_small * left)
            small = was_small + nothing - (0.5 * z * z if z <= TAIL else TAIL * z - TAIL_LESS)
            z = abs(surprise + step_large * left)
            large = was_large + nothing - (0.5 * z * z if z <= TAIL else TAIL * z - TAIL_LESS)
            z = abs(surprise + ramp_left / spread)
            ramp = was_ramp + nothing - (0.5 * z * z if z <= TAIL else TAIL * z - TAIL_LESS)
            if small > FORGET or large > FORGET or ramp > FORGET:
                swallowed, ramp_swallowed = (
                    wander + gain_wander * left,
                    ramp_wander + gain_wander * ramp_left,
                )
                following, ramp_following = (
                    constant + gain_constant * left,
                    ramp_constant + gain_constant * ramp_left,
                )
                kept.append(
                    Onset(
                        block,
                        swallowed,
                        following,
                        ramp_swallowed,
                        ramp_following,
                        small,
                        large,
                        ramp,
                    )
                )
                total += exp(min(MOST, small)) + exp(min(MOST, large)) + exp(min(MOST, ramp))
        if len(kept) > MOST_ONSETS:
            kept.remove(min(kept, key=lambda onset: onset.best))
        self.onsets = kept
        self.log_sum = math.log(total / 3.0) if total > 0 else FORGET

    def likeliest(self) -> Onset | None:
        """The onset that explains the residuals best."""
        return max(self.onsets, key=lambda onset: onset.best, default=None)

    def mean_spread(self, blocks: int, noise: float, model: Wander) -> float:
        """Standard deviation of the mean of so many blocks about the true level, wander and the
        process's constant included.
        """
        phi, n = model.phi, max(1, blocks)
        correlated = 1.0 + 2.0 * sum((1 - k / n) * phi**k for k in range(1, n))
        return math.sqrt(
            (model.variance * correlated + noise * noise + model.white) / n + self.var_constant
        )


def _huber(z: float) -> float:
    """Minus the log of Huber's density, up to a constant."""
    size = abs(z)
    return 0.5 * z * z if size <= TAIL else TAIL * size - TAIL_LESS


@dataclass(slots=True)
class LevelCusum:
    """CUSUM for a level below normal, by the long-run variance: finds what crept in so slowly that
    the filter followed it.

    S = max(0, S + drop (-r - drop/2) / v) (Page 1954, as a log-likelihood ratio), v = sampling
    variance + long-run variance of the wander.
    """

    total: float = 0.0
    since: int = 0  # the block after S was last zero: the onset by maximum likelihood

    def step(self, index: int, residual: float, variance: float, drop: float) -> None:
        """One more block; a residual counts for at most four standard deviations beyond the
        drop.
        """
        limit = 4.0 * math.sqrt(variance) + drop
        gain = drop * (-max(-limit, min(limit, residual)) - drop / 2) / variance
        if self.total <= 0.0:
            self.since = index
        self.total = max(0.0, self.total + gain)


def log_threshold(per_month: float, step_s: float, detectors: int) -> float:
    """ln(mean time to a false alarm in steps x number of detectors), for so many false alarms a
    month of all of them together.

    iid: an LLR-CUSUM with threshold h has a mean time to false alarm of at least e^h steps (Lorden
    1971); Shiryaev-Roberts keeps it by design (Pollak 1985). 0.05 a month, blocks of 300 s and six
    detectors make 13.9; 0.3 a month 12.1.
    """
    return math.log(max(1.0, MONTH_S / max(per_month, 1e-6) / step_s) * detectors)


def warnings_per_month(settings: DriftSettings) -> float:
    """False warnings a month: a warning wakes nobody, so it may cost six times as many as a page
    (0.3 where pages may cost 0.05).
    """
    return 6.0 * settings.false_alarms_per_month


@dataclass(slots=True)
class ExceedanceTest:
    """Shiryaev-Roberts e-detector on yes/no observations: is the chance of a yes still at most
    `base`? One sum for each alternative.

    For every alternative M = (1 + M) x likelihood ratio; their weighted mean crosses 1/alpha at the
    earliest after 1/alpha observations on average, whatever their dependence, as long as each has
    at most the base chance given its past (Shin, Ramdas, Rinaldo 2022).
    """

    sums: list[float] = field(default_factory=list)

    def step(self, exceeded: bool, base: float, alternatives: Sequence[float]) -> None:
        """One more observation."""
        before = self.sums or [0.0] * len(alternatives)
        if exceeded:
            self.sums = [
                min(1e300, (1.0 + m) * p / base) for m, p in zip(before, alternatives, strict=True)
            ]
        else:
            rest = 1.0 - base
            self.sums = [
                (1.0 + m) * (1.0 - p) / rest for m, p in zip(before, alternatives, strict=True)
            ]

    def log_evidence(self, weights: Sequence[float]) -> float:
        """ln of the weighted mean over the alternatives."""
        mean = sum(m * w for m, w in zip(self.sums, weights, strict=False))
        return math.log(mean) if mean > 0 else -math.inf
