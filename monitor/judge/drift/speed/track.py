"""One metric under one configuration: its model, the judge of its residuals, and when which of them
learns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from monitor.judge.drift.evidence import Armed, Effect, Shift
from monitor.judge.drift.speed.drop_judge import DropJudge
from monitor.judge.drift.speed.load import MetricValue
from monitor.judge.drift.speed.metric import HOUR_S, MetricContext, MetricSpec
from monitor.judge.drift.speed.model import MetricModel
from monitor.judge.drift.speed.start_offsets import DEFAULT_SCATTER, START_BLOCKS, scatter_of
from monitor.model import Severity

NOW_BLOCKS = 6  # the present size of an effect: the last half hour


@dataclass(slots=True)
class MetricTrack:
    """State of one metric under one configuration."""

    model: MetricModel = field(default_factory=MetricModel)
    judge: DropJudge = field(default_factory=DropJudge)

    def close(
        self,
        index: int,
        measured: Sequence[MetricValue],
        process_start_us: int | None,
        context: MetricContext,
    ) -> None:
        """Processes one block. `measured` is of one process only."""
        if not measured:
            return
        model, judge = self.model, self.judge
        if not model.learned_blocks:
            model.first_index = index
        if judge.start(process_start_us, index, model.noise):
            model.held = []
        learning = judge.effect is None
        model.count(len(measured), not learning)
        block = model.residual_block(index, measured, learning, context)
        if block is not None:
            judge.judge(block, model.noise, context)
        if self._may_learn(index, context):
            self._learn(index, context)

    def _may_learn(self, index: int, context: MetricContext) -> bool:
        """Never while an effect is open or on its way."""
        if self.judge.effect is not None or not self.model.may_learn(index, context):
            return False
        return self.judge.evidence <= context.threshold / 3

    def _learn(self, index: int, context: MetricContext) -> None:
        """Learns the curve, the first time from kept canaries; then refines it every day, and
        learns level and noise after twice the time. One of these at a time, since a step of the
        judge must be short.
        """
        model = self.model
        if model.noise_due:
            model.learn_noise(self.judge.blocks, context)
        elif model.level_is_due and index >= model.next_level:
            self._set_level(index, context)
        elif index >= model.next_fit and model.curve is None:
            self._fit_first(index, context)
        elif index >= model.next_fit:
            model.refine(index, context)

    def _fit_first(self, index: int, context: MetricContext) -> None:
        model, judge = self.model, self.judge
        blocks = model.fit_first(index, context)
        if blocks is None:
            return
        judge.blocks = blocks
        self._set_level(index, context)
        model.learn_noise(judge.blocks, context)
        scatter = judge.drop_test.mean_spread(len(judge.blocks), 0.0, model.noise)
        judge.drop_test.restart(0.0, scatter, model.noise)

    def _set_level(self, index: int, context: MetricContext) -> None:
        """Makes the median of the remembered blocks the baseline."""
        blocks, week = self.judge.blocks, context.blocks(context.settings.remember_days * 24)
        by = median(b.residual for b in blocks) if blocks else 0.0
        self.model.set_level(by, len(blocks), index, week)
        self.judge.shift(by)

    def shift_since(self, index: int, until: int, metric: MetricSpec) -> Shift | None:
        """Change of the metric from its baseline in these blocks, whether or not an effect is open;
        None where nothing is known.
        """
        judge, noise = self.judge, self.model.noise
        level = judge.effect.level if judge.effect is not None else judge.drop_test.constant
        inside = [b for b in judge.blocks if index <= b.number <= until]
        if self.model.curve is None or not inside:
            return None
        change = metric.sign * (judge.mean(inside, noise) - level)
        return Shift.of_log(metric.name, change, judge.half_width(inside, noise))

    def as_effect(self, metric: MetricSpec, start_us: int, now_index: int) -> Effect | None:
        """The open effect at its present size. `start_us`: of the block of the onset."""
        effect = self.judge.effect
        if effect is None:
            return None
        shift = self.shift_since(max(effect.onset, now_index - NOW_BLOCKS + 1), now_index, metric)
        if shift is None:  # no comparable canary lately: its size when it was raised
            shift = Shift.of_log(metric.name, -metric.sign * effect.drop, effect.drop)
        large = metric.sign * math.log1p(max(-99.0, shift.change_pct) / 100.0) <= -metric.page
        return Effect(
            channel=metric.channel,
            shift=shift,
            since_us=start_us,
            severity=Severity.PAGE if large else Severity.WARNING,
            statistic={
                "evidence": effect.evidence,
                "threshold": effect.threshold,
                "blocks": now_index - effect.onset + 1,
            },
        )

    def armed(self, what: str, context: MetricContext) -> Armed:
        """Whether the baseline is learned."""
        model, s, block_s = self.model, context.settings, context.block_s
        if model.curve is None:
            hours = model.learned_blocks * block_s / HOUR_S
            needed = max(s.learn_h, s.learn_blocks * block_s / HOUR_S)
            return Armed(what, False, f"learning the baseline ({hours:.1f} of {needed:g} h)")
        hours = (model.span[1] - model.span[0] + 1) * block_s / HOUR_S
        learned = f"{model.learned_canaries} canaries, {hours:.0f} h"
        return Armed(what, True, f"baseline from {learned}, {model.curve.words()}")

    def relearn(self) -> None:
        """Makes the present level the baseline: that of the open effect, else of the last half
        hour. It is known no better than its blocks; curve and noise stay.
        """
        model, judge = self.model, self.judge
        if model.curve is None:
            return
        effect = judge.effect
        since = [b for b in judge.blocks if effect is not None and b.number >= effect.onset]
        judge.blocks = (
            since[-START_BLOCKS:] if len(since) >= NOW_BLOCKS else judge.blocks[-NOW_BLOCKS:]
        )
        judge.effect = None
        scatter = DEFAULT_SCATTER
        if judge.blocks:
            by = judge.mean(judge.blocks, model.noise)
            model.shift(by)
            judge.shift(by)
            model.first_index = judge.blocks[0].number
            model.next_level = judge.blocks[-1].number + START_BLOCKS
            scatter = judge.half_width(judge.blocks, model.noise) / 1.96
        model.noise_due = False  # its blocks are before the new baseline
        judge.restart(0.0, scatter, model.noise)

    def rest(self) -> None:
        """Keeps the baseline, and little else, while another configuration runs."""
        judge = self.judge
        judge.effect = None
        judge.blocks = judge.blocks[-START_BLOCKS:]
        self.model.rest()
        judge.restart(0.0, scatter_of(judge.starts)[0], self.model.noise)
