"""The learned model of one metric under one configuration: its load curve and its AR(1) noise, and
the canaries that they are learned from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.judge.drift.speed.curve import LoadCurve
from monitor.judge.drift.speed.curve_fit import add_missing, fit_curve, refine
from monitor.judge.drift.speed.load import MetricValue
from monitor.judge.drift.speed.metric import CHANNELS, HOUR_S, MetricContext
from monitor.judge.drift.speed.training import TrainingPoint, TrainingSet
from monitor.judge.drift.stats.ar1 import PRIOR_BLOCKS, Ar1Noise, fit_ar1
from monitor.judge.drift.stats.blocks import ResidualBlock
from monitor.judge.drift.stats.robust import huber_mean

# canaries too few for a block of their own wait this long for more: a probe may run once an hour
HOLD_S = 24 * HOUR_S
RETRY_BLOCKS = 12  # no load was met often enough yet: try again in an hour


@dataclass(slots=True)
class MetricModel:
    """Curve, noise, and when they are learned next."""

    training: TrainingSet = field(default_factory=TrainingSet)
    curve: LoadCurve | None = None
    noise: Ar1Noise = field(default_factory=lambda: Ar1Noise(0.9, 1e-5))
    # too few canaries for a block of their own: they join the next one
    held: list[MetricValue] = field(default_factory=list)
    held_index: int = 0
    learned_blocks: int = 0  # blocks without an open effect since learning began
    canaries: int = 0
    learned_canaries: int = 0  # how many of them the baseline was learned from
    outside: int = 0  # canaries that met an unknown load
    first_index: int = 0
    span: list[int] = field(default_factory=list)  # first and last block of the baseline
    next_fit: int = 0
    next_level: int = 0
    # the noise is learned some blocks after the level, since a step of the judge must be short
    noise_due: bool = False

    def count(self, canaries: int, is_open: bool) -> None:
        """Counts one block towards the learning time, unless an effect is open."""
        if not is_open:
            self.learned_blocks += 1
        self.canaries += canaries

    def residual_block(
        self, index: int, measured: Sequence[MetricValue], learning: bool, context: MetricContext
    ) -> ResidualBlock | None:
        """One block together with the canaries kept for it; None where too few canaries of
        known load came.
        """
        if self.held and (index - self.held_index) * context.block_s <= HOLD_S:
            measured = [*self.held, *measured]
        self.held = []
        ordered = sorted(measured, key=lambda m: (m.key, m.value, m.load.peers or 0.0))
        return self._block(index, ordered, learning, context.settings.block_samples)

    def _block(
        self, index: int, measured: Sequence[MetricValue], learning: bool, least: int
    ) -> ResidualBlock | None:
        """Residuals of the canaries whose load is known; the others are kept for learning."""
        curve = self.curve
        known: list[MetricValue] = []
        residuals: list[float] = []
        noises: list[float] = []
        error = 0.0
        for one in measured:
            expected = None if curve is None else curve.expected(one.key, one.load)
            if expected is not None:
                known.append(one)
                residuals.append(one.value - expected.value)
                noises.append(expected.noise)
                error += expected.error
            elif learning:
                self.training.add(TrainingPoint.of(index, one))
                self.outside += curve is not None
        if curve is None or not known:
            return None
        if len(known) < least:
            self.held, self.held_index = known, index
            return None
        mean, noise = huber_mean(residuals, noises)
        if learning and len(known) > 1:
            fair = math.sqrt(len(known) / (len(known) - 1))  # the mean holds the canary itself
            for one, residual, single in zip(known, residuals, noises, strict=True):
                curve.observe(one.key, one.load, fair * (residual - mean), single)
        noise = round(math.hypot(noise, error / len(known)), 6)
        return ResidualBlock(index, len(known), round(mean, 6), noise)

    def may_learn(self, index: int, context: MetricContext) -> bool:
        """Whether enough blocks over enough hours came, and it is this metric's turn."""
        s = context.settings
        if self.learned_blocks < s.learn_blocks:
            return False
        if self.curve and self.learned_blocks % CHANNELS != context.metric.turn:
            return False
        return (index - self.first_index + 1) * context.block_s >= s.learn_h * HOUR_S

    @property
    def level_is_due(self) -> bool:
        """Whether the level is to be learned before the curve is refined."""
        return self.curve is not None and self.next_level <= self.next_fit

    def learn_noise(self, blocks: Sequence[ResidualBlock], context: MetricContext) -> None:
        """Learns the AR(1) noise from these blocks."""
        self.noise, self.noise_due = fit_ar1(blocks, context.metric.least_noise_sd), False

    def fit_first(self, index: int, context: MetricContext) -> list[ResidualBlock] | None:
        """Learns the curve for the first time; the blocks of the canaries it was learned from, or
        None while no load is known.
        """
        self._set_next_fit(index, context)
        self.curve = fit_curve(self.training, context.settings.support_samples)
        if self.curve is None:
            self.next_fit = index + RETRY_BLOCKS
            return None
        blocks = self._training_blocks(context.settings.block_samples)
        self.training.forget_where(self.curve.knows)
        return blocks

    def refine(self, index: int, context: MetricContext) -> None:
        """Refines the curve by the deviations since the last time, and adds newly met loads."""
        if self.curve is None:
            return
        self._set_next_fit(index, context)
        s = context.settings
        refine(self.curve)
        self.training.forget_before(index - context.blocks(s.remember_days * 24))
        add_missing(self.curve, self.training, s.support_samples)

    def _set_next_fit(self, index: int, context: MetricContext) -> None:
        """The next day; after twice the time while there is less than a day."""
        learned = max(context.settings.learn_blocks, index - self.first_index + 1)
        self.next_fit = index + min(context.blocks(24), learned)

    def set_level(self, by: float, blocks: int, index: int, week: int) -> None:
        """Moves the levels of all probes, after `blocks` remembered blocks."""
        self.span = [max(self.first_index, index - week), index]
        self.next_level = index + min(week, index - self.first_index + 1)
        self.learned_canaries = self.canaries
        self.shift(by)
        self.noise_due = blocks >= PRIOR_BLOCKS

    def shift(self, by: float) -> None:
        """Moves the levels of all probes."""
        if self.curve is not None:
            self.curve.levels = {key: level + by for key, level in self.curve.levels.items()}

    def _training_blocks(self, least: int) -> list[ResidualBlock]:
        """The canaries kept for learning, as blocks."""
        grouped: dict[int, list[MetricValue]] = {}
        for point in self.training.points():
            measured = MetricValue(point.key, point.load, point.value)
            grouped.setdefault(point.block, []).append(measured)
        found: list[ResidualBlock] = []
        self.held = []
        for index, members in sorted(grouped.items()):
            held, self.held = self.held, []
            block = self._block(index, [*held, *members], True, least)
            found += [] if block is None else [block]
        self.held = []
        return found

    def rest(self) -> None:
        """Drops what is not needed while another configuration runs."""
        self.held = []
        self.training = TrainingSet()
        self.noise_due = False
