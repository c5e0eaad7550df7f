"""Availability, kept up point by point: whether a target is down, hung, silent, or without a usable
or a judged answer.

Evidence older than an hour is not used, except to say for how long a pinned probe has not been
judged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from monitor.judge.availability import (
    LASTING_RUNS,
    LEAST_SILENCE,
    MISSED_INTERVALS,
    judge_hung,
    judge_no_samples,
    judge_server_down,
    judge_unmeasured,
)
from monitor.judge.evaluator.assessment import Assessment, OpenIncident, Rules, sample_of
from monitor.judge.quality.unjudged import judge_unjudged
from monitor.judge.quality.verdicts import DetailOf
from monitor.model import (
    CanaryPoint,
    Contact,
    Finding,
    Kind,
    Outcome,
    Sample,
    ServerPoint,
    Verdict,
    from_us,
    to_us,
)

KINDS = (Kind.SERVER_DOWN, Kind.HUNG, Kind.NO_SAMPLES, Kind.UNKNOWN_LASTING)
LOOK_BACK = timedelta(hours=1)
KEPT = 300  # contacts, and runs of a probe, that are kept for one finding
NEVER_US = 1 << 62
# plain strings: in a replay of a year, looking them up in the enumerations shows
_OK, _CANCELLED = Outcome.OK.value, Outcome.CANCELLED.value
_NOBODY_ANSWERED = frozenset({Outcome.REFUSED.value, Outcome.TIMEOUT.value})
_BROKE_OFF = frozenset({Outcome.STREAM_ERROR.value, Outcome.TRUNCATED.value})


def contact_of(point: CanaryPoint) -> Contact:
    """Returns what a canary proves about the server, and when.

    A stream that broke proves that the server was there at the first token, not at the end.
    """
    waited_ms = point.ttft_ms if point.outcome in _BROKE_OFF else point.e2e_ms
    return Contact(
        at=from_us(point.at_us) + timedelta(milliseconds=waited_ms or 0.0),
        answered=point.outcome not in _NOBODY_ANSWERED,
        detail=f"a canary was {point.outcome}",
    )


def page_contact(point: ServerPoint, rules: Rules) -> Contact | None:
    """Returns what a reading of the metrics page proves about the server.

    A page that timed out proves nothing: readings are given up after a second. A page at another
    address than the API says nothing about the API.
    """
    if point.state == "timeout" or not rules.same_address:
        return None
    return Contact(
        at=from_us(point.at_us),
        answered=point.state != "refused",
        detail=f"the metrics page was {point.state}",
    )


@dataclass(slots=True)
class Availability:
    """The judges of KINDS."""

    target: str
    rules: Rules
    last_us: dict[str, int] = field(default_factory=dict)  # start of each probe's last run
    _watched_us: int = 0
    _expected_us: int = 0
    _intervals: Mapping[str, timedelta] = field(default_factory=dict)
    _failed: deque[Contact] = field(default_factory=lambda: deque(maxlen=KEPT))
    _answered_us: int = -1
    _well_us: int = -1  # start of the newest canary that was answered
    _unwell: dict[str, deque[Sample]] = field(default_factory=dict)
    _unjudged: dict[str, deque[Sample]] = field(default_factory=dict)
    _changed: bool = False
    _silent_us: int = NEVER_US

    def watch_from(self, us: int) -> None:
        """Sets the time from which failed contacts count: before it, nothing was monitored."""
        self._watched_us = us

    def expect(self, since_us: int, intervals: Mapping[str, timedelta]) -> None:
        """Sets how often each probe should measure, counted from `since_us` at the earliest."""
        if (since_us, intervals) != (self._expected_us, self._intervals):
            self._expected_us, self._intervals, self._silent_us = since_us, intervals, 0

    def canary(self, point: CanaryPoint) -> None:
        """Processes one canary; one that we cancelled proves nothing."""
        outcome = point.outcome
        if outcome == _CANCELLED:
            return
        self.last_us[point.probe] = point.at_us
        if outcome == _OK:
            self._well(point)
        else:
            sample = sample_of(self.target, point)
            self._unwell.setdefault(point.probe, deque(maxlen=KEPT)).append(sample)
            self._contact(contact_of(point))
            self._changed = True
        if self.rules.probes:
            self.note_verdict(point)

    def note_verdict(self, point: CanaryPoint) -> None:
        """Keeps the runs of a configured probe since its last judged answer."""
        probe = self.rules.probes.get(point.probe)
        if probe is None or point.outcome == _CANCELLED:
            return
        waits = point.verdict == Verdict.UNKNOWN or (
            probe.pinned and point.verdict == Verdict.UNPINNED
        )
        if point.outcome == _OK and not waits:
            if self._unjudged.pop(point.probe, None) is not None:
                self._changed = True
            return
        sample = sample_of(self.target, point)
        self._unjudged.setdefault(point.probe, deque(maxlen=KEPT)).append(sample)
        self._changed = True

    def server(self, point: ServerPoint) -> None:
        """Processes one reading of the metrics page."""
        if point.state == "ok" and not self._failed:  # the common case of a replay
            if self.rules.same_address:
                self._answered(point.at_us)
            return
        contact = page_contact(point, self.rules)
        if contact is not None:
            self._contact(contact)

    def due(self, now_us: int) -> bool:
        """Whether the findings may have changed since they were last asked for."""
        return self._changed or now_us >= self._silent_us

    def assess(self, now_us: int, tell: DetailOf) -> Assessment:
        """Returns the current findings. `tell` returns the stored sentence about a sample."""
        now = from_us(now_us)
        self._changed, self._silent_us = False, self._next_silence_us()
        runs = self._recent_runs(now)
        down = judge_server_down(self.target, self._failed_while_watched())
        hung = (
            None if down is not None else judge_hung(self.target, self._after_the_last_good(runs))
        )
        findings = [
            *(found for found in (down, hung) if found is not None),
            *self._silent(now),
            *self._unmeasured(runs, tell),
            *self._without_verdict(now, tell),
        ]
        return Assessment(KINDS, findings, self._may_close)

    def _well(self, point: CanaryPoint) -> None:
        self._well_us = max(self._well_us, point.at_us)
        self._answered(point.known_us)
        if self._unwell and self._unwell.pop(point.probe, None) is not None:
            self._changed = True

    def _contact(self, contact: Contact) -> None:
        at_us = to_us(contact.at)
        if contact.answered:
            self._answered(at_us)
        elif at_us > self._answered_us:
            self._failed.append(contact)
            self._changed = True

    def _answered(self, at_us: int) -> None:
        self._answered_us = max(self._answered_us, at_us)
        if self._failed:
            later = [c for c in self._failed if to_us(c.at) > self._answered_us]
            self._failed = deque(later, maxlen=KEPT)
            self._changed = True

    def _failed_while_watched(self) -> list[Contact]:
        since = from_us(self._watched_us)
        failed = [contact for contact in self._failed if contact.at >= since]
        return sorted(failed, key=lambda contact: contact.at)

    def _recent_runs(self, now: datetime) -> list[Sample]:
        """Runs of the last hour without an answer, each later than its probe's last good one."""
        for probe, runs in list(self._unwell.items()):
            while runs and runs[0].started_at < now - LOOK_BACK:
                runs.popleft()
            if not runs:
                del self._unwell[probe]
        found = (run for runs in self._unwell.values() for run in runs)
        return sorted(found, key=lambda run: run.started_at)

    def _after_the_last_good(self, runs: Iterable[Sample]) -> list[Sample]:
        return [run for run in runs if to_us(run.started_at) > self._well_us]

    def _silent(self, now: datetime) -> list[Finding]:
        if not self._intervals:
            return []
        last = {probe: from_us(us) for probe, us in self.last_us.items()}
        since = from_us(self._expected_us)
        return judge_no_samples(self.target, self._intervals, last, since, now)

    def _unmeasured(self, runs: list[Sample], tell: DetailOf) -> list[Finding]:
        if not runs:
            return []
        lasting = (own for own in self._unwell.values() if len(own) >= LASTING_RUNS)
        details = {
            own[-1].probe: detail for own in lasting if (detail := tell(own[-1])) is not None
        }
        return judge_unmeasured(self.target, runs, details)

    def _without_verdict(self, now: datetime, tell: DetailOf) -> list[Finding]:
        lasting = {name: own for name, own in self._unjudged.items() if len(own) >= LASTING_RUNS}
        probes = [self.rules.probes[name] for name in lasting]
        runs = [
            run
            for probe in probes
            for run in lasting[probe.name]
            if probe.pinned or run.started_at >= now - LOOK_BACK
        ]
        return judge_unjudged(self.target, probes, runs, tell)

    def _may_close(self, incident: OpenIncident) -> bool:
        if incident.kind is Kind.SERVER_DOWN:
            return self._answered_us >= self._watched_us
        left = self.rules.only_known and incident.subject not in self.rules.probes
        if incident.kind is Kind.NO_SAMPLES and not left:
            return self.last_us.get(incident.subject, -1) > to_us(incident.opened_at)
        return True

    def _next_silence_us(self) -> int:
        """Returns the time from which the first probe will have been silent for too long."""
        ends = (
            max(self.last_us.get(probe, 0), self._expected_us)
            + max(MISSED_INTERVALS * interval, LEAST_SILENCE) // timedelta(microseconds=1)
            for probe, interval in self._intervals.items()
        )
        return min(ends, default=NEVER_US)
