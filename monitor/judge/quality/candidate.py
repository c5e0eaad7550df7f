"""The comparison of a candidate server with production, as `gate` makes it: by probe over a few
rounds, and over all probes. Pure.

There are three results: a regression, no regression, or too little data (None), which never counts
as good.
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
    """One run of a probe on the candidate, judged by production's pin. `detail`: the text about a
    failed measurement; `stale`: production itself has changed since it was pinned.
    """

    sample: Sample
    judgement: PinJudgement
    detail: str | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe on the candidate, compared with production. `regressed` None: too little could be
    measured or judged. `speed_only`: production has no pin for it, so only its speed is judged.
    """

    probe: str
    passed: int
    near_ties: int
    failed: int
    of: int
    reason: str | None
    passed_against: int  # production's last day, with the same pin
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
    """Judges one probe. `production`: its good samples of the last day. Failures are limited by
    `repeats` and `require` of the probe, scaled to the number of rounds.
    """
    verdicts = [r.judgement.verdict for r in rounds]
    passed, ties = verdicts.count(Verdict.PASS), verdicts.count(Verdict.NEAR_TIE)
    # no round counts as two failures
    broke = sum(
        r.sample.outcome in REGRESSIONS for r in rounds if r.judgement.verdict is not Verdict.FAIL
    )
    failed = verdicts.count(Verdict.FAIL) + broke
    own = [s for s in production if s.probe == probe.name]
    speed = speed_of([r.sample for r in rounds], own)
    # rounded up: the share of failures must not exceed that of `repeats` runs
    needed = max(1, -(-len(rounds) * probe.require // probe.repeats))
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
    """The result over all probes and the model shift. `regressed` None: something could not be
    measured or judged. `notes`: sentences that concern more than one probe.
    """

    regressed: bool | None
    notes: tuple[str, ...] = ()


def conclude(
    results: Sequence[ProbeResult], shift: ShiftResult, rounds: int, decoding: Decoding
) -> Conclusion:
    """Combines the results: a regression is one of a single probe, too many failures over all
    probes, much slower short answers, or a model shift. Without one, everything must have been
    judged.
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
    """Returns a note if answers fail over all probes more often than they flip by themselves, even
    if each probe is within its own limit: a binomial tail against FLIP_RATE below P_VALUE, and
    failures of DISTINCT probes (flips.py gives the reasons for both).
    """
    failing = [r.probe for r in results if r.failed]
    failed, judged = (
        sum(r.failed for r in results),
        sum(r.passed + r.near_ties + r.failed for r in results),
    )
    if len(failing) < DISTINCT or binomial_tail(judged, failed, FLIP_RATE) >= P_VALUE:
        return None
    share = f"{failed} of {judged} over all probes (at most {FLIP_RATE * 100:.1f} % flip)"
    return f"answers fail more often than they flip by themselves: {share}, on {', '.join(failing)}"


def untested_shift(shift: ShiftResult, rounds: int, probes: int) -> str | None:
    """Returns a note if there was too little data to test for a model shift: the result is then
    unknown, which does not count as good.
    """
    if shift.shifted is not None:
        return None
    why = "the model shift was not tested, and other weights can give the same texts: "
    if rounds < LEAST_ROUNDS:
        return f"{why}use --rounds {LEAST_ROUNDS} or more"
    return (
        f"{why}the pins of {shift.probes} of {probes} probes can be used ({LEAST_REPEATS} or more "
        f"repeats, at most {MOST_NOISE_NAT} nat of noise, log-probabilities in the answers); "
        "4 pins with 5 repeats each, or 3 with 10, are required; record them with "
        "`vllm-canary pin`"
    )


def _reason(
    rounds: Sequence[Round], slow: str | None, regressed: bool | None, speed_only: bool
) -> str | None:
    """Returns the first failure, or else a broken run, then speed, then why it could not be
    judged.
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
