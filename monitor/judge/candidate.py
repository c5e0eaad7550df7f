"""A candidate beside production: what `gate` concludes of each probe from a few rounds, and of all of them together. Pure.

Three answers are possible: it got worse, it did not, or there is too little to say so (None). Too little is never good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from monitor.judge.flips import DISTINCT, FLIP_RATE
from monitor.judge.pinned import PinJudgement
from monitor.judge.shift import LEAST_REPEATS, LEAST_ROUNDS, MOST_NOISE_NAT, P_VALUE, ShiftResult, binomial_tail
from monitor.model import REGRESSIONS, Outcome, Phase, Probe, Sample, Verdict

SLOWER = 0.10  # a candidate this much slower in decode than production's own last day is a regression
LATER = 0.30  # of the time to first token: prefill is far noisier (its variation within one machine was seen at 20 %)
LEAST_LATER_MS = 20.0  # a first token that comes less later than this is felt by nobody
LEAST_TOKENS = 32  # the rate of a shorter answer is a few steps of the engine, which one pause moves by a third
LEAST_BEFORE = 4  # fewer samples of production say too little to call anybody slower


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a probe on the candidate, judged by production's pin. `detail`: the sentence about a failure to measure; `stale`:
    production itself has changed since it was pinned."""

    sample: Sample
    judgement: PinJudgement
    detail: str | None = None
    stale: bool = False


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How the candidate did with one probe, beside production. `regressed` None: too little could be measured or judged."""

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


def judge_candidate(probe: Probe, rounds: Sequence[Round], production: Sequence[Sample]) -> ProbeResult:
    """`production`: its good samples of the last day. Failures count as `repeats` and `require` of the probe ask, scaled to rounds."""
    verdicts = [r.judgement.verdict for r in rounds]
    passed, ties = verdicts.count(Verdict.PASS), verdicts.count(Verdict.NEAR_TIE)
    broke = sum(r.sample.outcome in REGRESSIONS for r in rounds if r.sample.outcome is not Outcome.EMPTY)  # an empty answer fails already
    failed = verdicts.count(Verdict.FAIL) + broke
    own = [s for s in production if s.probe == probe.name]
    speed = _speed([r.sample for r in rounds], [s for s in own if s.phase is Phase.WARM])
    needed = max(1, -(-len(rounds) * probe.require // probe.repeats))  # rounded up: no larger share may fail than of `repeats` runs
    regressed: bool | None = failed > max(0, len(rounds) - needed) or speed.slow is not None
    if not regressed and passed + ties < needed:
        regressed = None
    judged = [s for s in own if s.verdict in {Verdict.PASS, Verdict.NEAR_TIE, Verdict.FAIL}]
    return ProbeResult(
        probe=probe.name,
        passed=passed,
        near_ties=ties,
        failed=failed,
        of=len(rounds),
        reason=_reason(rounds, speed.slow, regressed),
        passed_against=sum(s.verdict is Verdict.PASS for s in judged),
        of_against=len(judged),
        ttft_ms=speed.ttft_ms,
        ttft_ms_against=speed.ttft_ms_against,
        decode_tok_s=speed.decode_tok_s,
        decode_tok_s_against=speed.decode_tok_s_against,
        regressed=regressed,
    )


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What all probes and the model shift add up to. `regressed` None: something could not be measured or judged. `notes`: sentences
    about the whole that no single probe tells."""

    regressed: bool | None
    notes: tuple[str, ...] = ()


def conclude(results: Sequence[ProbeResult], shift: ShiftResult, rounds: int) -> Conclusion:
    """A regression of one probe, failures that are too many over all, or a shift of the model; without one, all must have been judged."""
    alone = any(r.regressed for r in results)
    together, untested = None if alone else failing_together(results), untested_shift(shift, rounds, len(results))
    notes = tuple(note for note in (together, untested) if note is not None)
    if alone or together is not None or shift.shifted:
        return Conclusion(True, notes)
    unclear = untested is not None or not results or any(r.regressed is None for r in results)
    return Conclusion(None if unclear else False, notes)


def failing_together(results: Sequence[ProbeResult]) -> str | None:
    """The sentence where answers fail over all probes more often than they flip by themselves, although each may keep its own rule:
    a binomial tail against FLIP_RATE below P_VALUE, and failures on DISTINCT probes (monitor/judge/flips.py has the reasons for both)."""
    failing = [r.probe for r in results if r.failed]
    failed, judged = sum(r.failed for r in results), sum(r.passed + r.near_ties + r.failed for r in results)
    if len(failing) < DISTINCT or binomial_tail(judged, failed, FLIP_RATE) >= P_VALUE:
        return None
    share = f"{failed} of {judged} over all probes (at most {FLIP_RATE * 100:.1f} % flip by themselves)"
    return f"answers fail more often than they flip by themselves: {share}, on {', '.join(failing)}"


def untested_shift(shift: ShiftResult, rounds: int, probes: int) -> str | None:
    """The sentence where there was too little to test whether the model is another one: then nobody knows, and that is not good."""
    if shift.shifted is not None:
        return None
    why = "the model shift was not tested, and other weights can hide behind the same texts: "
    if rounds < LEAST_ROUNDS:
        return f"{why}it takes --rounds {LEAST_ROUNDS} or more"
    return (
        f"{why}the pins of {shift.probes} of {probes} probes are fit for it ({LEAST_REPEATS} repeats or more, a noise of at most "
        f"{MOST_NOISE_NAT} nat, log-probabilities in the answers), and it takes 4 that were pinned with 5 repeats each, or 3 with 10; "
        "`vllm-canary pin` makes them"
    )


def _reason(rounds: Sequence[Round], slow: str | None, regressed: bool | None) -> str | None:
    """The first failure counts most, then a run that broke, then speed, then what kept it from being judged."""
    wrong = next((r.judgement.reason for r in rounds if r.judgement.verdict is Verdict.FAIL), None)
    broke = next((r.detail or r.sample.outcome.value for r in rounds if r.sample.outcome in REGRESSIONS), None)
    unjudged = [r for r in rounds if r.judgement.verdict in {Verdict.UNKNOWN, Verdict.UNPINNED}]
    unclear = next((r.detail or r.judgement.reason for r in unjudged), None) if regressed is None else None
    return wrong or broke or slow or unclear


@dataclass(frozen=True, slots=True)
class _Speed:
    ttft_ms: float | None
    ttft_ms_against: float | None
    decode_tok_s: float | None
    decode_tok_s_against: float | None
    slow: str | None  # the sentence, where it is clearly slower


def _speed(rounds: Sequence[Sample], production: Sequence[Sample]) -> _Speed:
    ttft, ttft_before = _known([s.ttft_ms for s in rounds]), _known([s.ttft_ms for s in production])
    rates, rates_before = _known([s.decode_tok_s for s in rounds]), _known([s.decode_tok_s for s in production])
    slow = None
    if is_slower(_known(map(_lasting_rate, rounds)), _known(map(_lasting_rate, production))):
        slow = f"decode rate {median(rates):.1f} tokens/s, {_against(median(rates), median(rates_before))} than production's"
    elif is_later(ttft, ttft_before):
        slow = f"time to first token {median(ttft):.0f} ms, {_against(median(ttft), median(ttft_before))} than production's"
    return _Speed(_median(ttft), _median(ttft_before), _median(rates), _median(rates_before), slow)


def is_slower(rates: Sequence[float], before: Sequence[float]) -> bool:
    """Clearly slower: the median is a tenth below production's, and even the best round is below three quarters of production's own."""
    if not rates or len(before) < LEAST_BEFORE:
        return False
    return median(rates) < median(before) * (1 - SLOWER) and max(rates) < quantiles(before, n=4)[0]


def is_later(ttft_ms: Sequence[float], before: Sequence[float]) -> bool:
    """Clearly later: the median first token by LATER and by LEAST_LATER_MS, and the earliest after three quarters of production's."""
    if not ttft_ms or len(before) < LEAST_BEFORE:
        return False
    usual = median(before)
    return median(ttft_ms) > max(usual * (1 + LATER), usual + LEAST_LATER_MS) and min(ttft_ms) > quantiles(before, n=4)[2]


def _against(now: float, before: float) -> str:
    """`12 % less` or `3 % more`."""
    change = (now / before - 1) * 100
    return f"{abs(change):.0f} % {'less' if change < 0 else 'more'}"


def _lasting_rate(sample: Sample) -> float | None:
    """The decode rate of an answer that is long enough for one; every rate is shown, only these are judged."""
    tokens = sample.completion_tokens
    return None if tokens is not None and tokens < LEAST_TOKENS else sample.decode_tok_s


def _known(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
