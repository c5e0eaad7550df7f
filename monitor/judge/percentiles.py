"""Percentiles that tell the truth about canaries without a first token, with an interval from order
statistics.

A canary without a first token is not a missing value: it ranks above every measured one. A
percentile that falls among them is known only as "more than the smallest of their waits" (and than
every measured value: an uncapped probe may have waited longer), or as "no answer" where nobody
waited a known time.

The interval is distribution-free: for n independent values the number below the p-quantile is
binomial(n, p), so the order statistics of ranks l and u bound the quantile (Hahn & Meeker,
Statistical Intervals, 5.2). Each end is a one-sided 95 % bound; the upper one of a p95 exists from
59 values on (0.95^59 < 0.05).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monitor.model import WAITED, Outcome, Sample

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile in the unit of the values. `value` None with `at_least` set: more than that;
    both None: no answer, or no values.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = (
        # None where there are too few values, or where it falls among those without a first token
        None
    )
    at_least: float | None = None


def percentile(
    measured: Sequence[float], share: float, beyond: int = 0, smallest_wait: float | None = None
) -> Percentile:
    """The `share` quantile (nearest rank) of the measured values with `beyond` more that rank above
    them all.
    """
    count = len(measured) + beyond
    if count == 0:
        return Percentile()
    ordered = sorted(measured)

    def at(rank: int | None) -> float | None:
        return ordered[rank - 1] if rank is not None and 1 <= rank <= len(ordered) else None

    rank = max(1, math.ceil(round(share * count, 9)))
    low, high = interval_ranks(count, share)
    value = at(rank)
    beyond_all = (
        None if value is not None or smallest_wait is None else max([smallest_wait, *ordered[-1:]])
    )
    return Percentile(value=value, low=at(low), high=at(high), at_least=beyond_all)


def interval_ranks(
    count: int, share: float, confidence: float = CONFIDENCE
) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the order statistics that bound a quantile, each with the given one-sided
    confidence; None where none does.
    """
    below = 0.0
    low: int | None = None
    high: int | None = None
    for hits in range(count):
        below += math.exp(
            _log_binomial(count, hits, share)
        )  # P(at most `hits` values lie below the quantile)
        if below <= 1 - confidence:
            low = hits + 1
        if high is None and below >= confidence:
            high = hits + 1
    return low, high


def _log_binomial(n: int, k: int, p: float) -> float:
    return (
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
    )


@dataclass(frozen=True, slots=True)
class Group:
    """One cohort for people: a class in one phase on one target."""

    target: str
    traffic_class: str
    phase: str
    count: int  # every canary but those that we cancelled ourselves
    censored: int  # waited a known time without a first token
    unavailable: int  # no first token and no known wait: refused, rejected, failed
    ttft_ms: dict[str, Percentile]
    e2e_ms: dict[str, Percentile]
    decode_tok_s: dict[str, Percentile]
    itl_p95_ms: dict[str, Percentile]


def summarise(samples: Sequence[Sample]) -> list[Group]:
    """Every class apart from every other and every phase too, by target; never one figure over a
    server.
    """
    groups: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in samples:
        if sample.outcome is not Outcome.CANCELLED:
            groups.setdefault((sample.target, sample.traffic_class, sample.phase.value), []).append(
                sample
            )
    return [_group(key, members) for key, members in sorted(groups.items())]


def _group(key: tuple[str, str, str], samples: Sequence[Sample]) -> Group:
    waits = [
        s.e2e_ms
        for s in samples
        if s.ttft_ms is None and s.outcome in WAITED and s.e2e_ms is not None
    ]
    without = [s for s in samples if s.ttft_ms is None]
    wait = min(waits, default=None)
    ttft = [s.ttft_ms for s in samples if s.ttft_ms is not None]
    done = [s for s in samples if s.outcome is Outcome.OK]

    def felt(values: Sequence[float], beyond: int, smallest: float | None) -> dict[str, Percentile]:
        return {
            name: percentile(values, share, beyond, smallest)
            for name, share in (("p50", 0.5), ("p95", 0.95))
        }

    return Group(
        *key,
        count=len(samples),
        censored=len(waits),
        unavailable=len(without) - len(waits),
        ttft_ms=felt(ttft, len(without), wait),
        e2e_ms=felt(
            [s.e2e_ms for s in done if s.e2e_ms is not None], len(samples) - len(done), wait
        ),
        decode_tok_s={
            name: percentile([s.decode_tok_s for s in done if s.decode_tok_s is not None], share)
            for name, share in (("p50", 0.5), ("p05", 0.05))  # of a rate the low end is the bad one
        },
        itl_p95_ms=felt([s.itl_p95_ms for s in done if s.itl_p95_ms is not None], 0, None),
    )
