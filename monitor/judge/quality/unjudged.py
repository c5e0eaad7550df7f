"""Answers that came and that nobody could judge: lasting unknown is a finding of its own, as with
answers that do not come. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monitor.judge.availability import LASTING_RUNS
from monitor.model import Finding, Kind, Outcome, Probe, Sample, Severity, Verdict

#: These say nothing about whether a probe's answers can be judged, and something else speaks of
#: them.
_SILENT = frozenset({Outcome.CANCELLED, Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.REFUSED})


def judge_unjudged(
    target: str,
    probes: Sequence[Probe],
    samples: Sequence[Sample],
    tell: Callable[[Sample], str | None],
) -> list[Finding]:
    """Probes whose last three finished answers or more were not judged although the probe asks for
    it: `pinned: true` and no pin that holds for the probe's present text, or a judge that could not
    (verdict `unknown`).

    Samples oldest first; `tell`: the stored sentence about a sample. Ends with the first answer
    that is judged. The subject is the probe, as in `judge_unmeasured`, and never both at once:
    there the last runs brought no answer.
    """
    streaks = {
        probe.name: _streak(probe, [s for s in samples if s.probe == probe.name])
        for probe in probes
    }
    return [
        _unjudged(target, name, streak, tell)
        for name, streak in sorted(streaks.items())
        if len(streak) >= LASTING_RUNS
    ]


def _streak(probe: Probe, runs: Sequence[Sample]) -> list[Sample]:
    """The last finished answers that were not judged, oldest first."""
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
    target: str, probe: str, streak: Sequence[Sample], tell: Callable[[Sample], str | None]
) -> Finding:
    newest, since = streak[-1], streak[0].started_at
    if newest.verdict is Verdict.UNPINNED:
        why = (
            f"no pin holds for its present text; `vllm-canary pin {probe} --target {target} "
            '--reason "…"` records one'
        )
    else:
        why = tell(newest) or "the judge could not read them"
    return Finding(
        kind=Kind.UNKNOWN_LASTING,
        target=target,
        subject=probe,
        severity=Severity.WARNING,
        summary=(
            f"the answers of {probe} on {target} have not been judged since "
            f"{since:%Y-%m-%d %H:%M} UTC: {why}"
        ),
        since=since,
        evidence={"verdict": newest.verdict.value, "runs": len(streak), "detail": why},
    )
