"""Service levels from few canaries: do more canaries of a class exceed its level than one in
twenty?

With 20 samples there is no p95; there is a count of those over the level. Each canary of a class is
one yes or no, and an e-detector (stats/sequential.py) finds out when there are too many, whatever
the number of samples. A canary that a queue, a hang or a timeout kept from its first token is over
any level; where no level is set, only such canaries count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.evidence import Armed, Effect, Shift
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.judge.drift.stats.sequential import MONTH_S, ExceedanceTest, wilson
from monitor.model import CanaryPoint, Outcome, Severity

BASE = 0.05  # one in twenty may be slower: the definition of a p95
ALTERNATIVES = (0.1, 0.2, 0.5, 0.9)
WEIGHTS = (0.15, 0.15, 0.15, 0.55)  # so that five in a row are enough
STEP_S = 60.0  # a canary per minute: converts false alarms a month to observations
# canaries known within this are one observation: one stall, met by all that were due
TOGETHER_US = 20 * SECOND_US
LEAST_SPAN_US = 2 * MINUTE_US  # a shorter stall is ignored
# closes when "one in twenty" is this many times likelier than a share of 0.15: after 27 canaries in
# time in a row,
CLEAR, STILL = math.log(20.0), 0.15
# or after this many in a row over this time, for a class with a few canaries an hour
RARE_US, RARE = 60 * MINUTE_US, 6
KEPT = 60  # observations of a class that are kept for the figures
NO_TOKEN = (Outcome.QUEUE_CAP.value, Outcome.TIMEOUT.value, Outcome.HUNG.value)


class WaitObservation(NamedTuple):
    """Canaries of one moment: when the first was known, whether any was over the level, and the
    longest wait.
    """

    known_us: int
    over: bool
    waited_ms: float | None


@dataclass(slots=True)
class OpenLevel:
    """A class over its level."""

    since_us: int
    evidence: float
    clear: float = 0.0


@dataclass(slots=True)
class ClassLevel:
    """Test and last observations of one class."""

    test: ExceedanceTest = field(default_factory=ExceedanceTest)
    observations: list[WaitObservation] = field(default_factory=list)
    count: int = 0
    open: OpenLevel | None = None

    def take(self, observed: WaitObservation, settings: DriftSettings) -> None:
        """Processes one canary."""
        if self.observations and observed.known_us - self.observations[-1].known_us < TOGETHER_US:
            self._join(observed, settings)
            return
        if self.open is not None:
            self._clear(self.open)
        self.observations.append(observed)
        if len(self.observations) > KEPT:
            del self.observations[0]
        self.count += 1
        self._judge(observed.over, settings)

    def _join(self, observed: WaitObservation, settings: DriftSettings) -> None:
        """Adds a canary of the same moment: it counts when it is the first one over the level."""
        last = self.observations[-1]
        waits = [w for w in (last.waited_ms, observed.waited_ms) if w is not None]
        longest = max(waits, default=None)
        self.observations[-1] = last._replace(over=last.over or observed.over, waited_ms=longest)
        if observed.over and not last.over:
            self._judge(True, settings)

    def _judge(self, over: bool, settings: DriftSettings) -> None:
        if self.open is not None:
            return
        self.test.step(over, BASE, ALTERNATIVES)
        if not over:  # a "no" is no evidence
            return
        evidence = self.test.log_evidence(WEIGHTS)
        if evidence > threshold(settings):
            since = _onset(self.observations)
            if self.observations[-1].known_us - since >= LEAST_SPAN_US:
                self.open = OpenLevel(since, evidence)

    def _clear(self, level: OpenLevel) -> None:
        """Closes by a CUSUM against one in seven once the last moment is complete.

        Not against the share at the onset: when most canaries were over and now one in four is, the
        level is still exceeded.
        """
        last = self.observations[-1]
        gain = math.log(BASE / STILL) if last.over else math.log((1 - BASE) / (1 - STILL))
        level.clear = max(0.0, level.clear + gain)
        in_time = list(takewhile(lambda s: not s.over, reversed(self.observations)))
        rare = len(in_time) >= RARE and last.known_us - in_time[-1].known_us >= RARE_US
        if level.clear >= CLEAR or rare:
            self.open, self.test = None, ExceedanceTest()


@dataclass(slots=True)
class LevelChannel:
    """All classes of one target."""

    classes: dict[str, ClassLevel] = field(default_factory=dict)

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """Processes one canary immediately: an alarm here waits for no block."""
        over = exceeded(p, settings)
        if over is None:
            return
        state = self.classes.get(p.traffic_class)
        if state is None:
            state = self.classes[p.traffic_class] = ClassLevel()
        waited = p.ttft_ms if p.ttft_ms is not None else p.e2e_ms
        state.take(WaitObservation(p.known_us, over, waited), settings)

    def effects(self, settings: DriftSettings) -> dict[str, Effect]:
        """Open effects by traffic class. The shift is the share of observations over the level
        since then, in per cent.
        """
        return {
            name: _effect(state, state.open, settings)
            for name, state in self.classes.items()
            if state.open is not None
        }

    def suspicion(self, settings: DriftSettings) -> float:
        """0 … 1: how close the worst class is to an alarm."""
        sums = [
            state.test.log_evidence(WEIGHTS)
            for state in self.classes.values()
            if state.open is None and state.test.sums
        ]
        return max(0.0, min(1.0, max(sums, default=0.0) / threshold(settings)))

    def armed(self, settings: DriftSettings) -> list[Armed]:
        """Always armed, from the first canary."""
        return [
            _armed(name, state, settings.levels.get(name))
            for name, state in sorted(self.classes.items())
        ]


def _armed(name: str, state: ClassLevel, level: float | None) -> Armed:
    watched = "no first token in time" if level is None else f"no first token within {level:g} ms"
    detail = f"needs no baseline: {watched}; {state.count} canaries so far"
    return Armed(f"service level of {name}", True, detail)


def exceeded(p: CanaryPoint, settings: DriftSettings) -> bool | None:
    """Whether a canary is over its level; None where it says nothing (cold, or failed for another
    reason).
    """
    if p.outcome != "ok":
        return True if p.ttft_ms is None and p.outcome in NO_TOKEN else None
    if p.phase == "cold":
        return None
    level = settings.levels.get(p.traffic_class)
    return level is not None and p.ttft_ms is not None and p.ttft_ms > level


def threshold(settings: DriftSettings) -> float:
    """ln(observations to a false alarm): 0.05 a month at one a minute make ln(864,000) = 13.7."""
    return math.log(max(2.0, MONTH_S / max(settings.false_alarms_per_month, 1e-6) / STEP_S))


def _onset(observations: Sequence[WaitObservation]) -> int:
    """Most likely start of the run over the level: the largest sum of log-likelihood ratios back
    from now.
    """
    best, best_us, total = -math.inf, observations[-1].known_us, 0.0
    for observed in reversed(observations):
        total += math.log(0.5 / BASE) if observed.over else math.log(0.5 / (1 - BASE))
        if observed.over and total >= best:
            best, best_us = total, observed.known_us
    return best_us


def _effect(state: ClassLevel, level: OpenLevel, settings: DriftSettings) -> Effect:
    since = [observed for observed in state.observations if observed.known_us >= level.since_us]
    over, n = sum(observed.over for observed in since), len(since)
    low, high = wilson(over, n)
    waited = [observed.waited_ms for observed in since if observed.waited_ms is not None]
    statistic = {
        "over": over,
        "of": n,
        "evidence": level.evidence,
        "threshold": threshold(settings),
    }
    if waited:
        statistic["waited_ms"] = median(waited)
    return Effect(
        channel="level",
        shift=Shift("over_level", 100.0 * over / max(1, n), 100.0 * low, 100.0 * high),
        since_us=level.since_us,
        severity=Severity.WARNING,
        statistic=statistic,
    )
