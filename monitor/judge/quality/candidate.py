"""A candidate beside production: what `gate` concludes of each probe from a few rounds, and of all
of them together. Pure.

Three answers are possible: it got worse, it did not, or there is too little to say so (None). Too
little is never good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.judge.quality.candidate_speed import Decoding, speed_of
from monitor.judge.quality.flips import DISTINCT, FLIP_RATE
from monitor.judge.quality.pinned import PinJudgement
from monitor.judge.quality.shift import (
    LEAST_REPEATS,
    LEAST_ROUNDS,
    MOST_NOISE_NAT,
    P_VALUE,
    ShiftResult,
    binomial_tail,
)
from monitor.model import REGRESSIONS, Outcome, Probe, Sample, Verdict


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a probe on the candidate, judged by production's pin. `detail`: the sentence about
    a failure to measure; `stale`: production itself has changed since it was pinned.
    """

    sample: Sample
    judgement: PinJudgement
    detail: str | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How the candidate did with one probe, beside production. `regressed` None: too little could
    be measured or judged. `speed_only`: production has no pin for it, and its answers are judged by
    nothing but their speed.
    """

    probe: str
    passed: int
    near_ties: int
    failed: int
    of: int
    reason: str | None
    passed_against: int  # production's own last day, by the same pin
    of_against: int
    ttft_ms: float | None
    ttft_ms_against: float | None
    decode_tok_s: float | None
    decode_tok_s_against: float | None
    regressed: bool | None
    speed_only: bool = False


def judge_candidate(
    probe: Probe, rounds: Sequence[Round], production: Sequence[Sample], speed_only: bool = False
) -> ProbeResult:
    """`production`: its good samples of the last day. Failures count as `repeats` and `require` of
    the probe ask, scaled to rounds.
    """
    verdicts = [r.judgement.verdict for r in rounds]
    passed, ties = verdicts.count(Verdict.PASS), verdicts.count(Verdict.NEAR_TIE)
    broke = sum(
        r.sample.outcome in REGRESSIONS for r in rounds if r.judgement.verdict is not Verdict.FAIL
    )  # no round fails twice
    failed = verdicts.count(Verdict.FAIL) + broke
    own = [s for s in production if s.probe == probe.name]
    speed = speed_of([r.sample for r in rounds], own)
    needed = max(
        1, -(-len(rounds) * probe.require // probe.repeats)
    )  # rounded up: no larger share may fail than of `repeats` runs
    regressed: bool | None = failed > max(0, len(rounds) - needed) or speed.slow is not None
    right = sum(r.sample.outcome is Outcome.OK for r in rounds) if speed_only else passed + ties
    if not regressed and right < needed:
        regressed = None
    judged = [s for s in own if s.verdict in {Verdict.PASS, Verdict.NEAR_TIE, Verdict.FAIL}]
    return ProbeResult(
        probe=probe.name,
        passed=passed,
        near_ties=ties,
        failed=failed,
        of=len(rounds),
        reason=_reason(rounds, speed.slow, regressed, speed_only),
        passed_against=sum(s.verdict is Verdict.PASS for s in judged),
        of_against=len(judged),
        ttft_ms=speed.ttft_ms,
        ttft_ms_against=speed.ttft_ms_against,
        decode_tok_s=speed.decode_tok_s,
        decode_tok_s_against=speed.decode_tok_s_against,
        regressed=regressed,
        speed_only=speed_only,
    )


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What all probes and the model shift add up to. `regressed` None: something could not be
    measured or judged. `notes`: sentences about the whole that no single probe tells.
    """

    regressed: bool | None
    notes: tuple[str, ...] = ()


def conclude(
    results: Sequence[ProbeResult], shift: ShiftResult, rounds: int, decoding: Decoding
) -> Conclusion:
    """A regression of one probe, failures that are too many over all, short answers that crawl, or
    a shift of the model; without one, all must have been judged.
    """
    alone, pinned = any(r.regressed for r in results), [r for r in results if not r.speed_only]
    together, untested = (
        None if alone else failing_together(pinned),
        untested_shift(shift, rounds, len(pinned)),
    )
    notes = tuple(note for note in (together, untested, decoding.note) if note is not None)
    if alone or together is not None or decoding.slower or shift.shifted:
        return Conclusion(True, notes)
    unclear = untested is not None or not results or any(r.regressed is None for r in results)
    return Conclusion(None if unclear else False, notes)


def failing_together(results: Sequence[ProbeResult]) -> str | None:
    """The sentence where answers fail over all probes more often than they flip by themselves,
    although each may keep its own rule: a binomial tail against FLIP_RATE below P_VALUE, and
    failures on DISTINCT probes (monitor/judge/quality/flips.py has the reasons for both).
    """
    failing = [r.probe for r in results if r.failed]
    failed, judged = (
        sum(r.failed for r in results),
        sum(r.passed + r.near_ties + r.failed for r in results),
    )
    if len(failing) < DISTINCT or binomial_tail(judged, failed, FLIP_RATE) >= P_VALUE:
        return None
    share = (
        f"{failed} of {judged} over all probes (at most {FLIP_RATE * 100:.1f} % flip by themselves)"
    )
    return f"answers fail more often than they flip by themselves: {share}, on {', '.join(failing)}"


def untested_shift(shift: ShiftResult, rounds: int, probes: int) -> str | None:
    """The sentence where there was too little to test whether the model is another one: then nobody
    knows, and that is not good.
    """
    if shift.shifted is not None:
        return None
    why = "the model shift was not tested, and other weights can hide behind the same texts: "
    if rounds < LEAST_ROUNDS:
        return f"{why}it takes --rounds {LEAST_ROUNDS} or more"
    return (
        f"{why}the pins of {shift.probes} of {probes} probes are fit for it ({LEAST_REPEATS} "
        "repeats or more, a noise of at most "
        f"{MOST_NOISE_NAT} nat, log-probabilities in the answers), and it takes 4 that were "
        "pinned with 5 repeats each, or 3 with 10; "
        "`vllm-canary pin` makes them"
    )


def _reason(
    rounds: Sequence[Round], slow: str | None, regressed: bool | None, speed_only: bool
) -> str | None:
    """The first failure counts most, then a run that broke, then speed, then what kept it from
    being judged.
    """
    wrong = next((r.judgement.reason for r in rounds if r.judgement.verdict is Verdict.FAIL), None)
    broke = next(
        (r.detail or r.sample.outcome.value for r in rounds if r.sample.outcome in REGRESSIONS),
        None,
    )
    if speed_only:  # no pin is asked for
        unclear = next(
            (
                r.detail or r.sample.outcome.value
                for r in rounds
                if r.sample.outcome is not Outcome.OK
            ),
            None,
        )
    else:
        unclear = next(
            (
                r.detail or r.judgement.reason
                for r in rounds
                if r.judgement.verdict in {Verdict.UNKNOWN, Verdict.UNPINNED}
            ),
            None,
        )
    return wrong or broke or slow or (unclear if regressed is None else None)
