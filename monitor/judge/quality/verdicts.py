"""Findings from the verdicts of many runs: failures of one probe, failures over all probes, near
ties, and the shift of log-probabilities. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from monitor.judge.quality.flips import ALARM_NAT, FAILING_RATE, FLIP_RATE, SEVERAL, Flips
from monitor.judge.quality.gate import was_alone
from monitor.judge.quality.shift import LOG_PROBABILITIES, judge_shift
from monitor.model import Cause, Finding, Kind, Pin, Probe, Sample, Severity, Verdict

SHIFT_ROUNDS = 3
NEAR_TIE_RUNS = 50
NEAR_TIE_SHARE = 0.2
LEAST_NEAR_TIES = 5
JUDGED = frozenset({Verdict.PASS, Verdict.NEAR_TIE, Verdict.FAIL})
DetailOf = Callable[[Sample], str | None]


def judge_quality(
    target: str, probes: Sequence[Probe], last: Mapping[str, Sequence[Sample]], detail_of: DetailOf
) -> list[Finding]:
    """Returns the probes with too few passes among their last runs, each counted by itself.

    `last`: each probe's judged runs, oldest first; stale verdicts are never a page. `detail_of`
    returns the stored text about a sample that failed.
    """
    findings = []
    for probe in probes:
        runs = list(last.get(probe.name, ()))[-probe.repeats :]
        if too_few_passes([s.verdict is Verdict.FAIL for s in runs], probe.repeats, probe.require):
            findings.append(_quality(target, probe, runs, detail_of))
    return findings


def too_few_passes(failed: Sequence[bool], repeats: int, require: int) -> bool:
    """Whether more of a probe's last runs failed than `repeats` and `require` allow. A run that is
    still missing does not count as a failure.
    """
    return sum(failed[-repeats:]) > repeats - require


def _quality(target: str, probe: Probe, last: Sequence[Sample], detail_of: DetailOf) -> Finding:
    failed = [s for s in last if s.verdict is Verdict.FAIL]
    stale = all(s.stale for s in failed)
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject=probe.name,
        severity=Severity.INFO if stale else Severity.PAGE,
        since=failed[0].started_at,
        cause=Cause.CONFIG_CHANGE if stale else Cause.ANSWERS_CHANGED,
        evidence={
            "failed": len(failed),
            "of": len(last),
            "require": probe.require,
            "reason": detail_of(failed[-1]),
            "stale": stale,
        },
    )


def judge_together(target: str, state: Flips, since: datetime, runs: int) -> Finding | None:
    """Returns failures over all probes that are more frequent than answers flip by themselves
    (flips.py describes the test). `since`: when the first of them was sent; `runs`: the number of
    runs since then.
    """
    if not state.alarmed:
        return None
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject=SEVERAL,
        severity=Severity.PAGE,
        since=since,
        cause=Cause.ANSWERS_CHANGED,
        evidence={
            "test": "Bernoulli CUSUM over the runs of all probes",
            "evidence_nat": state.evidence_nat,
            "alarm_nat": ALARM_NAT,
            "flip_rate": FLIP_RATE,
            "failing_rate": FAILING_RATE,
            "failed": sum(state.failures.values()),
            "of": runs,
            "failed_twice": list(state.failed_twice),
        },
    )


def judge_near_ties(target: str, samples: Sequence[Sample]) -> Finding | None:
    """Returns a high share of near ties: no answer is wrong yet, but answers are less stable than
    when they were pinned.
    """
    judged = [s for s in samples if s.pin is not None and s.verdict in JUDGED][-NEAR_TIE_RUNS:]
    ties = [s for s in judged if s.verdict is Verdict.NEAR_TIE]
    if len(ties) < LEAST_NEAR_TIES or len(ties) < NEAR_TIE_SHARE * len(judged):
        return None
    return Finding(
        kind=Kind.NEAR_TIES,
        target=target,
        subject=target,
        severity=Severity.WARNING,
        since=ties[0].started_at,
        cause=Cause.ANSWERS_CHANGED,
        evidence={
            "near_ties": len(ties),
            "of": len(judged),
            "probes": sorted({s.probe for s in ties}),
        },
    )


def judge_model_shift(
    target: str, samples: Sequence[Sample], pins: Mapping[int, Pin]
) -> Finding | None:
    """Returns a shift of the log-probabilities of pinned answers, whether or not the texts are the
    same (shift.py describes the test).

    Only samples that had the server to themselves count: a batch with other requests adds a little
    noise.
    """
    last = _last_measured(samples, pins)
    shifts = {
        probe: [s.logprob_shift for s in runs if s.logprob_shift is not None]
        for probe, runs in last.items()
    }
    own = {probe: pins[runs[-1].pin] for probe, runs in last.items() if runs[-1].pin is not None}
    noise = {probe: pin.noise_nat for probe, pin in own.items()}
    result = judge_shift(shifts, noise, {probe: pin.repeats for probe, pin in own.items()})
    if not result.shifted:
        return None
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject=LOG_PROBABILITIES,
        severity=Severity.WARNING,
        since=min(s.started_at for runs in last.values() for s in runs),
        cause=Cause.ANSWERS_CHANGED,
        evidence={
            "test": "rank test against the pin's repeats, binomial over probes",
            "effect_nat": result.effect_nat,
            "p_value": result.p_value,
            "probes": result.probes,
            "rounds": result.rounds,
            "moved": list(result.moved),
        },
    )


def _last_measured(
    samples: Sequence[Sample], pins: Mapping[int, Pin]
) -> Mapping[str, Sequence[Sample]]:
    """Returns the last runs of each probe that can be used in the test of the model shift."""
    alone: dict[str, list[Sample]] = {}
    for s in samples:
        if s.pin in pins and s.logprob_shift is not None and not s.stale and was_alone(s):
            alone.setdefault(s.probe, []).append(s)
    return {probe: runs[-SHIFT_ROUNDS:] for probe, runs in alone.items()}
