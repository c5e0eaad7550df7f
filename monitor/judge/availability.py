"""Is the server there, does it move, and do our own canaries run? No learning needed: armed from
the first minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from monitor.model import Cause, Contact, Finding, Kind, Outcome, Sample, Severity

#: Two failed contacts this far apart: one dropped connection is no outage, and waiting longer
#: delays the message.
DOWN_SPAN = timedelta(seconds=5)
MISSED_INTERVALS = 3  # DESIGN.md: no sample for three intervals
LEAST_SILENCE = timedelta(seconds=30)


def judge_server_down(target: str, contacts: Sequence[Contact]) -> Finding | None:
    """Nobody answered at the last contacts, oldest first in `contacts`; any answer, even an error,
    means that somebody is there.
    """
    failed: list[Contact] = []
    for contact in reversed(contacts):
        if contact.answered:
            break
        failed.append(contact)
    if len(failed) < 2 or failed[0].at - failed[-1].at < DOWN_SPAN:
        return None
    since = failed[-1].at
    return Finding(
        kind=Kind.SERVER_DOWN,
        target=target,
        subject=target,
        severity=Severity.PAGE,
        summary=f"{target} has not answered since {since:%Y-%m-%d %H:%M:%S} UTC: {failed[0].detail}",
        since=since,
        cause=Cause.SERVER_FAULT,
        evidence={"failed_contacts": len(failed), "last_error": failed[0].detail},
    )


#: Outcomes that show that the engine is not hung: it moved, it sleeps, or the process is gone and
#: `server_down` speaks.
_NOT_HUNG = frozenset(
    {Outcome.OK, Outcome.QUEUE_CAP, Outcome.EMPTY, Outcome.REFUSED, Outcome.ASLEEP}
)


def judge_hung(target: str, samples: Sequence[Sample]) -> Finding | None:
    """The newest canary found the engine still, and none has been answered since. Samples oldest
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
        summary=(
            f"the engine of {target} stands still: a request was out for "
            f"{longest / 1000:.0f} s and no engine step was counted"
        ),
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
    """Probes without any sample for three of their intervals. Silence is not health: it is said by
    probe.
    """
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
        summary=(
            f"{probe} has measured nothing on {target} for {MISSED_INTERVALS} of its "
            "intervals; what the server does is unknown"
        ),
        since=since,
        evidence={
            "interval_s": interval.total_seconds(),
            "last_sample_at": None if last is None else last.isoformat(),
        },
    )


#: Outcomes that end a streak of unknown: a good answer, or a trouble that has a finding of its own.
_KNOWN = frozenset({Outcome.OK, Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.REFUSED})
LASTING_RUNS = 3


def judge_unmeasured(
    target: str, samples: Sequence[Sample], details: Mapping[str, str]
) -> list[Finding]:
    """Probes whose last three runs or more all ended without a usable answer, for example with HTTP
    401 after a key was changed.

    Samples oldest first; `details` has the sentence about each probe's newest failure. Lasting
    unknown is reported, by probe.
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
    why = detail or f"the last run ended as {streak[-1].outcome.value}"
    return Finding(
        kind=Kind.UNKNOWN_LASTING,
        target=target,
        subject=probe,
        severity=Severity.WARNING,
        summary=(
            f"{probe} has had no usable answer from {target} since "
            f"{streak[0].started_at:%Y-%m-%d %H:%M} UTC: {why}"
        ),
        since=streak[0].started_at,
        evidence={"outcome": streak[-1].outcome.value, "detail": detail},
    )
