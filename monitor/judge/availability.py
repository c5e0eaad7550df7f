"""Availability: the server answers, its engine makes progress, and the canaries run. These judges
need no baseline and work from the first minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from monitor.model import Cause, Contact, Finding, Kind, Outcome, Sample, Severity

#: Two failed contacts this far apart are an outage: one dropped connection is not, and waiting
#: longer only delays the alert.
DOWN_SPAN = timedelta(seconds=5)
MISSED_INTERVALS = 3
LEAST_SILENCE = timedelta(seconds=30)


def judge_server_down(target: str, contacts: Sequence[Contact]) -> Finding | None:
    """Returns the outage that the last contacts show, if any. Contacts are oldest first; any
    answer, even an error, shows that the server is up.
    """
    failed: list[Contact] = []
    for contact in reversed(contacts):
        if contact.answered:
            break
        failed.append(contact)
    if len(failed) < 2 or failed[0].at - failed[-1].at < DOWN_SPAN:
        return None
    return Finding(
        kind=Kind.SERVER_DOWN,
        target=target,
        subject=target,
        severity=Severity.PAGE,
        since=failed[-1].at,
        cause=Cause.SERVER_FAULT,
        evidence={"failed_contacts": len(failed), "last_error": failed[0].detail},
    )


#: Outcomes that rule out a hung engine: it made progress, it sleeps, or the process is gone, which
#: is `server_down`.
_NOT_HUNG = frozenset(
    {Outcome.OK, Outcome.QUEUE_CAP, Outcome.EMPTY, Outcome.REFUSED, Outcome.ASLEEP}
)


def judge_hung(target: str, samples: Sequence[Sample]) -> Finding | None:
    """Returns a hang: a canary was `hung`, and no later one shows progress. Samples are oldest
    first.
    """
    hung: list[Sample] = []
    for sample in reversed(samples):
        if sample.outcome is Outcome.HUNG:
            hung.append(sample)
        elif sample.outcome in _NOT_HUNG or sample.ttft_ms is not None:
            break
    if not hung:
        return None
    longest = max(s.e2e_ms or 0.0 for s in hung)
    return Finding(
        kind=Kind.HUNG,
        target=target,
        subject=target,
        severity=Severity.PAGE,
        since=hung[-1].started_at,
        cause=Cause.SERVER_FAULT,
        evidence={"hung_samples": len(hung), "probe": hung[0].probe, "waited_ms": longest},
    )


def judge_no_samples(
    target: str,
    intervals: Mapping[str, timedelta],
    last: Mapping[str, datetime],
    watching_since: datetime,
    now: datetime,
) -> list[Finding]:
    """Returns a finding for each probe without a sample for three of its intervals."""
    findings = []
    for probe, interval in sorted(intervals.items()):
        limit = max(MISSED_INTERVALS * interval, LEAST_SILENCE)
        since = max(last.get(probe, watching_since), watching_since)
        if now - since > limit:
            findings.append(_silent(target, probe, interval, since, last.get(probe)))
    return findings


def _silent(
    target: str, probe: str, interval: timedelta, since: datetime, last: datetime | None
) -> Finding:
    return Finding(
        kind=Kind.NO_SAMPLES,
        target=target,
        subject=probe,
        severity=Severity.WARNING,
        since=since,
        evidence={
            "interval_s": interval.total_seconds(),
            "last_sample_at": None if last is None else last.isoformat(),
        },
    )


#: Outcomes that end a streak of unusable answers: a good answer, or a failure with its own kind.
_KNOWN = frozenset({Outcome.OK, Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.REFUSED})
LASTING_RUNS = 3


def judge_unmeasured(
    target: str, samples: Sequence[Sample], details: Mapping[str, str]
) -> list[Finding]:
    """Returns a finding for each probe whose last three or more runs all ended without a usable
    answer, for example with HTTP 401 after a key was changed.

    Samples are oldest first; `details` holds the stored text about each probe's newest failure.
    """
    streaks: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.outcome in _KNOWN:
            streaks[sample.probe] = []
        elif sample.outcome is not Outcome.CANCELLED:
            streaks.setdefault(sample.probe, []).append(sample)
    return [
        _unmeasured(target, probe, streak, details.get(probe))
        for probe, streak in sorted(streaks.items())
        if len(streak) >= LASTING_RUNS
    ]


def _unmeasured(target: str, probe: str, streak: Sequence[Sample], detail: str | None) -> Finding:
    return Finding(
        kind=Kind.UNKNOWN_LASTING,
        target=target,
        subject=probe,
        severity=Severity.WARNING,
        since=streak[0].started_at,
        evidence={"outcome": streak[-1].outcome.value, "detail": detail},
    )
