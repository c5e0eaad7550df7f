"""The judges of answers, asked only when the newest run could change their findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from monitor.judge.evaluator.assessment import Assessment, Rules, sample_of
from monitor.judge.quality.answers import LastAnswers
from monitor.judge.quality.verdicts import DetailOf
from monitor.model import CanaryPoint, Kind, Verdict

KINDS = (Kind.QUALITY, Kind.NEAR_TIES)


@dataclass(slots=True)
class Answers:
    """The judges of KINDS."""

    target: str
    rules: Rules
    _last: LastAnswers[CanaryPoint] = field(init=False)
    _changed: bool = False
    _new: bool = False

    def __post_init__(self) -> None:
        """Counts the answers of each probe by its own rules."""
        self._last = LastAnswers(self.target, self.rules.probe)

    def canary(self, point: CanaryPoint, *, earlier: bool = False) -> None:
        """Processes one canary. `earlier` as in LastAnswers.add."""
        if self._last.add(point, earlier=earlier):
            self._new = True
            if point.verdict != Verdict.PASS or (
                point.logprob_shift is not None and self._last.moved(point.probe, self.rules.pins)
            ):
                self._changed = True
        elif point.verdict == Verdict.UNPINNED:
            self._new = True

    @property
    def has_new(self) -> bool:
        """Whether a run that was judged came since the last assessment."""
        return self._new

    def due(self, is_open: bool) -> bool:
        """Whether the findings may have changed; a good answer matters only to an open incident."""
        return self._changed or (self._new and is_open)

    def assess(self, tell: DetailOf) -> Assessment:
        """Returns the current findings. `tell` returns the stored sentence about a sample."""
        self._changed = self._new = False
        found = self._last.findings(lambda run: sample_of(self.target, run), self.rules.pins, tell)
        return Assessment(KINDS, found)
