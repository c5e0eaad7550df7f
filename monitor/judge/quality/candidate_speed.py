"""A candidate's speed compared with production's last day: by probe, and over the short answers of
all probes. Pure.

The decode rate of a short answer covers only a few engine steps, and one pause changes it by a
third. So long answers, of LEAST_TOKENS or more, are judged probe by probe with a narrow limit, and
shorter ones together with a wide limit, which only a much slower server exceeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from monitor.model import Outcome, Phase, Probe, Sample

# a decode rate lower by this share than production's last day is a regression
SLOWER = 0.10
# the limit for short answers, as a share of production's rate: with a dozen tokens, one server has
# differed by a third between runs
SHORT_BELOW = 0.50
# the limit for the time to first token: prefill is far noisier (up to 20 % within one machine)
LATER = 0.30
LEAST_LATER_MS = 20.0  # a smaller difference in the time to first token is not noticeable
LEAST_TOKENS = 32  # in a long answer
LEAST_LONG = 2  # rounds with a long answer, if there are that many
# shorter ones, over all probes; an answer of fewer than 8 tokens has no rate (docs/units.md)
LEAST_SHORT = 3
LEAST_BEFORE = 4  # samples of production: fewer are too few to compare with


@dataclass(frozen=True, slots=True)
class Speed:
    """The medians of one probe on both sides, over answers of any length. `slow`: the reason if it
    is clearly slower.
    """

    ttft_ms: float | None
    ttft_ms_against: float | None
    decode_tok_s: float | None
    decode_tok_s_against: float | None
    slow: str | None


def speed_of(rounds: Sequence[Sample], production: Sequence[Sample]) -> Speed:
    """Compares one probe; `production`: production's samples of that probe."""
    ttft, ttft_before = (
        _known(s.ttft_ms for s in rounds),
        _known(s.ttft_ms for s in production if s.phase is Phase.WARM),
    )
    rates, before = _long_rates(rounds, production)
    slow = None
    if is_slower(rates, before):
        rate = f"{median(rates):.1f} tokens/s in answers of {LEAST_TOKENS} tokens or more"
        slow = (
            f"decode rate {rate}, {_against(median(rates), median(before))} than production's "
            f"{median(before):.1f}"
        )
    elif is_later(ttft, ttft_before):
        slow = (
            f"time to first token {median(ttft):.0f} ms, "
            f"{_against(median(ttft), median(ttft_before))} than production's"
        )
    return Speed(
        ttft_ms=_median(ttft),
        ttft_ms_against=_median(ttft_before),
        decode_tok_s=_median(_rates(rounds)),
        decode_tok_s_against=_median(_production_rates(production)),
        slow=slow,
    )


def is_slower(rates: Sequence[float], before: Sequence[float]) -> bool:
    """Whether decode is clearly slower: the median is a tenth below production's, and even the best
    round is below production's lower quartile.
    """
    if not rates or len(before) < LEAST_BEFORE:
        return False
    return median(rates) < median(before) * (1 - SLOWER) and max(rates) < quantiles(before, n=4)[0]


def is_later(ttft_ms: Sequence[float], before: Sequence[float]) -> bool:
    """Whether the first token is clearly later: the median by LATER and by LEAST_LATER_MS, and even
    the earliest is above production's upper quartile.
    """
    if not ttft_ms or len(before) < LEAST_BEFORE:
        return False
    baseline = median(before)
    return (
        median(ttft_ms) > max(baseline * (1 + LATER), baseline + LEAST_LATER_MS)
        and min(ttft_ms) > quantiles(before, n=4)[2]
    )


# over all probes


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decode rates over all probes. `slower`: short answers are clearly slower; None if neither
    a short nor a long answer could be judged. `note`: a sentence for the report.
    """

    slower: bool | None
    note: str | None = None


def judge_decoding(
    measured: Mapping[str, Sequence[Sample]], production: Sequence[Sample]
) -> Decoding:
    """Judges the short answers. `measured`: the candidate's rounds of each probe; the long answers
    of a probe are judged with that probe.
    """
    own = {name: [s for s in production if s.probe == name] for name in measured}
    short = {name: runs for name, runs in measured.items() if not _long_rates(runs, own[name])[0]}
    shares, baseline = _shares(short, own)
    if len(shares) >= LEAST_SHORT and is_much_slower(shares, baseline):
        rate = f"{median(shares) * 100:.0f} % of production's rate"
        return Decoding(
            True,
            f"the candidate decodes at {rate}, in the median of {len(shares)} short answers (below "
            f"{SHORT_BELOW * 100:.0f} % is a regression)",
        )
    if len(short) < len(measured):
        return Decoding(False)
    if len(shares) >= LEAST_SHORT:
        limit = f"where only a rate below {SHORT_BELOW * 100:.0f} % of production's is a regression"
        pin = f"`vllm-canary pin` a probe whose answers have {LEAST_TOKENS} tokens or more"
        return Decoding(False, f"the decode rate was judged by short answers only, {limit}; {pin}")
    if not any(s.outcome is Outcome.OK for runs in measured.values() for s in runs):
        return Decoding(None)  # nothing was measured, and each probe says why
    rounds = f"{LEAST_LONG} from the candidate (--rounds {LEAST_LONG} or more)"
    return Decoding(
        None,
        f"the decode rate was not judged: it requires answers of {LEAST_TOKENS} tokens or more to "
        f"one probe, {rounds} and {LEAST_BEFORE} in production's last day, or {LEAST_SHORT} "
        "shorter ones of both; `vllm-canary pin` a probe whose answers are longer",
    )


def is_much_slower(shares: Sequence[float], baseline: Sequence[float]) -> bool:
    """Whether short answers, as shares of production's median rate for the same probe, are much
    slower: the median is below SHORT_BELOW, and their upper quartile below production's lower one.
    """
    return median(shares) < SHORT_BELOW and quantiles(shares, n=4)[2] < quantiles(baseline, n=4)[0]


def steadiest(probes: Iterable[Probe], production: Sequence[Sample]) -> Probe | None:
    """Returns the best probe to compare decode rates with: of those with long answers of a fixed
    length, the one with the most samples in production.
    """
    fixed = [p for p in probes if (p.sampling.get("min_tokens") or 0) >= LEAST_TOKENS]
    known = {
        p.name: len(_production_rates(_long(s for s in production if s.probe == p.name)))
        for p in fixed
    }
    best = max(fixed, key=lambda p: known[p.name], default=None)
    return best if best is not None and known[best.name] >= LEAST_BEFORE else None


def _shares(
    measured: Mapping[str, Sequence[Sample]], production: Mapping[str, Sequence[Sample]]
) -> tuple[list[float], list[float]]:
    """Returns the candidate's rates and production's, each as a share of production's median for
    that probe.
    """
    shares: list[float] = []
    baseline: list[float] = []
    for name, runs in measured.items():
        before = _production_rates(production[name])
        if len(before) >= LEAST_BEFORE:
            shares += [rate / median(before) for rate in _rates(runs)]
            baseline += [rate / median(before) for rate in before]
    return shares, baseline


# rates


def _long_rates(
    rounds: Sequence[Sample], production: Sequence[Sample]
) -> tuple[list[float], list[float]]:
    """Returns the rates of long answers on both sides, both empty if either side has too few."""
    rates, before = _rates(_long(rounds)), _production_rates(_long(production))
    enough = len(rates) >= max(1, min(LEAST_LONG, len(rounds))) and len(before) >= LEAST_BEFORE
    return (rates, before) if enough else ([], [])


def _long(samples: Iterable[Sample]) -> list[Sample]:
    return [
        s
        for s in samples
        if s.completion_tokens is not None and s.completion_tokens >= LEAST_TOKENS
    ]


def _rates(samples: Iterable[Sample]) -> list[float]:
    return _known(s.decode_tok_s for s in samples)


def _production_rates(production: Sequence[Sample]) -> list[float]:
    """Returns the rates of warm answers, and if those are too few also of idle ones: a quiet server
    is idle before most canaries. Its clock ramps up first, so these rates are lower, which cannot
    make a candidate look slower.
    """
    warm = _rates(s for s in production if s.phase is Phase.WARM)
    return (
        warm
        if len(warm) >= LEAST_BEFORE
        else _rates(s for s in production if s.phase is not Phase.COLD)
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [v for v in values if v is not None]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _against(now: float, before: float) -> str:
    """Returns `12 % less` or `3 % more`."""
    change = (now / before - 1) * 100
    return f"{abs(change):.0f} % {'less' if change < 0 else 'more'}"
