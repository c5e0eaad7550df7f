"""The quality gate on every canary, and what its verdicts add up to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from monitor.judge.expect import Judgement, judge_answer
from monitor.judge.pinned import PinJudgement, judge_pinned, other_prompt
from monitor.judge.shift import judge_shift
from monitor.model import Cause, Finding, Kind, ObservedAnswer, Outcome, Pin, Probe, Sample, Severity, Verdict

SHIFT_ROUNDS = 3
NEAR_TIE_RUNS = 50
NEAR_TIE_SHARE = 0.2
LEAST_NEAR_TIES = 5


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
    """Probes with too few passes among their last runs, each counted for itself. Samples oldest first; stale verdicts page nobody."""
    findings = []
    for probe in probes:
        judged = [s for s in samples if s.probe == probe.name and s.verdict in {Verdict.PASS, Verdict.FAIL, Verdict.NEAR_TIE}]
        last = judged[-probe.repeats :]
        failed = [s for s in last if s.verdict is Verdict.FAIL]
        allowed = probe.repeats - probe.require
        if len(failed) > allowed:
            findings.append(_quality(target, probe, last, failed, reasons.get(probe.name)))
    return findings


def _quality(target: str, probe: Probe, last: Sequence[Sample], failed: Sequence[Sample], reason: str | None) -> Finding:
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


def judge_near_ties(target: str, samples: Sequence[Sample]) -> Finding | None:
    """A rising share of near ties: nothing is wrong yet, but the answers stand less firm than when they were pinned."""
    judged = [s for s in samples if s.pin is not None and s.verdict in {Verdict.PASS, Verdict.NEAR_TIE, Verdict.FAIL}][-NEAR_TIE_RUNS:]
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
    """Log-probabilities of pinned answers moved together although the texts are the same (monitor/judge/shift.py names the test).

    Only samples that had the server to themselves count: with others in the batch a little noise is normal.
    """
    alone = [s for s in samples if s.pin in pins and s.logprob_shift is not None and s.first_divergence is None and not s.stale]
    alone = [s for s in alone if s.other_generation_tokens in {0, None}]
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
        summary=f"the model on {target} is not the one that was pinned: the answers read the same, but their log-probabilities moved "
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
