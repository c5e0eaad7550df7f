"""A candidate beside production: what `gate` concludes of one probe from a few rounds. Pure.

Three answers are possible: it got worse, it did not, or there is too little to say so (None). Too little is never good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from monitor.judge.pinned import PinJudgement
from monitor.model import REGRESSIONS, Outcome, Phase, Probe, Sample, Verdict

SLOWER = 0.10  # a candidate this much slower in decode than production's own last day is a regression
LATER = 0.30  # of the time to first token: prefill is far noisier (its variation within one machine was seen at 20 %)
LEAST_LATER_MS = 20.0  # a first token that comes less later than this is felt by nobody
LEAST_BEFORE = 4  # fewer samples of production say too little to call anybody slower


@dataclass(frozen=True, slots=True)
class Round:
    """One run of a probe on the candidate, judged by production's pin. `detail`: the sentence about a failure to measure."""

    sample: Sample
    judgement: PinJudgement
    detail: str | None = None


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
    needed = max(1, round(len(rounds) * probe.require / probe.repeats))
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
    if is_slower(rates, rates_before):
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


def _known(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
