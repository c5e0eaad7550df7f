"""Finished answers that no judge could judge. When that lasts, it is `unknown_lasting`, like
answers that do not come. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monitor.judge.availability import LASTING_RUNS
from monitor.model import Finding, Kind, Outcome, Probe, Sample, Severity, Verdict

#: Outcomes that say nothing about whether a probe's answers can be judged; other judges report
#: them.
_SILENT = frozenset({Outcome.CANCELLED, Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.REFUSED})


def judge_unjudged(
    target: str,
    probes: Sequence[Probe],
    samples: Sequence[Sample],
    detail_of: Callable[[Sample], str | None],
) -> list[Finding]:
    """Returns a finding for each probe whose last three or more finished answers were not judged:
    `pinned: true` and no pin for the current text of the probe, or verdict `unknown`.

    Samples are oldest first; `detail_of` returns the stored text about a sample. The first judged
    answer ends a streak. The subject is the probe, as in `judge_unmeasured`; the two never overlap,
    because there the last runs brought no answer.
    """
    streaks = {
        probe.name: _streak(probe, [s for s in samples if s.probe == probe.name])
        for probe in probes
    }
    return [
        _unjudged(target, name, streak, detail_of)
        for name, streak in sorted(streaks.items())
        if len(streak) >= LASTING_RUNS
    ]


def _streak(probe: Probe, runs: Sequence[Sample]) -> list[Sample]:
    """Returns the last finished answers that were not judged, oldest first."""
    streak: list[Sample] = []
    for run in reversed(runs):
        if run.outcome is Outcome.OK and (
            run.verdict is Verdict.UNKNOWN or (probe.pinned and run.verdict is Verdict.UNPINNED)
        ):
            streak.append(run)
        elif run.outcome not in _SILENT:
            break
    return streak[::-1]


def _unjudged(
    target: str, probe: str, streak: Sequence[Sample], detail_of: Callable[[Sample], str | None]
) -> Finding:
    newest = streak[-1]
    return Finding(
        kind=Kind.UNKNOWN_LASTING,
        target=target,
        subject=probe,
        severity=Severity.WARNING,
        since=streak[0].started_at,
        evidence={
            "verdict": newest.verdict.value,
            "runs": len(streak),
            "detail": detail_of(newest),
        },
    )
