"""A candidate's speed beside production's own last day: of each probe, and of short answers over
all probes together. Pure.

The decode rate of a short answer is a few steps of the engine, which one pause moves by a third. So
lasting answers, of LEAST_TOKENS or more, are judged probe by probe with a narrow limit, and shorter
ones together with a wide one: it finds only a server that crawls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from monitor.model import Outcome, Phase, Probe, Sample

SLOWER = (
    0.10  # a candidate this much slower in decode than production's own last day is a regression
)
# of production's rate, by short answers: by a dozen tokens the same server has been a third slower
# than itself
SHORT_BELOW = 0.50
# of the time to first token: prefill is far noisier (its variation within one machine was seen at
# 20 %)
LATER = 0.30
LEAST_LATER_MS = 20.0  # a first token that comes less later than this is felt by nobody
LEAST_TOKENS = 32  # of a lasting answer
LEAST_LASTING = 2  # rounds with such an answer, where there are so many
# shorter ones, over all probes; an answer of fewer than 8 tokens has no rate at all (docs/units.md)
LEAST_SHORT = 3
LEAST_BEFORE = 4  # fewer samples of production say too little to call anybody slower


@dataclass(frozen=True, slots=True)
class Speed:
    """The medians of one probe on both sides, over answers of any length. `slow`: the sentence,
    where it is clearly slower.
    """

    ttft_ms: float | None
    ttft_ms_against: float | None
    decode_tok_s: float | None
    decode_tok_s_against: float | None
    slow: str | None


def speed_of(rounds: Sequence[Sample], production: Sequence[Sample]) -> Speed:
    """Of one probe; `production`: its own samples of it."""
    ttft, ttft_before = (
        _known(s.ttft_ms for s in rounds),
        _known(s.ttft_ms for s in production if s.phase is Phase.WARM),
    )
    rates, before = _lasting_rates(rounds, production)
    slow = None
    if is_slower(rates, before):
        told = (
            f"decode rate {median(rates):.1f} tokens/s in answers of {LEAST_TOKENS} tokens or more"
        )
        slow = (
            f"{told}, {_against(median(rates), median(before))} than production's "
            f"{median(before):.1f}"
        )
    elif is_later(ttft, ttft_before):
        slow = (
            f"time to first token {median(ttft):.0f} ms, "
            f"{_against(median(ttft), median(ttft_before))} than production's"
        )
    return Speed(
        _median(ttft),
        _median(ttft_before),
        _median(_rates(rounds)),
        _median(_usual_rates(production)),
        slow,
    )


def is_slower(rates: Sequence[float], before: Sequence[float]) -> bool:
    """Clearly slower: the median is a tenth below production's, and even the best round is below
    three quarters of production's own.
    """
    if not rates or len(before) < LEAST_BEFORE:
        return False
    return median(rates) < median(before) * (1 - SLOWER) and max(rates) < quantiles(before, n=4)[0]


def is_later(ttft_ms: Sequence[float], before: Sequence[float]) -> bool:
    """Clearly later: the median first token by LATER and by LEAST_LATER_MS, and the earliest after
    three quarters of production's.
    """
    if not ttft_ms or len(before) < LEAST_BEFORE:
        return False
    usual = median(before)
    return (
        median(ttft_ms) > max(usual * (1 + LATER), usual + LEAST_LATER_MS)
        and min(ttft_ms) > quantiles(before, n=4)[2]
    )


# -- over all probes
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decoding:
    """How decode rates were judged over all probes. `slower`: short answers are, clearly; None
    where neither a short answer nor a lasting one could be judged. `note`: what is to be known of
    it.
    """

    slower: bool | None
    note: str | None = None


def judge_decoding(
    measured: Mapping[str, Sequence[Sample]], production: Sequence[Sample]
) -> Decoding:
    """`measured`: the candidate's rounds of each probe. The lasting answers of a probe are judged
    with that probe; here are all others.
    """
    own = {name: [s for s in production if s.probe == name] for name in measured}
    short = {
        name: runs for name, runs in measured.items() if not _lasting_rates(runs, own[name])[0]
    }
    shares, usual = _shares(short, own)
    if len(shares) >= LEAST_SHORT and is_much_slower(shares, usual):
        told = (
            f"{median(shares) * 100:.0f} % of production's rate, in the median of "
            f"{len(shares)} short answers"
        )
        return Decoding(
            True,
            f"the candidate decodes at {told} (below {SHORT_BELOW * 100:.0f} % is a regression)",
        )
    if len(short) < len(measured):
        return Decoding(False)
    if len(shares) >= LEAST_SHORT:
        limit = (
            f"of which only a rate below {SHORT_BELOW * 100:.0f} % of production's is a regression"
        )
        pin = f"`vllm-canary pin` a probe whose answers have {LEAST_TOKENS} tokens or more"
        return Decoding(False, f"the decode rate was judged by short answers alone, {limit}; {pin}")
    if not any(s.outcome is Outcome.OK for runs in measured.values() for s in runs):
        return Decoding(None)  # nothing was measured at all, and each probe says why
    rounds = f"{LEAST_LASTING} from the candidate (--rounds {LEAST_LASTING} or more)"
    lasting = f"answers of {LEAST_TOKENS} tokens or more to one probe, {rounds}"
    needed = (
        f"{lasting} and {LEAST_BEFORE} in production's last day, or {LEAST_SHORT} shorter "
        "ones of both"
    )
    return Decoding(
        None,
        (
            f"the decode rate was not judged: it takes {needed}; `vllm-canary pin` a probe whose "
            "answers are longer"
        ),
    )


def is_much_slower(shares: Sequence[float], usual: Sequence[float]) -> bool:
    """Short answers, as shares of production's median rate for the same probe: the median is below
    SHORT_BELOW, and three quarters of them are below three quarters of production's own.
    """
    return median(shares) < SHORT_BELOW and quantiles(shares, n=4)[2] < quantiles(usual, n=4)[0]


def steadiest(probes: Iterable[Probe], production: Sequence[Sample]) -> Probe | None:
    """The probe to compare decode rates by: one whose answers are of a fixed, lasting length, of
    which production knows the most.
    """
    fixed = [p for p in probes if (p.sampling.get("min_tokens") or 0) >= LEAST_TOKENS]
    known = {
        p.name: len(_usual_rates(_lasting(s for s in production if s.probe == p.name)))
        for p in fixed
    }
    best = max(fixed, key=lambda p: known[p.name], default=None)
    return best if best is not None and known[best.name] >= LEAST_BEFORE else None


def _shares(
    measured: Mapping[str, Sequence[Sample]], production: Mapping[str, Sequence[Sample]]
) -> tuple[list[float], list[float]]:
    """The candidate's rates and production's own, each as a share of production's median for that
    probe.
    """
    shares: list[float] = []
    usual: list[float] = []
    for name, runs in measured.items():
        before = _usual_rates(production[name])
        if len(before) >= LEAST_BEFORE:
            shares += [rate / median(before) for rate in _rates(runs)]
            usual += [rate / median(before) for rate in before]
    return shares, usual


# -- rates
# ------------------------------------------------------------------------------------------------------------


def _lasting_rates(
    rounds: Sequence[Sample], production: Sequence[Sample]
) -> tuple[list[float], list[float]]:
    """Of lasting answers on both sides; both empty where either side has too few to be judged
    by.
    """
    rates, before = _rates(_lasting(rounds)), _usual_rates(_lasting(production))
    enough = len(rates) >= max(1, min(LEAST_LASTING, len(rounds))) and len(before) >= LEAST_BEFORE
    return (rates, before) if enough else ([], [])


def _lasting(samples: Iterable[Sample]) -> list[Sample]:
    return [
        s
        for s in samples
        if s.completion_tokens is not None and s.completion_tokens >= LEAST_TOKENS
    ]


def _rates(samples: Iterable[Sample]) -> list[float]:
    return _known(s.decode_tok_s for s in samples)


def _usual_rates(production: Sequence[Sample]) -> list[float]:
    """Of warm answers; where those are too few, of rested ones too: a quiet server rests before
    most canaries. Its clock has to come up again, which makes a rate smaller and so calls nobody
    slower.
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
    """`12 % less` or `3 % more`."""
    change = (now / before - 1) * 100
    return f"{abs(change):.0f} % {'less' if change < 0 else 'more'}"
