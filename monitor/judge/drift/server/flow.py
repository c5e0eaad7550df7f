"""The server's own figures between canaries: batch, queue, cache, steps, acceptance, and how long
the prompts of its users are.

Counters run since the server's start: a growth is taken between two good readings of one process,
never across a start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median

from monitor.judge.drift.evidence import Armed, Pair, ServerComparison
from monitor.judge.drift.server.flow_blocks import (
    FlowBlock,
    FlowCanary,
    block_of,
    prompt_length,
    together,
)
from monitor.judge.drift.settings import DAY_US, HOUR_US, SECOND_US, DriftSettings
from monitor.model import CanaryPoint, ServerPoint

KEEP_FINE_US, KEEP_FINE = (
    26 * HOUR_US,
    400,
)  # blocks as they are, of at most so many; further back by the hour
KEEP_COARSE_US = 7 * DAY_US  # the longest that anything here is remembered
# a workload has moved when prompts are so many times as long as in any hour that was learnt,
SHIFT_FACTOR = 2.0
MOVING_US = 3 * HOUR_US  # the last hours may be part of the move and are not yet what was learnt
SHIFT_BACK = 1.5  # and is back below this
# in an hour: the mean length of fewer is chance (lengths vary by about their mean: 18 % at 30)
LEAST_REQUESTS = 30


@dataclass(slots=True)
class FlowChannel:
    """Blocks of flow; what they were in a span of time (`signs`), and whether prompts have become
    much longer (`workload_shift`).
    """

    anchor_us: int | None = None
    start_us: int = 0  # of the block that is open; blocks and hours are counted from the anchor
    hour_us: int | None = None  # start of the hour of the last block
    points: list[ServerPoint] = field(default_factory=list)  # of the open block and after it
    canaries: list[FlowCanary] = field(default_factory=list)
    last: ServerPoint | None = None  # of the blocks before
    fine: list[FlowBlock] = field(default_factory=list)
    coarse: list[FlowBlock] = field(default_factory=list)
    late: int = 0  # points for blocks that were closed
    shift_since_us: int | None = None
    usual_prompt: float | None = (
        None  # the longest hourly mean that was learnt, frozen while shifted
    )

    def server(self, point: ServerPoint, settings: DriftSettings) -> None:  # noqa: ARG002 - fed like the other parts
        """Take up one reading of the metrics page."""
        if self._takes(point.at_us):
            self.points.append(point)

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:  # noqa: ARG002
        """Take up what one canary knows of the flow."""
        if p.outcome == "ok" and self._takes(p.known_us):
            self.canaries.append(FlowCanary.of(p))

    def _takes(self, at_us: int) -> bool:
        if self.anchor_us is None:
            self.anchor_us = self.start_us = at_us
        if at_us < self.start_us:
            self.late += 1
            return False
        return True

    def advance(self, now_us: int, settings: DriftSettings) -> bool:
        """Close the blocks that are over; whether there was one."""
        over_us = now_us - int(
            (settings.block_s + settings.grace_s) * SECOND_US
        )  # a block that begins by then is over
        if self.anchor_us is None or self.start_us > over_us:
            return False
        length_us = _block_us(settings)
        while self.start_us <= over_us:
            if self.points or self.canaries:
                self._close(self.start_us + length_us, settings)
                self.start_us += length_us
            else:  # a gap of any length is one leap
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

    def _keep(self, block: FlowBlock, settings: DriftSettings) -> None:
        if self.hour_us is None or block.at_us >= self.hour_us + HOUR_US:
            self._close_hour(block.at_us, settings)
        self.fine.append(block)
        if block.requests is not None:
            self._judge_prompts(settings)

    def _close_hour(self, at_us: int, settings: DriftSettings) -> None:
        """The hour of the last blocks is over: as one block, for later; and what need not be kept
        any longer goes.
        """
        if self.hour_us is not None:
            self.coarse.append(
                together([b for b in self.fine[-KEEP_FINE:] if b.at_us >= self.hour_us])
            )
            self.coarse = [b for b in self.coarse if b.at_us >= at_us - KEEP_COARSE_US]
            self.fine = [b for b in self.fine[-KEEP_FINE:] if b.at_us >= at_us - KEEP_FINE_US]
            if self.shift_since_us is None:
                self.usual_prompt = self._longest_hour(at_us - MOVING_US, settings)
        anchor_us = self.anchor_us or 0
        self.hour_us = anchor_us + (at_us - anchor_us) // HOUR_US * HOUR_US

    # -- what it was in a span
    # ----------------------------------------------------------------------------------------

    def signs(
        self, before_us: tuple[int, int], now_us: tuple[int, int], settings: DriftSettings
    ) -> ServerComparison:
        """Medians over the blocks of two spans, each [from, to). What is under way in the open
        block counts for now.
        """
        before = _within(self.fine, before_us)
        if len(before) < settings.block_samples:
            before = _within(self.coarse, before_us) or before
        now = _within([*self.fine, *self._under_way()], now_us)

        def pair(name: str) -> Pair:
            return Pair(_median(before, name), _median(now, name))

        missing = (
            ()
            if any(b.waiting is not None for b in now) or not now
            else ("the metrics page (vllm:num_requests_waiting)",)
        )
        return ServerComparison(
            running=pair("running"),
            waiting=pair("waiting"),
            kv_usage=pair("kv_usage"),
            queue_ms=pair("queue_ms"),
            prefill_ms=pair("prefill_ms"),
            preemptions=pair("preemptions_h"),
            steps_s=pair("steps_s"),
            spec_acceptance=pair("spec_acceptance"),
            prompt_len=Pair(prompt_length(before), prompt_length(now)),
            missing=missing,
        )

    def _under_way(self) -> list[FlowBlock]:
        if not self.points and not self.canaries:
            return []
        at_us = min([p.at_us for p in self.points] + [c.known_us for c in self.canaries])
        return [
            block_of(at_us, sorted(self.points, key=lambda p: p.at_us), self.canaries, self.last)
        ]

    # -- the workload
    # -------------------------------------------------------------------------------------------------

    def _judge_prompts(self, settings: DriftSettings) -> None:
        last_us = self.fine[-1].at_us
        hour = prompt_length(self._last_hour(), LEAST_REQUESTS)
        if hour is None:
            return
        if self.usual_prompt is None:
            return
        if self.shift_since_us is None and hour > SHIFT_FACTOR * self.usual_prompt:
            self.shift_since_us = last_us - HOUR_US + _block_us(settings)
        elif self.shift_since_us is not None and hour < SHIFT_BACK * self.usual_prompt:
            self.shift_since_us = None

    def _last_hour(self) -> list[FlowBlock]:
        from_us = self.fine[-1].at_us - HOUR_US
        return list(takewhile(lambda block: block.at_us > from_us, reversed(self.fine)))

    def _longest_hour(self, until_us: int, settings: DriftSettings) -> float | None:
        """The longest mean of a whole hour that was learnt; None before `learn_h` hours with
        requests.
        """
        known = [
            b
            for b in self.coarse
            if b.at_us + HOUR_US <= until_us
            and b.requests is not None
            and b.requests >= LEAST_REQUESTS
        ]
        lengths = [(b.prompts or 0.0) / b.requests for b in known if b.requests]
        return max(lengths) if len(lengths) >= settings.learn_h else None

    def workload_shift(self) -> tuple[int, float, float] | None:
        """Since when, tokens a request in the longest hour that was learnt, and in the last hour;
        None where it has not moved.
        """
        if self.shift_since_us is None or self.usual_prompt is None:
            return None
        now = prompt_length(self._last_hour())
        return None if now is None else (self.shift_since_us, self.usual_prompt, now)

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Whether a change of the workload can be seen yet."""
        if not self._page_was_read():
            return [Armed("workload", False, "no metrics page has been read yet")]
        if not self.fine:
            return [Armed("workload", False, "its first minutes are not over yet")]
        known = self._longest_hour(self.fine[-1].at_us - MOVING_US, settings)
        if known is not None:
            return [
                Armed(
                    "workload",
                    True,
                    (
                        f"prompts of up to {known:.0f} tokens a request in the mean of an hour "
                        "are known"
                    ),
                )
            ]
        need = f"{settings.learn_h:g} hours with {LEAST_REQUESTS} requests or more"
        return [
            Armed("workload", False, f"how long the prompts of an hour are is learnt from {need}")
        ]

    def _page_was_read(self) -> bool:
        """A page that was refused is fed too, as a reading without a value."""
        points = self.points if self.last is None else [self.last, *self.points]
        blocks = [*self.fine, *self.coarse]
        return any(map(_tells, points)) or any(
            b.running is not None or b.requests is not None for b in blocks
        )

    def relearn(self, now_us: int) -> None:
        """What is served now is what is usual."""
        self.shift_since_us, self.usual_prompt = None, None
        self.coarse = []
        self.fine = [b for b in self.fine if b.at_us >= now_us - HOUR_US]


def _tells(point: ServerPoint) -> bool:
    """Whether the page told anything."""
    return any(value is not None for value in point[2:])


def _block_us(settings: DriftSettings) -> int:
    return int(settings.block_s * SECOND_US)


def _within(blocks: Sequence[FlowBlock], span_us: tuple[int, int]) -> list[FlowBlock]:
    return [b for b in blocks if span_us[0] <= b.at_us < span_us[1]]


def _median(blocks: Sequence[FlowBlock], name: str) -> float | None:
    values = [value for b in blocks if (value := getattr(b, name)) is not None]
    return median(values) if values else None
