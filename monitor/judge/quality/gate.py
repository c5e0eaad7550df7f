"""The quality gate on every canary, and what its verdicts add up to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from monitor.judge.quality.expect import Judgement, broken, judge_answer, not_judged
from monitor.judge.quality.flips import ALARM_NAT, FAILING_RATE, FLIP_RATE, Flips
from monitor.judge.quality.pinned import PinJudgement, judge_pinned, other_prompt
from monitor.judge.quality.shift import judge_shift
from monitor.model import (
    Cause,
    Finding,
    Kind,
    ObservedAnswer,
    Outcome,
    Pin,
    Probe,
    Sample,
    Severity,
    Verdict,
)
from monitor.text import one_line

SHIFT_ROUNDS = 3
NEAR_TIE_RUNS = 50
NEAR_TIE_SHARE = 0.2
LEAST_NEAR_TIES = 5
# the subject of what no probe shows alone; no probe can have a blank in its name
SEVERAL = "several probes"
JUDGED = frozenset({Verdict.PASS, Verdict.NEAR_TIE, Verdict.FAIL})
AGAIN = "-again"
Tell = Callable[[Sample], str | None]


def again(probe: Probe) -> Probe:
    """The second run of a probe that is sent twice with the same salt: a probe of its own, never in
    one cohort with the first.
    """
    return replace(probe, name=f"{probe.name}{AGAIN}")


def with_second_runs(probes: Iterable[Probe]) -> list[Probe]:
    """Every probe that has samples: the second runs of those that are sent twice too."""
    return [
        each
        for probe in probes
        for each in ([probe, again(probe)] if probe.same_salt_twice else [probe])
    ]


def first_of(probe: Probe) -> str:
    """The name of the probe that this is a run of; it asks the same, and is no witness of its own
    where probes are counted together.
    """
    return probe.name.removesuffix(AGAIN) if probe.same_salt_twice else probe.name


def pin_for(pins: Sequence[Pin], probe: Probe, digest: str | None) -> tuple[Pin | None, bool]:
    """The pin that a probe is judged by, and whether it is stale. Pins of the present identity come
    first; one that was taken under another identity still judges, but waits for a retest. A pin of
    another revision of the probe's text judges nothing. A second run is judged by the pin of the
    first. `pins`: the newest first.
    """
    names = {probe.name, first_of(probe)}
    own = [
        pin
        for pin in pins
        if pin.probe in names and pin.revision == probe.revision and pin.retired_at is None
    ]
    current = next((pin for pin in own if pin.fingerprint == digest), None)
    if current is not None:
        return current, False
    # Taken before any identity was known, and nothing else to go by: it holds until the first
    # identity takes it up (store/pins.adopt).
    unfiled = all(pin.fingerprint is None for pin in own)
    return (own[0], not unfiled) if own else (None, False)


def judge_gate(
    probe: Probe, outcome: Outcome, observed: ObservedAnswer, pin: Pin | None
) -> PinJudgement:
    """What is always a failure first, then the conditions, then the pin: all must hold. What no
    judge can read is `unknown`, and its reason says so: no answer may end the watch. Reasons are
    one line of at most LONGEST_DETAIL characters.
    """
    try:
        judged = _judged(probe, outcome, observed, pin)
    except (
        Exception
    ) as error:  # see above: a pin of another time, an answer of a shape nobody has thought of
        return PinJudgement(Verdict.UNKNOWN, not_judged(error))
    return judged if judged.reason is None else replace(judged, reason=one_line(judged.reason))


def _judged(
    probe: Probe, outcome: Outcome, observed: ObservedAnswer, pin: Pin | None
) -> PinJudgement:
    if (
        pin is not None
        and outcome is Outcome.OK
        and (blamed := other_prompt(pin, observed)) is not None
    ):
        return PinJudgement(
            Verdict.FAIL, blamed
        )  # before anything else: another prompt is not another model
    if outcome is Outcome.OK and (wrong := broken(probe, observed)) is not None:
        return PinJudgement(Verdict.FAIL, wrong)
    plain: Judgement = judge_answer(probe, outcome, observed.text, observed.finish_reason)
    if pin is None or outcome is not Outcome.OK or plain.verdict in {Verdict.FAIL, Verdict.UNKNOWN}:
        return PinJudgement(plain.verdict, plain.reason)
    return judge_pinned(pin, observed)


def judge_quality(
    target: str, probes: Sequence[Probe], last: Mapping[str, Sequence[Sample]], tell: Tell
) -> list[Finding]:
    """Probes with too few passes among their last runs, each counted for itself. `last`: each
    probe's judged runs, oldest first; stale verdicts page nobody. `tell`: the sentence about a
    sample that failed.
    """
    findings = []
    for probe in probes:
        runs = list(last.get(probe.name, ()))[-probe.repeats :]
        if too_few_passes([s.verdict is Verdict.FAIL for s in runs], probe.repeats, probe.require):
            findings.append(_quality(target, probe, runs, tell))
    return findings


def too_few_passes(failed: Sequence[bool], repeats: int, require: int) -> bool:
    """Whether more of a probe's last runs failed than `repeats` and `require` allow; a run that is
    still to come is not held against it.
    """
    return sum(failed[-repeats:]) > repeats - require


def judge_together(target: str, state: Flips, since: datetime, runs: int) -> Finding | None:
    """Failures over all probes, more than answers flip by themselves
    (monitor/judge/quality/flips.py names the test). `since`: when the first of them was sent;
    `runs`: how many runs there were from it on.
    """
    if not state.alarmed:
        return None
    failures = sum(state.failures.values())
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject=SEVERAL,
        severity=Severity.PAGE,
        summary=f"answers fail on {target} more often than they flip by themselves: {failures} "
        f"of the last {runs} over all probes, "
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
            "of": runs,
            "failed_twice": list(state.failed_twice),
        },
    )


def _quality(target: str, probe: Probe, last: Sequence[Sample], tell: Tell) -> Finding:
    failed = [s for s in last if s.verdict is Verdict.FAIL]
    stale, reason = all(s.stale for s in failed), tell(failed[-1])
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject=probe.name,
        severity=Severity.INFO if stale else Severity.PAGE,
        summary=(
            f"{probe.name} answers wrong on {target} ({len(failed)} of the last "
            f"{len(last)} runs): {reason or 'see the samples'}"
        ),
        since=failed[0].started_at,
        cause=Cause.CONFIG_CHANGE if stale else Cause.ANSWERS_CHANGED,
        evidence={
            "failed": len(failed),
            "of": len(last),
            "require": probe.require,
            "reason": reason,
            "stale": stale,
        },
    )


class Load(Protocol):
    """What the server did beside a run, as far as it is known."""

    @property
    def running(self) -> float | None: ...
    @property
    def other_generation_tokens(self) -> float | None: ...


def was_alone(run: Load) -> bool:
    """Whether it is known that the server worked for nobody else during a run. The tokens of others
    tell it best: the gauge of running requests stays where it was when the last one is aborted
    (vLLM #29928). Where neither can be read nobody knows, and that is no yes.
    """
    others = run.other_generation_tokens
    return run.running == 0 if others is None else others <= 0


def judge_near_ties(target: str, samples: Sequence[Sample]) -> Finding | None:
    """A rising share of near ties: nothing is wrong yet, but the answers stand less firm than when
    they were pinned.
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
        summary=(
            f"{len(ties)} of the last {len(judged)} pinned answers on {target} were near "
            "ties: they stand less firm than when pinned"
        ),
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
    """Log-probabilities of pinned answers moved together, whether or not the texts are the same
    (monitor/judge/quality/shift.py names the test).

    Only samples that had the server to themselves count: with others in the batch a little noise is
    normal.
    """
    alone = [
        s
        for s in samples
        if s.pin in pins and s.logprob_shift is not None and not s.stale and was_alone(s)
    ]
    last = {
        probe: [s for s in alone if s.probe == probe][-SHIFT_ROUNDS:]
        for probe in {s.probe for s in alone}
    }
    shifts = {
        probe: [s.logprob_shift for s in few if s.logprob_shift is not None]
        for probe, few in last.items()
    }
    own = {
        probe: pins[few[-1].pin] for probe, few in last.items() if few and few[-1].pin is not None
    }
    noise = {probe: pin.noise_nat for probe, pin in own.items()}
    result = judge_shift(shifts, noise, {probe: pin.repeats for probe, pin in own.items()})
    if not result.shifted:
        return None
    newest = [s for few in last.values() for s in few]
    return Finding(
        kind=Kind.QUALITY,
        target=target,
        subject="log-probabilities",
        severity=Severity.WARNING,
        summary=f"the model on {target} is not the one that was pinned: the log-probabilities "
        "of the pinned answers moved "
        f"by {result.effect_nat or 0:.3f} nat over {result.probes} probes and "
        f"{result.rounds} rounds",
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


def judge_pin_expiry(
    target: str, probes: Sequence[Probe], pins: Sequence[Pin], digest: str | None, now: datetime
) -> list[Finding]:
    """Pins that judge now and whose date has passed: they judge on, and ask to be renewed.
    `probes`: as they are sent to this target.
    """
    judging = (pin_for(pins, probe, digest)[0] for probe in probes)
    expired = {pin.probe: pin for pin in judging if pin is not None and pin.expires_at <= now}
    return [
        Finding(
            kind=Kind.PIN_EXPIRED,
            target=target,
            subject=pin.probe,
            severity=Severity.INFO,
            summary=(
                f"the pin of {pin.probe} on {target} has expired "
                f"({pin.expires_at:%Y-%m-%d}); pin it anew with a reason"
            ),
            since=pin.expires_at,
            evidence={
                "pin": pin.id,
                "reason": pin.reason,
                "created_at": pin.created_at.isoformat(),
            },
        )
        for pin in expired.values()
    ]
