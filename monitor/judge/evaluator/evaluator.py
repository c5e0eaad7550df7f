"""All judges of one target that live on points: availability, answers and drift."""

from __future__ import annotations

from collections.abc import Iterator, Set

from monitor.judge.evaluator import answers, availability
from monitor.judge.evaluator.answers import Answers
from monitor.judge.evaluator.assessment import Assessment, Rules
from monitor.judge.evaluator.availability import Availability
from monitor.judge.evaluator.drift import Drift
from monitor.judge.quality.verdicts import DetailOf
from monitor.model import CanaryPoint, Kind, Point, Sample, ServerPoint


def _nothing(_sample: Sample) -> str | None:
    return None


class Evaluator:
    """Points in, in the order in which they were known; assessments out.

    `drift` is None in the daemon, where the detector is stored and reads the history at its own
    pace (monitor/daemon/drift.py).
    """

    def __init__(self, target: str, rules: Rules, drift: Drift | None = None) -> None:
        self.drift = drift
        self.availability = Availability(target, rules)
        self._answers = Answers(target, rules)

    def observe(self, point: Point) -> None:
        """Processes one point."""
        if self.drift is not None:
            self.drift.observe(point)
        if isinstance(point, CanaryPoint):
            self.availability.canary(point)
            self._answers.canary(point)
        elif isinstance(point, ServerPoint):
            self.availability.server(point)

    def remember(self, point: CanaryPoint) -> None:
        """Processes a run from before the time from which all points are given: it counts only
        among the last runs of its own probe.
        """
        self.availability.note_verdict(point)
        self._answers.canary(point, earlier=True)

    def findings(self, now_us: int, tell: DetailOf = _nothing) -> list[Assessment]:
        """Returns the current findings of every judge; of answers only after a new one, so that an
        incident closed by hand opens again with the next answer at the earliest. `tell` returns
        the stored sentence about a sample, if there is one.
        """
        found = [self.availability.assess(now_us, tell)]
        if self._answers.has_new:
            found.append(self._answers.assess(tell))
        if self.drift is not None:
            self.drift.advance(now_us)
            found.append(self.drift.assess(now_us))
        return found

    def changes(self, now_us: int, open_kinds: Set[Kind]) -> Iterator[Assessment]:
        """Yields the assessments that may differ from the last ones, given the kinds that are
        open now. In a replay of a year nearly every canary is well, and few judges are asked.
        """
        is_open = bool(open_kinds)
        if self.availability.due(now_us) or (
            is_open and not open_kinds.isdisjoint(availability.KINDS)
        ):
            yield self.availability.assess(now_us, _nothing)
        if self._answers.due(is_open and not open_kinds.isdisjoint(answers.KINDS)):
            yield self._answers.assess(_nothing)
        if self.drift is not None and self.drift.advance(now_us):
            yield self.drift.assess(now_us)
