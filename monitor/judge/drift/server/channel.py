"""The server's own figures between canaries: batch, queue, cache, steps, acceptance, and the prompt
length of its users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from monitor.judge.drift.evidence import Armed, Pair, ServerComparison
from monitor.judge.drift.server.blocks import (
    ServerBlock,
    ServerCanary,
    block_of,
    merge,
    prompt_length,
)
from monitor.judge.drift.settings import DAY_US, HOUR_US, DriftSettings
from monitor.judge.drift.stats.robust import known_median
from monitor.model import CanaryPoint, ServerPoint

# single blocks, at most this many; further back by the hour
KEEP_FINE_US, KEEP_FINE = 26 * HOUR_US, 400
KEEP_COARSE_US = 7 * DAY_US  # the longest that anything here is kept
# a workload has shifted when prompts are this many times as long as in any hour of the baseline,
SHIFT_FACTOR = 2.0
SHIFT_BACK = 1.5  # and is back below this
MOVING_US = 3 * HOUR_US  # the last hours may be part of the shift and not of the baseline
# in an hour: the mean length of fewer is chance (lengths vary by about their mean: 18 % at 30)
LEAST_REQUESTS = 30

Period = tuple[int, int]  # from, until


@dataclass(slots=True)
class ServerChannel:
    """Blocks of figures, two periods of them compared, and whether prompts have become much longer
    (`workload_shift`).
    """

    anchor_us: int | None = None
    start_us: int = 0  # of the open block; blocks and hours are counted from the anchor
    hour_us: int | None = None  # start of the hour of the last block
    points: list[ServerPoint] = field(default_factory=list)  # of the open block and after it
    canaries: list[ServerCanary] = field(default_factory=list)
    last: ServerPoint | None = None  # of the blocks before
    fine: list[ServerBlock] = field(default_factory=list)
    coarse: list[ServerBlock] = field(default_factory=list)
    late: int = 0  # points for blocks that were closed
    shift_since_us: int | None = None
    # the longest hourly mean of the baseline, frozen while shifted
    baseline_prompt: float | None = None

    def server(self, point: ServerPoint) -> None:
        """Processes one reading of the metrics page."""
        if self._is_open(point.at_us):
            self.points.append(point)

    def canary(self, p: CanaryPoint) -> None:
        """Processes the server's figures of one canary."""
        if p.outcome == "ok" and self._is_open(p.known_us):
            self.canaries.append(ServerCanary.of(p))

    def _is_open(self, at_us: int) -> bool:
        if self.anchor_us is None:
            self.anchor_us = self.start_us = at_us
        if at_us < self.start_us:
            self.late += 1
            return False
        return True

    def advance(self, now_us: int, settings: DriftSettings) -> bool:
        """Closes the blocks that are over; whether there was one."""
        # a block that begins by then is over
        over_us = now_us - settings.block_us - settings.grace_us
        if self.anchor_us is None or self.start_us > over_us:
            return False
        length_us = settings.block_us
        while self.start_us <= over_us:
            if self.points or self.canaries:
                self._close(self.start_us + length_us, settings)
                self.start_us += length_us
            else:  # a gap of any length is skipped at once
                self.start_us += ((over_us - self.start_us) // length_us + 1) * length_us
        return True

    def _close(self, end_us: int, settings: DriftSettings) -> None:
        points = sorted((p for p in self.points if p.at_us < end_us), key=lambda p: p.at_us)
        canaries = [c for c in self.canaries if c.known_us < end_us]
        self.points = [p for p in self.points if p.at_us >= end_us]
        self.canaries = [c for c in self.canaries if c.known_us >= end_us]
        if points or canaries:
            self._keep(block_of(self.start_us, points, canaries, self.last), settings)
        self.last = points[-1] if points else self.last

    def _keep(self, block: ServerBlock, settings: DriftSettings) -> None:
        if self.hour_us is None or block.at_us >= self.hour_us + HOUR_US:
            self._close_hour(block.at_us, settings)
        self.fine.append(block)
        if block.requests is not None:
            self._judge_prompts(settings)

    def _close_hour(self, at_us: int, settings: DriftSettings) -> None:
        """Merges the blocks of the last hour, and drops what is too old."""
        if self.hour_us is not None:
            recent = self.fine[-KEEP_FINE:]
            self.coarse.append(merge([b for b in recent if b.at_us >= self.hour_us]))
            self.coarse = [b for b in self.coarse if b.at_us >= at_us - KEEP_COARSE_US]
            self.fine = [b for b in recent if b.at_us >= at_us - KEEP_FINE_US]
            if self.shift_since_us is None:
                self.baseline_prompt = self._longest_hour(at_us - MOVING_US, settings)
        anchor_us = self.anchor_us or 0
        self.hour_us = anchor_us + (at_us - anchor_us) // HOUR_US * HOUR_US

    def compare(
        self, before: Period, now: Period, settings: DriftSettings, cached_share: Pair
    ) -> ServerComparison:
        """Medians over the blocks of two periods, each [from, until). The open block counts as
        now.
        """
        early = _within(self.fine, before)
        if len(early) < settings.block_samples:
            early = _within(self.coarse, before) or early
        late = _within([*self.fine, *self._current()], now)
        unread = bool(late) and all(b.waiting is None for b in late)

        def pair(name: str) -> Pair:
            return Pair(_median(early, name), _median(late, name))

        return ServerComparison(
            running=pair("running"),
            waiting=pair("waiting"),
            kv_usage=pair("kv_usage"),
            queue_ms=pair("queue_ms"),
            prefill_ms=pair("prefill_ms"),
            preemptions=pair("preemptions_h"),
            steps_s=pair("steps_s"),
            spec_acceptance=pair("spec_acceptance"),
            prompt_len=Pair(prompt_length(early), prompt_length(late)),
            cached_share=cached_share,
            missing=("the metrics page (vllm:num_requests_waiting)",) if unread else (),
        )

    def _current(self) -> list[ServerBlock]:
        """The open block."""
        if not self.points and not self.canaries:
            return []
        at_us = min([p.at_us for p in self.points] + [c.known_us for c in self.canaries])
        points = sorted(self.points, key=lambda p: p.at_us)
        return [block_of(at_us, points, self.canaries, self.last)]

    def _judge_prompts(self, settings: DriftSettings) -> None:
        hour = prompt_length(self._last_hour(), LEAST_REQUESTS)
        if hour is None or self.baseline_prompt is None:
            return
        if self.shift_since_us is None and hour > SHIFT_FACTOR * self.baseline_prompt:
            self.shift_since_us = self.fine[-1].at_us - HOUR_US + settings.block_us
        elif self.shift_since_us is not None and hour < SHIFT_BACK * self.baseline_prompt:
            self.shift_since_us = None

    def _last_hour(self) -> list[ServerBlock]:
        from_us = self.fine[-1].at_us - HOUR_US
        return list(takewhile(lambda block: block.at_us > from_us, reversed(self.fine)))

    def _longest_hour(self, until_us: int, settings: DriftSettings) -> float | None:
        """The longest mean of a whole hour; None before `learn_h` hours with requests."""
        lengths = [
            (b.prompts or 0.0) / b.requests
            for b in self.coarse
            if b.at_us + HOUR_US <= until_us
            and b.requests is not None
            and b.requests >= LEAST_REQUESTS
        ]
        return max(lengths) if len(lengths) >= settings.learn_h else None

    def workload_shift(self) -> tuple[int, float, float] | None:
        """Since when, tokens per request in the longest hour of the baseline, and in the last hour;
        None without a shift.
        """
        if self.shift_since_us is None or self.baseline_prompt is None:
            return None
        now = prompt_length(self._last_hour())
        return None if now is None else (self.shift_since_us, self.baseline_prompt, now)

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Whether a shift of the workload can be seen yet."""
        if not self._page_was_read():
            return [Armed("workload", False, "no metrics page has been read yet")]
        if not self.fine:
            return [Armed("workload", False, "the first block is not over yet")]
        known = self._longest_hour(self.fine[-1].at_us - MOVING_US, settings)
        if known is None:
            need = f"{settings.learn_h:g} h with {LEAST_REQUESTS} requests or more"
            return [Armed("workload", False, f"learning the baseline of prompt lengths ({need})")]
        return [
            Armed("workload", True, f"baseline: up to {known:.0f} tokens per request in an hour")
        ]

    def _page_was_read(self) -> bool:
        """Whether any reading had a value: a refused page is fed too, as a reading without one."""
        points = self.points if self.last is None else [self.last, *self.points]
        blocks = [*self.fine, *self.coarse]
        return any(value is not None for point in points for value in point[2:]) or any(
            b.running is not None or b.requests is not None for b in blocks
        )

    def relearn(self, now_us: int) -> None:
        """Makes the present workload the baseline."""
        self.shift_since_us, self.baseline_prompt = None, None
        self.coarse = []
        self.fine = [b for b in self.fine if b.at_us >= now_us - HOUR_US]


def _within(blocks: Sequence[ServerBlock], period: Period) -> list[ServerBlock]:
    return [b for b in blocks if period[0] <= b.at_us < period[1]]


def _median(blocks: Sequence[ServerBlock], name: str) -> float | None:
    return known_median([getattr(b, name) for b in blocks])
