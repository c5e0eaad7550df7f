"""The quality gate on every canary, and what its verdicts add up to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from monitor.judge.expect import Judgement, judge_answer
from monitor.judge.flips import ALARM_NAT, FAILING_RATE, FLIP_RATE, Flips
from monitor.judge.pinned import PinJudgement, judge_pinned, other_prompt
from monitor.judge.shift import judge_shift
from monitor.model import Cause, Finding, Kind, ObservedAnswer, Outcome, Pin, Probe, Sample, Severity, Verdict

SHIFT_ROUNDS = 3
NEAR_TIE_RUNS = 50
NEAR_TIE_SHARE = 0.2
LEAST_NEAR_TIES = 5
SEVERAL = "several probes"  # the subject of what no probe shows alone; no probe can have a blank in its name
JUDGED = frozenset({Verdict.PASS, Verdict.NEAR_TIE, Verdict.FAIL})


def pin_for(pins: Sequence[Pin], probe: Probe, digest: str | None) -> tuple[Pin | None, bool]:
    """The pin that a probe is judged by, and whether it is stale. Pins of the present identity come first; one that was taken under
    another identity still judges, but waits for a retest. A pin of another revision of the probe's text judges nothing."""
    own = [pin for pin in pins if pin.probe == probe.name and pin.revision == probe.revision and pin.retired_at is None]
    current = next((pin for pin in own if pin.fingerprint in {digest, None}), None)  # taken while no identity was known: it holds
    if current is not None:
        return current, False
    return (own[0], True) if own else (None, False)


def judge_gate(probe: Probe, outcome: Outcome, observed: ObservedAnswer, pin: Pin | None) -> PinJudgement:
    """Conditions first, then the pin: all must hold."""
    if pin is not None and outcome is Outcome.OK and (blamed := other_prompt(pin, observed)) is not None:
        return PinJudgement(Verdict.FAIL, blamed)  # before anything else: another prompt is not another model
    plain: Judgement = judge_answer(probe, outcome, observed.text, observed.finish_reason)
    if pin is None or outcome is not Outcome.OK or plain.verdict is Verdict.FAIL:
        return PinJudgement(plain.verdict, plain.reason)
    return judge_pinned(pin, observed)


def judge_quality(target: str, probes: Sequence[Probe], samples: Sequence[Sample], reasons: Mapping[str, str]) -> list[Finding]:
    """Probes with too few passes among their last runs, each counted for itself; and failures that are too many over all of them.
    Samples oldest first; stale verdicts page nobody."""
    findings = []
    judged = [s for s in samples if s.verdict in JUDGED]
    for probe in probes:
        last = [s for s in judged if s.probe == probe.name][-probe.repeats :]
        if too_few_passes([s.verdict is Verdict.FAIL for s in last], probe.repeats, probe.require):
            findings.append(_quality(target, probe, last, reasons.get(probe.name)))
    names = {probe.name for probe in probes}
    together = _failing_together(target, [s for s in judged if s.probe in names and not s.stale])
    return findings if together is None else [*findings, together]


def too_few_passes(failed: Sequence[bool], repeats: int, require: int) -> bool:
    """Whether more of a probe's last runs failed than `repeats` and `require` allow; a run that is still to come is not held against it."""
    return sum(failed[-repeats:]) > repeats - require


def _failing_together(target: str, runs: Sequence[Sample]) -> Finding | None:
    """Failures over all probes, more than answers flip by themselves (monitor/judge/flips.py names the test)."""
    state, since = Flips(), None
    for sample in runs:
        failed = sample.verdict is Verdict.FAIL
        if failed and not state.failures:
            since = sample.started_at
        state = state.failed(sample.probe) if failed else state.passed()
    if not state.alarmed or since is None:
        return None
    failures, of = sum(state.failures.values()), sum(s.started_at >= since for s in runs)
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject=SEVERAL,
        severity=Severity.PAGE,
        summary=f"answers fail on {target} more often than they flip by themselves: {failures} of the last {of} over all probes, "
        f"twice or more on {', '.join(state.failed_twice)}",
        since=since,
        cause=Cause.ANSWERS_CHANGED,
        evidence={
            "test": "Bernoulli CUSUM over the runs of all probes",
            "evidence_nat": state.evidence_nat,
            "alarm_nat": ALARM_NAT,
            "flip_rate": FLIP_RATE,
            "failing_rate": FAILING_RATE,
            "failed": failures,
            "of": of,
            "failed_twice": list(state.failed_twice),
        },
    )


def _quality(target: str, probe: Probe, last: Sequence[Sample], reason: str | None) -> Finding:
    failed = [s for s in last if s.verdict is Verdict.FAIL]
    stale = all(s.stale for s in failed)
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject=probe.name,
        severity=Severity.INFO if stale else Severity.PAGE,
        summary=f"{probe.name} answers wrong on {target} ({len(failed)} of the last {len(last)} runs): {reason or 'see the samples'}",
        since=failed[0].started_at,
        cause=Cause.CONFIG_CHANGE if stale else Cause.ANSWERS_CHANGED,
        evidence={"failed": len(failed), "of": len(last), "require": probe.require, "reason": reason, "stale": stale},
    )


def was_alone(sample: Sample) -> bool:
    """Whether the server worked for nobody else during the sample. The tokens of others tell it best: the gauge of running requests stays
    where it was when the last one is aborted (vLLM #29928)."""
    others = sample.other_generation_tokens
    return not sample.running if others is None else others <= 0


def judge_near_ties(target: str, samples: Sequence[Sample]) -> Finding | None:
    """A rising share of near ties: nothing is wrong yet, but the answers stand less firm than when they were pinned."""
    judged = [s for s in samples if s.pin is not None and s.verdict in JUDGED][-NEAR_TIE_RUNS:]
    ties = [s for s in judged if s.verdict is Verdict.NEAR_TIE]
    if len(ties) < LEAST_NEAR_TIES or len(ties) < NEAR_TIE_SHARE * len(judged):
        return None
    return Finding(
        kind=Kind.NEAR_TIES,
        target=target,
        subject=target,
        severity=Severity.WARNING,
        summary=f"{len(ties)} of the last {len(judged)} pinned answers on {target} were near ties: they stand less firm than when pinned",
        since=ties[0].started_at,
        cause=Cause.ANSWERS_CHANGED,
        evidence={"near_ties": len(ties), "of": len(judged), "probes": sorted({s.probe for s in ties})},
    )


def judge_model_shift(target: str, samples: Sequence[Sample], pins: Mapping[int, Pin]) -> Finding | None:
    """Log-probabilities of pinned answers moved together, whether or not the texts are the same (monitor/judge/shift.py names the test).

    Only samples that had the server to themselves count: with others in the batch a little noise is normal.
    """
    alone = [s for s in samples if s.pin in pins and s.logprob_shift is not None and not s.stale and was_alone(s)]
    last = {probe: [s for s in alone if s.probe == probe][-SHIFT_ROUNDS:] for probe in {s.probe for s in alone}}
    shifts = {probe: [s.logprob_shift for s in few if s.logprob_shift is not None] for probe, few in last.items()}
    own = {probe: pins[few[-1].pin] for probe, few in last.items() if few and few[-1].pin is not None}
    noise = {probe: pin.noise_nat or 0.0 for probe, pin in own.items()}
    result = judge_shift(shifts, noise, {probe: pin.repeats for probe, pin in own.items()})
    if not result.shifted:
        return None
    newest = [s for few in last.values() for s in few]
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject="log-probabilities",
        severity=Severity.WARNING,
        summary=f"the model on {target} is not the one that was pinned: the log-probabilities of the pinned answers moved "
        f"by {result.effect_nat or 0:.3f} nat over {result.probes} probes and {result.rounds} rounds",
        since=min(s.started_at for s in newest),
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


def judge_pin_expiry(target: str, pins: Sequence[Pin], now: datetime) -> list[Finding]:
    """Pins whose date has passed: they judge on, and ask to be renewed."""
    return [
        Finding(
            kind=Kind.PIN_EXPIRED,
            target=target,
            subject=pin.probe,
            severity=Severity.INFO,
            summary=f"the pin of {pin.probe} on {target} has expired ({pin.expires_at:%Y-%m-%d}); pin it anew with a reason",
            since=pin.expires_at,
            evidence={"pin": pin.id, "reason": pin.reason, "created_at": pin.created_at.isoformat()},
        )
        for pin in pins
        if pin.retired_at is None and pin.expires_at <= now
    ]
