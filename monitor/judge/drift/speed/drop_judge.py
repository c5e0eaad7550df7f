"""Judges the residual blocks of one metric: the two sequential tests, the starts of the process,
and the effect that is open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from monitor.judge.drift.speed.metric import HOUR_S, MetricContext
from monitor.judge.drift.speed.open_effect import OpenEffect
from monitor.judge.drift.speed.start_offsets import (
    LEAST_KNOWN,
    MOST_STARTS,
    START_BLOCKS,
    StartMean,
    scatter_of,
)
from monitor.judge.drift.stats.ar1 import Ar1Noise
from monitor.judge.drift.stats.blocks import ResidualBlock
from monitor.judge.drift.stats.change_point import find_break
from monitor.judge.drift.stats.drops import DropSizes, DropTest
from monitor.judge.drift.stats.robust import huber_mean
from monitor.judge.drift.stats.sequential import LevelCusum

DATE_BLOCKS = 24  # the true onset is looked for from two hours before the one that the tests found,
MOST_DATED = 72  # and at most in the last six hours
# the level before an effect: eight hours, at least half an hour
LEVEL_BLOCKS, LEVEL_LEAST = 96, 6
CONFIRM_BLOCKS = 3  # an effect must have lasted this many blocks,
CONFIRM_LARGE = 2  # or this many where it takes a quarter
QUARTER = -math.log(0.75)
MOST_ABSORBED = 0.9  # share of a drop that the filter may have taken for the constant


@dataclass(slots=True)
class DropJudge:
    """State of the tests on one metric."""

    drop_test: DropTest = field(default_factory=DropTest)
    cusum: LevelCusum = field(default_factory=LevelCusum)
    blocks: list[ResidualBlock] = field(default_factory=list)
    effect: OpenEffect | None = None
    starts: list[StartMean] = field(default_factory=list)

    @property
    def evidence(self) -> float:
        """Log evidence for an effect: the larger of the two tests, comparable with the
        threshold.
        """
        return max(self.drop_test.log_sum, self.cusum.total)

    def start(self, process_start_us: int | None, index: int, noise: Ar1Noise) -> bool:
        """Begins a constant for a process that was not seen before; whether it did. A restart alone
        does not close an open effect.
        """
        known_us = self.starts[-1].process_start_us if self.starts else None
        if process_start_us is None or process_start_us == known_us:
            return False
        scatter, known = scatter_of(self.starts)
        self.starts.append(StartMean(process_start_us, index))
        del self.starts[:-MOST_STARTS]
        if len(self.starts) == 1:  # the first known process
            return True
        if self.effect is not None:
            self.effect.restarted(scatter if known >= LEAST_KNOWN else 0.0)
        else:
            self.restart(0.0, scatter, noise)
        return True

    def restart(self, constant: float, scatter: float, noise: Ar1Noise) -> None:
        """Restarts both tests."""
        self.drop_test.restart(constant, scatter, noise)
        self.cusum = LevelCusum()

    def judge(self, block: ResidualBlock, noise: Ar1Noise, context: MetricContext) -> None:
        """Processes one block."""
        self.blocks.append(block)
        oldest = block.number - context.blocks(context.settings.remember_days * 24)
        while self.blocks[0].number < oldest:
            del self.blocks[0]
        self._add_to_start(block, noise)
        if self.effect is not None:
            self._judge_recovery(block, self.effect, noise, context)
            return
        self._test(block, noise, context)
        threshold = context.threshold
        onset = self.drop_test.likeliest()
        if self.drop_test.log_sum > threshold and onset is not None:
            self._raise(block, onset.block, onset.constant, noise, context)
        if self.effect is None and self.cusum.total > threshold:
            self._raise(block, self.cusum.since, None, noise, context)

    def _add_to_start(self, block: ResidualBlock, noise: Ar1Noise) -> None:
        if not self.starts or self.starts[-1].blocks >= START_BLOCKS:
            return
        start = self.starts[-1]
        start.add(block.residual, noise.of_block(block.noise))
        if start.blocks == START_BLOCKS and self.effect is None:
            self.drop_test.settle()

    def _judge_recovery(
        self, block: ResidualBlock, effect: OpenEffect, noise: Ar1Noise, context: MetricContext
    ) -> None:
        """Closes the effect when the metric has recovered."""
        variance = block.noise**2 + noise.white + noise.long_run()
        noise_sd = math.sqrt(noise.variance)
        if effect.recovered(block.residual, variance, noise_sd, context.metric):
            scatter = max(effect.slack, math.sqrt(self.drop_test.var_constant))
            self.restart(effect.level, scatter, noise)
            self.effect = None

    def _test(self, block: ResidualBlock, noise: Ar1Noise, context: MetricContext) -> None:
        small, large = context.metric.drops
        sizes = DropSizes(small, large, small * context.block_s / HOUR_S)
        self.drop_test.step(block.number, block.residual, block.noise, noise, sizes)
        residual = block.residual - self.drop_test.constant
        variance = block.noise**2 + noise.white + noise.long_run()
        self.cusum.step(block.number, residual, variance, small)

    def _raise(
        self,
        block: ResidualBlock,
        onset: int,
        absorbed: float | None,
        noise: Ar1Noise,
        context: MetricContext,
    ) -> None:
        """Opens an effect, if it has a practical size, has lasted, and is not gone again.

        `absorbed`: share of the drop that the filter took for the constant; None for the CUSUM.
        """
        since = [b for b in self.blocks if b.number >= onset]
        level = self._level_before(onset, absorbed or 0.0, since, noise)
        change, practical = self.mean(since, noise) - level, context.metric.practical
        if len(since) < (CONFIRM_LARGE if change < -QUARTER else CONFIRM_BLOCKS):
            return
        recent, last = self.mean(since[-CONFIRM_BLOCKS:], noise) - level, block.residual - level
        gone = recent > -practical or last > -practical / 2
        if gone or change > -practical / 2 or change + self.half_width(since, noise) > 0:
            return
        self.effect = OpenEffect(
            onset=self._dated(onset, noise),
            raised=block.number,
            level=level,
            drop=-recent,
            evidence=self.cusum.total if absorbed is None else self.drop_test.log_sum,
            threshold=context.threshold,
        )

    def _dated(self, onset: int, noise: Ar1Noise) -> int:
        """The block with which it most likely began, by the break in the residuals from some hours
        before the onset that the tests found until now.
        """
        first = self.starts[-1].first_index if self.starts else 0
        near = [b for b in self.blocks if b.number >= max(first, onset - DATE_BLOCKS)][-MOST_DATED:]
        variances = [noise.of_block(b.noise) for b in near]
        found = find_break([b.residual for b in near], variances)
        return onset if found is None else near[found.start].number

    def _level_before(
        self, onset: int, absorbed: float, since: Sequence[ResidualBlock], noise: Ar1Noise
    ) -> float:
        """Level of this process before the onset: its constant, less the share of the drop that the
        filter absorbed into it.

        For a process whose constant is not known yet it is the mean of its last hours before the
        onset; one that dropped as soon as it began is compared with the baseline (zero).
        """
        start = self.starts[-1] if len(self.starts) > 1 else None
        if start is None or start.blocks >= START_BLOCKS or not absorbed:
            share = min(MOST_ABSORBED, absorbed)
            return (self.drop_test.constant - self.mean(since, noise) * share) / (1.0 - share)
        ahead = [b for b in self.blocks if start.first_index <= b.number < onset][-LEVEL_BLOCKS:]
        return self.mean(ahead, noise) if len(ahead) >= LEVEL_LEAST else 0.0

    def mean(self, blocks: Sequence[ResidualBlock], noise: Ar1Noise) -> float:
        """Robust mean of blocks."""
        spreads = [math.sqrt(noise.of_block(b.noise)) for b in blocks]
        return huber_mean([b.residual for b in blocks], spreads)[0]

    def half_width(self, blocks: Sequence[ResidualBlock], noise: Ar1Noise) -> float:
        """Half width of the 95 % interval of their mean."""
        sampling = fmean([b.noise for b in blocks])
        return 1.96 * self.drop_test.mean_spread(len(blocks), sampling, noise)

    def shift(self, by: float) -> None:
        """Moves everything that was measured against the old level."""
        self.blocks = [
            block._replace(residual=round(block.residual - by, 6)) for block in self.blocks
        ]
        self.drop_test.constant -= by
        for start in self.starts:
            start.total -= by * start.weight
