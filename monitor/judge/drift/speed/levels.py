"""Service levels from few canaries: do more of a class wait longer than its level than one in
twenty may?

With 20 samples there is no p95; there is a count of those that waited too long. Each canary of a
class is one yes or no, and an e-detector (cusum.py) says when the yeses are too many, whatever the
number of samples. A canary that a queue, a hang or a time-out kept from its first token waited too
long, whatever the level; where no level is set, that alone counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.evidence import Armed, Effect, Shift
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.judge.drift.stats.cusum import MONTH_S, ExceedanceTest
from monitor.model import CanaryPoint, Outcome, Severity

BASE = 0.05  # one in twenty may be slower: that is what a p95 says
ALTERNATIVES = (0.1, 0.2, 0.5, 0.9)
WEIGHTS = (0.15, 0.15, 0.15, 0.55)  # so that five in a row are enough
USUAL_STEP_S = 60.0  # a canary a minute: from false alarms a month to observations
TOGETHER_US = (
    20 * SECOND_US
)  # canaries known within this are one observation: one stall, felt by all that were due
LEAST_SPAN_US = 2 * MINUTE_US  # what is over within two minutes was a hiccup
CLEAR, STILL = (
    math.log(20.0),
    0.15,
)  # closes when "one in twenty" is so many times likelier than this share: 27 in time in a row do
RARE_US, RARE = (
    60 * MINUTE_US,
    6,
)  # so do so many in a row that took so long: a class may be asked a few times an hour
KEPT = 60  # observations of a class that are kept for the figures
NO_TOKEN = (Outcome.QUEUE_CAP.value, Outcome.TIMEOUT.value, Outcome.HUNG.value)


class Seen(NamedTuple):
    """One observation: when the first of its canaries was known, whether any waited too long, and
    the longest wait.
    """

    known_us: int
    over: bool
    waited_ms: float | None


@dataclass(slots=True)
class OpenLevel:
    """A class that waits too long."""

    since_us: int
    evidence: float
    clear: float = 0.0


@dataclass(slots=True)
class ClassState:
    """One class: its test, and the last observations."""

    test: ExceedanceTest = field(default_factory=ExceedanceTest)
    seen: list[Seen] = field(default_factory=list)
    count: int = 0
    open: OpenLevel | None = None


@dataclass(slots=True)
class LevelChannel:
    """All classes of one target."""

    classes: dict[str, ClassState] = field(default_factory=dict)

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """Take in one canary, at once: an alarm here waits for no block."""
        over = exceeded(p, settings)
        if over is None:
            return
        state = self.classes.get(p.traffic_class)
        if state is None:
            state = self.classes[p.traffic_class] = ClassState()
        waited = p.ttft_ms if p.ttft_ms is not None else p.e2e_ms
        if state.seen and p.known_us - state.seen[-1].known_us < TOGETHER_US:
            self._join(state, over, waited, settings)
        else:
            if state.open is not None:
                _clear(state, state.open)
            state.seen.append(Seen(p.known_us, over, waited))
            if len(state.seen) > KEPT:
                del state.seen[0]
            state.count += 1
            _judge(state, over, settings)

    @staticmethod
    def _join(state: ClassState, over: bool, waited: float | None, settings: DriftSettings) -> None:
        """One more of the same moment: it counts when it is the first of them that waited too
        long.
        """
        last = state.seen[-1]
        longest = max((w for w in (last.waited_ms, waited) if w is not None), default=None)
        state.seen[-1] = Seen(last.known_us, last.over or over, longest)
        if over and not last.over:
            _judge(state, True, settings)

    def advance(self, now_us: int, settings: DriftSettings) -> None:
        """Nothing waits for the time here; the parts of a detector are called alike."""

    def effects(self, settings: DriftSettings) -> dict[str, Effect]:
        """What is open now, by traffic class. The shift is the share of observations over the level
        since then, in per cent.
        """
        return {
            name: _effect(state, state.open, settings)
            for name, state in self.classes.items()
            if state.open is not None
        }

    def suspicion(self, settings: DriftSettings) -> float:
        """0 … 1: how far the worst class is on its way to an alarm."""
        sums = [
            state.test.log_evidence(WEIGHTS)
            for state in self.classes.values()
            if state.open is None and state.test.sums
        ]
        return max(0.0, min(1.0, max(sums, default=0.0) / threshold(settings)))

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Always, from the first canary; said with what it watches."""
        found = []
        for name, state in sorted(self.classes.items()):
            level = settings.levels.get(name)
            watched = (
                "no first token in time" if level is None else f"no first token within {level:g} ms"
            )
            found.append(
                Armed(
                    f"service level of {name}",
                    True,
                    f"needs no learning: {watched}; {state.count} canaries so far",
                )
            )
        return found


def exceeded(p: CanaryPoint, settings: DriftSettings) -> bool | None:
    """Whether a canary waited too long for its first token; None where it says nothing (not good
    for another reason, cold).
    """
    if p.outcome != "ok":
        return True if p.ttft_ms is None and p.outcome in NO_TOKEN else None
    if p.phase == "cold":
        return None
    level = settings.levels.get(p.traffic_class)
    return level is not None and p.ttft_ms is not None and p.ttft_ms > level


def threshold(settings: DriftSettings) -> float:
    """ln(observations to a false alarm): 0.05 a month at one a minute make ln(864,000) = 13.7."""
    return math.log(max(2.0, MONTH_S / max(settings.false_alarms_per_month, 1e-6) / USUAL_STEP_S))


def _judge(state: ClassState, over: bool, settings: DriftSettings) -> None:
    if state.open is not None:
        return
    state.test.step(over, BASE, ALTERNATIVES)
    if not over:  # that is no evidence: a "no" raises no sum beyond what it settles at
        return
    evidence = state.test.log_evidence(WEIGHTS)
    if evidence > threshold(settings):
        since = _onset(state.seen)
        if state.seen[-1].known_us - since >= LEAST_SPAN_US:
            state.open = OpenLevel(since, evidence)


def _clear(state: ClassState, level: OpenLevel) -> None:
    """The last moment is over, and nobody else of it waits any more: a CUSUM back, against one in
    seven.

    Not against the share that was over at first: when most waited and now one in four does, it is
    not over.
    """
    last = state.seen[-1]
    level.clear = max(
        0.0,
        level.clear + (math.log(BASE / STILL) if last.over else math.log((1 - BASE) / (1 - STILL))),
    )
    in_time = list(takewhile(lambda s: not s.over, reversed(state.seen)))
    rare = len(in_time) >= RARE and last.known_us - in_time[-1].known_us >= RARE_US
    if level.clear >= CLEAR or rare:
        state.open, state.test = None, ExceedanceTest()


def _onset(seen: list[Seen]) -> int:
    """Where the run of those that waited too long most likely began: the largest sum of
    log-likelihood ratios back from now.
    """
    best, best_us, total = -math.inf, seen[-1].known_us, 0.0
    for s in reversed(seen):
        total += math.log(0.5 / BASE) if s.over else math.log(0.5 / (1 - BASE))
        if s.over and total >= best:
            best, best_us = total, s.known_us
    return best_us


def _effect(state: ClassState, level: OpenLevel, settings: DriftSettings) -> Effect:
    since = [s for s in state.seen if s.known_us >= level.since_us]
    over, n = sum(s.over for s in since), len(since)
    low, high = wilson(over, n)
    waited = [s.waited_ms for s in since if s.waited_ms is not None]
    statistic = {
        "over": over,
        "of": n,
        "evidence": level.evidence,
        "threshold": threshold(settings),
    }
    if waited:
        statistic["waited_ms"] = median(waited)
    shift = Shift("over_level", 100.0 * over / max(1, n), 100.0 * low, 100.0 * high)
    return Effect("level", shift, level.since_us, Severity.WARNING, statistic)


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share (Wilson 1927): bounds in 0..1."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = k / n, z * z
    middle, half = share + z2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z2 / n)), min(1.0, (middle + half) / (1 + z2 / n))
