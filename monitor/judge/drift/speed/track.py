"""One metric of one configuration: what is normal, what is left of it block by block, and the
effect that is open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from monitor.judge.drift.evidence import Armed, Effect, Shift
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.drift.speed.effects import TURNS, Metric, OpenEffect, warning_threshold
from monitor.judge.drift.speed.load import Entry, Gathering, Load, Taken
from monitor.judge.drift.speed.offsets import (
    DEFAULT_SCATTER,
    LEAST_KNOWN,
    MOST_STARTS,
    START_BLOCKS,
    Start,
    scatter_of,
)
from monitor.judge.drift.stats.ar1 import USUAL_BLOCKS, fit_wander
from monitor.judge.drift.stats.blocks import Block, huber_mean
from monitor.judge.drift.stats.change_point import find_break
from monitor.judge.drift.stats.curve import LoadCurve
from monitor.judge.drift.stats.curve_fit import add_missing, fit_curve, refine
from monitor.judge.drift.stats.cusum import LevelCusum, Sizes, StepWatch, Wander
from monitor.model import Severity

HOUR_S = 3600.0
DATE_BLOCKS = 24  # the true onset is sought from two hours before the one that the tests found,
MOST_DATED = 72  # and at most in the last six hours
HOLD_S = (
    24 * HOUR_S
)  # canaries too few for a block of their own wait so long for more: a probe may run once an hour
RETRY_BLOCKS = 12  # no load was met often enough yet: again in an hour
LEVEL_BLOCKS, LEVEL_LEAST = 96, 6  # what was before an effect: eight hours, at least half an hour
NOW_BLOCKS = 6  # how large an effect is now: the last half hour
CONFIRM_BLOCKS = 3  # an effect must have lasted so many blocks,
CONFIRM_LARGE = 2  # one that takes a quarter so many
QUARTER = -math.log(0.75)


@dataclass(slots=True)
class Track:
    """State of one metric under one configuration."""

    gathered: Gathering = field(default_factory=Gathering)
    curve: LoadCurve | None = None
    model: Wander = field(default_factory=lambda: Wander(0.9, 1e-5))
    watch: StepWatch = field(default_factory=StepWatch)
    creep: LevelCusum = field(default_factory=LevelCusum)
    blocks: list[Block] = field(default_factory=list)
    effect: OpenEffect | None = None
    starts: list[Start] = field(default_factory=list)
    held: list[Taken] = field(
        default_factory=list
    )  # too few for a block of their own: they join the next
    held_index: int = 0
    learnt_blocks: int = 0  # since learning began
    canaries: int = 0
    learnt_canaries: int = 0  # how many of them the reference was learnt from
    outside: int = 0  # canaries that met a load that is not known
    first_index: int = 0
    span: list[int] = field(
        default_factory=list
    )  # first and last block the reference was learnt from
    next_fit: int = 0
    next_level: int = 0
    is_model_due: bool = False  # of the wander: what was learnt is some blocks older than the level

    def close(
        self,
        index: int,
        taken: Sequence[Taken],
        process_start_us: int | None,
        block_s: float,
        metric: Metric,
        s: DriftSettings,
    ) -> None:
        """Take in one block. `taken` is of one process only."""
        if not taken:
            return
        if not self.learnt_blocks:
            self.first_index = index
        self._begin(process_start_us, index)
        if self.effect is None:
            self.learnt_blocks += 1
        self.canaries += len(taken)
        if self.held and (index - self.held_index) * block_s <= HOLD_S:
            taken = [*self.held, *taken]
        self.held = []
        ordered = sorted(taken, key=lambda t: (t.key, t.value, t.load.mates or 0.0))
        block = self._block(index, ordered, s)
        if block is not None:
            self._judge(block, block_s, metric, s)
        if self._may_learn(index, block_s, metric, s):
            self._learn(index, block_s, metric, s)

    def _block(self, index: int, taken: Sequence[Taken], s: DriftSettings) -> Block | None:
        """The block's figure, by the canaries whose load is known; the others are kept for
        learning.
        """
        curve, learning = self.curve, self.effect is None
        known: list[Taken] = []
        left: list[float] = []
        noises: list[float] = []
        error = 0.0
        for t in taken:
            expected = None if curve is None else curve.expected(t.key, t.load)
            if expected is not None:
                known.append(t)
                left.append(t.value - expected.value)
                noises.append(expected.noise)
                error += expected.error
            elif learning:
                self.gathered.add(
                    Entry(
                        index,
                        t.key,
                        _short(t.load.mates),
                        _short(t.load.prompts),
                        round(t.value, 6),
                    )
                )
                self.outside += curve is not None
        if curve is None or not known:
            return None
        if len(known) < s.block_samples:
            self.held, self.held_index = known, index
            return None
        mean, noise = huber_mean(left, noises)
        if learning and len(known) > 1:
            fair = math.sqrt(len(known) / (len(known) - 1))  # the mean holds the canary itself
            for t, value, single in zip(known, left, noises, strict=True):
                curve.observe(t.key, t.load, fair * (value - mean), single)
        return Block(
            index, len(known), round(mean, 6), round(math.hypot(noise, error / len(known)), 6)
        )

    def _begin(self, process_start_us: int | None, index: int) -> None:
        """A process that was not seen before begins a constant of its own. A restart alone proves
        no cure of what is open.
        """
        if process_start_us is None or (
            self.starts and self.starts[-1].process_start_us == process_start_us
        ):
            return
        scatter, known = scatter_of(self.starts)
        self.held = []
        self.starts.append(Start(process_start_us, index))
        del self.starts[:-MOST_STARTS]
        if len(self.starts) == 1:  # the first that is known of
            return
        if self.effect is not None:
            self.effect.restarted(scatter if known >= LEAST_KNOWN else 0.0)
        else:
            self.watch.restart(0.0, scatter, self.model)
            self.creep = LevelCusum()

    def _judge(self, block: Block, block_s: float, metric: Metric, s: DriftSettings) -> None:
        self.blocks.append(block)
        oldest = block.number - round(s.remember_days * 24 * HOUR_S / block_s)
        while self.blocks[0].number < oldest:
            del self.blocks[0]
        if self.starts and self.starts[-1].blocks < START_BLOCKS:
            start = self.starts[-1]
            weight = 1.0 / (block.noise**2 + self.model.white + self.model.variance)
            start.blocks += 1
            start.weight += weight
            start.total += weight * block.residual
            if start.blocks == START_BLOCKS and self.effect is None:
                self.watch.settle()
        if self.effect is not None:
            single = block.noise**2 + self.model.white
            if self.effect.recovered(
                block.residual,
                single + self.model.long_run(),
                math.sqrt(self.model.variance),
                metric,
            ):
                self.watch.restart(
                    self.effect.level,
                    max(self.effect.slack, math.sqrt(self.watch.var_constant)),
                    self.model,
                )
                self.effect, self.creep = None, LevelCusum()
            return
        small, large = metric.drops
        self.watch.step(
            block.number,
            block.residual,
            block.noise,
            self.model,
            Sizes(small, large, small * block_s / HOUR_S),
        )
        single = block.noise**2 + self.model.white
        self.creep.step(
            block.number,
            block.residual - self.watch.constant,
            single + self.model.long_run(),
            small,
        )
        threshold = warning_threshold(s, block_s)
        onset = self.watch.likeliest()
        if self.watch.log_sum > threshold and onset is not None:
            self._raise(block, onset.block, onset.constant, self.watch.log_sum, threshold, metric)
        if self.effect is None and self.creep.total > threshold:
            self._raise(block, self.creep.since, 0.0, self.creep.total, threshold, metric)

    def _raise(
        self,
        block: Block,
        onset: int,
        swallowed: float,
        evidence: float,
        threshold: float,
        metric: Metric,
    ) -> None:
        """Open an effect, if it is large enough for anybody, has lasted, and has not gone away
        again.
        """
        since = [b for b in self.blocks if b.number >= onset]
        level = self._level_before(onset, swallowed, since)
        change = self._mean(since) - level
        if len(since) < (CONFIRM_LARGE if change < -QUARTER else CONFIRM_BLOCKS):
            return
        lately, last = self._mean(since[-CONFIRM_BLOCKS:]) - level, block.residual - level
        gone = lately > -metric.practical or last > -metric.practical / 2
        if gone or change > -metric.practical / 2 or change + self._half_width(since) > 0:
            return
        self.effect = OpenEffect(
            self._dated(onset), block.number, level, -lately, evidence, threshold
        )

    def _dated(self, onset: int) -> int:
        """The block with which it most likely began (dating.py), from some hours before the onset
        that the tests found until now.
        """
        first = self.starts[-1].first_index if self.starts else 0
        near = [b for b in self.blocks if b.number >= max(first, onset - DATE_BLOCKS)][-MOST_DATED:]
        variances = [b.noise**2 + self.model.white + self.model.variance for b in near]
        found = find_break([b.residual for b in near], variances)
        return onset if found is None else near[found.start].number

    @property
    def evidence(self) -> float:
        """How much speaks for an effect: the larger of the two tests, comparable with the
        threshold.
        """
        return max(self.watch.log_sum, self.creep.total)

    def _level_before(self, onset: int, swallowed: float, since: Sequence[Block]) -> float:
        """The level of this process before the onset: its constant, less the share of the drop that
        the filter took for it.

        A process whose constant is not known yet is told by its last hours before the onset, and
        one that dropped as soon as it began is compared with what is normal (zero).
        """
        start = self.starts[-1] if len(self.starts) > 1 else None
        if start is None or start.blocks >= START_BLOCKS or not swallowed:
            share = min(0.9, swallowed)
            return (self.watch.constant - self._mean(since) * share) / (1.0 - share)
        ahead = [b for b in self.blocks if start.first_index <= b.number < onset][-LEVEL_BLOCKS:]
        return self._mean(ahead) if len(ahead) >= LEVEL_LEAST else 0.0

    def _mean(self, blocks: Sequence[Block]) -> float:
        spreads = [math.sqrt(b.noise**2 + self.model.white + self.model.variance) for b in blocks]
        return huber_mean([b.residual for b in blocks], spreads)[0]

    def _half_width(self, blocks: Sequence[Block]) -> float:
        return 1.96 * self.watch.mean_spread(
            len(blocks), fmean([b.noise for b in blocks]), self.model
        )

    def _may_learn(self, index: int, block_s: float, metric: Metric, s: DriftSettings) -> bool:
        if (
            self.effect is not None
            or self.learnt_blocks < s.learn_blocks
            or (self.curve and self.learnt_blocks % TURNS != metric.turn)
        ):
            return False
        long_enough = (index - self.first_index + 1) * block_s >= s.learn_h * HOUR_S
        return long_enough and self.evidence <= warning_threshold(s, block_s) / 3

    def _learn(self, index: int, block_s: float, metric: Metric, s: DriftSettings) -> None:
        """Learn what is normal, the first time from what was gathered; then refine it every day,
        and its level and wander after twice the time. One of these at a time: a step of the judge
        must be short.
        """
        day, week = round(24 * HOUR_S / block_s), round(s.remember_days * 24 * HOUR_S / block_s)
        if self.is_model_due:
            self.model, self.is_model_due = fit_wander(self.blocks, metric.least_wander), False
        elif self.curve is not None and index >= self.next_level <= self.next_fit:
            self._set_level(index, week)
            self.is_model_due = len(self.blocks) >= USUAL_BLOCKS
        elif index >= self.next_fit:
            self.next_fit = index + min(day, max(s.learn_blocks, index - self.first_index + 1))
            if self.curve is None:
                self._fit_first(index, week, metric, s)
                return
            refine(self.curve)
            self.gathered.forget_before(index - week)
            add_missing(self.curve, self.gathered, s.support_samples)

    def _fit_first(self, index: int, week: int, metric: Metric, s: DriftSettings) -> None:
        self.curve = fit_curve(self.gathered, s.support_samples)
        if self.curve is None:
            self.next_fit = index + RETRY_BLOCKS
            return
        self.blocks = self._blocks_gathered(s)
        self.gathered.forget_where(self.curve.knows)
        self._set_level(index, week)
        self.model = fit_wander(self.blocks, metric.least_wander)
        self.watch.restart(
            0.0, self.watch.mean_spread(len(self.blocks), 0.0, self.model), self.model
        )

    def _set_level(self, index: int, week: int) -> None:
        """What is normal is the middle of what is remembered."""
        self.span = [max(self.first_index, index - week), index]
        self.next_level = index + min(week, index - self.first_index + 1)
        self.learnt_canaries = self.canaries
        self._shift(median(b.residual for b in self.blocks) if self.blocks else 0.0)

    def _blocks_gathered(self, s: DriftSettings) -> list[Block]:
        grouped: dict[int, list[Taken]] = {}
        for entry in self.gathered.entries():
            grouped.setdefault(entry.block, []).append(
                Taken(entry.key, Load(entry.mates, entry.prompts), entry.value)
            )
        found: list[Block] = []
        self.held = []
        for index, taken in sorted(grouped.items()):
            held, self.held = self.held, []
            block = self._block(index, [*held, *taken], s)
            found += [] if block is None else [block]
        self.held = []
        return found

    def _shift(self, by: float) -> None:
        """The level is another one: what was measured against the old one moves along."""
        if self.curve is not None:
            self.curve.levels = {key: level + by for key, level in self.curve.levels.items()}
        self.blocks = [
            Block(number, n, round(residual - by, 6), noise)
            for number, n, residual, noise in self.blocks
        ]
        self.watch.constant -= by
        for start in self.starts:
            start.total -= by * start.weight

    def shift_since(self, index: int, until: int, metric: Metric) -> Shift | None:
        """How much the metric differs from normal in these blocks, whether or not an effect is
        open; None where nothing is known.
        """
        level = self.effect.level if self.effect is not None else self.watch.constant
        inside = [b for b in self.blocks if index <= b.number <= until]
        if self.curve is None or not inside:
            return None
        return Shift.of_log(
            metric.name, metric.sign * (self._mean(inside) - level), self._half_width(inside)
        )

    def as_effect(self, metric: Metric, start_us: int, now_index: int) -> Effect | None:
        """What is open, as it stands now. `start_us`: of the block of the onset."""
        effect = self.effect
        if effect is None:
            return None
        shift = self.shift_since(max(effect.onset, now_index - NOW_BLOCKS + 1), now_index, metric)
        if shift is None:  # nothing comparable lately: as it was when it was raised
            shift = Shift.of_log(metric.name, -metric.sign * effect.drop, effect.drop)
        large = metric.sign * math.log1p(max(-99.0, shift.change_pct) / 100.0) <= -metric.page
        statistic = {
            "evidence": effect.evidence,
            "threshold": effect.threshold,
            "blocks": now_index - effect.onset + 1,
        }
        return Effect(
            metric.channel, shift, start_us, Severity.PAGE if large else Severity.WARNING, statistic
        )

    def armed(self, what: str, block_s: float, s: DriftSettings) -> Armed:
        """Whether it works yet."""
        if self.curve is None:
            hours, needed = (
                self.learnt_blocks * block_s / HOUR_S,
                max(s.learn_h, s.learn_blocks * block_s / HOUR_S),
            )
            return Armed(
                what, False, f"learns what is normal: {hours:.1f} of {needed:g} hours with canaries"
            )
        hours = (self.span[1] - self.span[0] + 1) * block_s / HOUR_S
        return Armed(
            what,
            True,
            f"learnt from {self.learnt_canaries} canaries, {hours:.0f} hours, {self.curve.words()}",
        )

    def relearn(self) -> None:
        """What is now is normal: the level moves to that of the effect that is open, else to the
        last half hour's, and is known no better than their blocks tell; curve and noise stay.
        """
        if self.curve is None:
            return
        since = [
            b for b in self.blocks if self.effect is not None and b.number >= self.effect.onset
        ]
        self.blocks = (
            since[-START_BLOCKS:] if len(since) >= NOW_BLOCKS else self.blocks[-NOW_BLOCKS:]
        )
        self.effect = None
        if self.blocks:
            self._shift(self._mean(self.blocks))
            self.first_index = self.blocks[0].number
            self.next_level = self.blocks[-1].number + START_BLOCKS
        self.is_model_due = False  # of what was before
        scatter = self._half_width(self.blocks) / 1.96 if self.blocks else DEFAULT_SCATTER
        self.watch.restart(0.0, scatter, self.model)
        self.creep = LevelCusum()

    def rest(self) -> None:
        """Another configuration runs: keep what is normal under this one, and little else."""
        self.effect = None
        self.blocks = self.blocks[-START_BLOCKS:]
        self.held = []
        self.gathered = Gathering()
        self.is_model_due = False
        self.watch.restart(0.0, scatter_of(self.starts)[0], self.model)
        self.creep = LevelCusum()


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
