"""The daemon's judges of liveness and of answers, fed with points: the same functions, given only
what can still matter to them.

In a replay of a year nearly every canary is well, so each judge is asked only when the newest point
could change its answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from monitor.judge.availability import (
    MISSED_INTERVALS,
    judge_hung,
    judge_no_samples,
    judge_server_down,
    judge_unmeasured,
)
from monitor.judge.quality import gate
from monitor.judge.quality.answers import LastAnswers
from monitor.model import (
    CanaryPoint,
    Contact,
    Kind,
    Outcome,
    Phase,
    Pin,
    Probe,
    Sample,
    ServerPoint,
    Verdict,
)
from monitor.replay.incidents import Book, Entry, as_time, as_us

LOOK_BACK_US = 3_600_000_000  # as the daemon looks back (monitor/daemon/judging.py)
# readings come every 15 s: where none came for a minute, nobody watched, and silence says nothing
UNWATCHED_US = 60_000_000
KEPT = 300  # the most failures in a row that are kept for the figures of one finding
NOBODY_ANSWERED = frozenset({Outcome.REFUSED.value, Outcome.TIMEOUT.value})
ANSWERS = (Kind.QUALITY.value, Kind.NEAR_TIES.value)
_OUTCOMES = {word.value: word for word in Outcome}
_PHASES = {word.value: word for word in Phase}
_VERDICTS = {word.value: word for word in Verdict}


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the configuration the judges need. Where it is unknown, as with a bare file, silence
    is not judged.
    """

    probes: Mapping[str, Probe] = field(
        default_factory=dict
    )  # those that are not here are counted as a probe file's defaults say
    intervals: Mapping[str, timedelta] = field(
        default_factory=dict
    )  # how often each probe should measure
    pins: Mapping[int, Pin] = field(default_factory=dict)
    same_address: bool = (
        True  # API and metrics page: a refusal of the one is then a refusal of the other
    )

    def probe(self, name: str) -> Probe:
        """A probe by name; one that is not known counts its answers as the defaults of a probe file
        say.
        """
        first = self.probes.get(name.removesuffix(gate.AGAIN))
        second = gate.again(first) if first is not None and first.same_salt_twice else None
        return (
            self.probes.get(name)
            or second
            or Probe(name, "", "chat", (), None, 1, {}, None, None, None, 300.0)
        )


def sample_of(target: str, point: CanaryPoint) -> Sample:
    """A point as the sample it came from, as far as the judges of liveness and answers look at
    it.
    """
    return Sample(
        target=target,
        probe=point.probe,
        traffic_class=point.traffic_class,
        started_at=as_time(point.at_us),
        phase=_PHASES.get(point.phase, Phase.WARM),
        outcome=_OUTCOMES.get(point.outcome, Outcome.OK),
        verdict=_VERDICTS.get(point.verdict or "", Verdict.UNKNOWN),
        stale=point.stale,
        fingerprint=point.fingerprint,
        pin=point.pin,
        ttft_ms=point.ttft_ms,
        e2e_ms=point.e2e_ms,
        running=point.running,
        other_generation_tokens=point.other_generation_tokens,
        first_divergence=None if point.first_divergence is None else int(point.first_divergence),
        logprob_shift=point.logprob_shift,
    )


@dataclass(slots=True)
class Liveness:
    """Down, hung, silent, or without a usable answer."""

    target: str
    rules: Rules
    book: Book
    _failed: deque[Contact] = field(
        default_factory=lambda: deque(maxlen=KEPT)
    )  # contacts since somebody answered
    _hung: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    _streaks: dict[str, deque[Sample]] = field(
        default_factory=dict
    )  # runs without a usable answer, by probe
    _last: dict[str, datetime] = field(default_factory=dict)
    _page_us: int | None = None
    _watched_us: int = 0
    _silent_us: int = 0

    def canary(self, point: CanaryPoint, now_us: int) -> None:
        """Take up one canary and judge."""
        self._silent_us = min(self._silent_us, now_us)
        if self.rules.intervals:
            self._last[point.probe] = as_time(point.at_us)
        if point.outcome == Outcome.OK.value:
            self._well(point, now_us)
            return
        if point.outcome == Outcome.CANCELLED.value:
            return
        sample = sample_of(self.target, point)
        broke = sample.outcome in {Outcome.STREAM_ERROR, Outcome.TRUNCATED}
        at = sample.started_at + timedelta(
            milliseconds=(sample.ttft_ms if broke else sample.e2e_ms) or 0.0
        )
        self._contact(
            Contact(at, point.outcome not in NOBODY_ANSWERED, f"a canary was {point.outcome}"),
            now_us,
        )
        self._hung.append(sample)
        self._streaks.setdefault(point.probe, deque(maxlen=KEPT)).append(sample)
        self._judge_samples(now_us)

    def server(self, point: ServerPoint, now_us: int) -> None:
        """Take up one reading of the metrics page and judge."""
        if self._page_us is None or point.at_us - self._page_us > UNWATCHED_US:
            self._watched_us = point.at_us
        self._page_us = point.at_us
        if self.rules.same_address and point.state != "timeout":
            contact = Contact(
                as_time(point.at_us),
                point.state != "refused",
                f"the metrics page was {point.state}",
            )
            self._contact(contact, now_us)
        if self.rules.intervals and now_us >= self._silent_us:
            self._judge_silence(now_us)

    def _well(self, point: CanaryPoint, now_us: int) -> None:
        if not (self._failed or self._hung or point.probe in self._streaks):
            return
        self._hung.clear()
        self._streaks.pop(point.probe, None)
        self._contact(Contact(as_time(now_us), True, "a canary was ok"), now_us)
        self._judge_samples(now_us)

    def _contact(self, contact: Contact, now_us: int) -> None:
        if contact.answered and not self._failed:
            return
        if contact.answered:
            self._failed.clear()
        else:
            self._failed.append(contact)
        found = judge_server_down(self.target, list(self._failed))
        self.book.reconcile(
            (Kind.SERVER_DOWN.value,),
            [] if found is None else [found],
            now_us,
            lambda _e: not self._failed,
        )

    def _judge_samples(self, now_us: int) -> None:
        recent = as_time(now_us - LOOK_BACK_US)
        down = self.book.is_open((Kind.SERVER_DOWN.value,))
        hung = (
            None
            if down
            else judge_hung(self.target, [s for s in self._hung if s.started_at >= recent])
        )
        self.book.reconcile((Kind.HUNG.value,), [] if hung is None else [hung], now_us)
        unanswered = [
            s for streak in self._streaks.values() for s in streak if s.started_at >= recent
        ]
        found = judge_unmeasured(self.target, sorted(unanswered, key=lambda s: s.started_at), {})
        self.book.reconcile((Kind.UNKNOWN_LASTING.value,), found, now_us)

    def _judge_silence(self, now_us: int) -> None:
        """Only where the readings show that somebody watched. Next when the first probe could have
        been silent for long enough.
        """
        now, since = as_time(now_us), as_time(self._watched_us)
        found = judge_no_samples(self.target, self.rules.intervals, self._last, since, now)

        def is_over(entry: Entry) -> bool:
            return as_us(self._last.get(entry.finding.subject, as_time(0))) > entry.opened_us

        self.book.reconcile((Kind.NO_SAMPLES.value,), found, now_us, is_over)
        starts = [
            max(self._last.get(name, since), since) + MISSED_INTERVALS * every
            for name, every in self.rules.intervals.items()
        ]
        self._silent_us = as_us(min(starts))


@dataclass(slots=True)
class Answers:
    """What the verdicts add up to: the daemon's own machine, asked only when the newest run could
    change its answer.
    """

    target: str
    rules: Rules
    book: Book
    _answers: LastAnswers[CanaryPoint] = field(init=False)

    def __post_init__(self) -> None:
        """No run is left out for want of a configuration."""
        self._answers = LastAnswers(self.target, self.rules.probe)

    def canary(self, point: CanaryPoint, now_us: int) -> None:
        """Take up one canary and judge."""
        if not self._answers.add(point) and not (
            point.verdict == Verdict.UNPINNED and self.book.is_open(ANSWERS)
        ):
            return
        moved = point.logprob_shift is not None and self._answers.moved(
            point.probe, self.rules.pins
        )
        if moved or point.verdict != Verdict.PASS.value or self.book.is_open(ANSWERS):
            found = self._answers.findings(
                lambda run: sample_of(self.target, run), self.rules.pins, lambda _: None
            )
            self.book.reconcile(ANSWERS, found, now_us)
