"""Percentiles that include canaries without a first token, with intervals from order statistics.

A canary without a first token is not a missing value: it ranks above every measured one. A
percentile that falls among such canaries is only known to be more than the shortest of their waits
(and than every measured value: an uncapped probe may have waited longer), or "no answer" if none of
them waited a known time.

The interval is distribution-free: of n independent values, the number below the p-quantile is
binomial(n, p), so order statistics bound the quantile (Hahn & Meeker, Statistical Intervals,
section 5.2). Each end is a one-sided 95 % bound; the upper one of a p95 exists from 59 values on
(0.95^59 < 0.05).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monitor.model import WAITED, Outcome, Sample

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile in the unit of the values. `value` None and `at_least` set: more than that; both
    None: no answer, or no values.
    """

    value: float | None = None
    low: float | None = None
    # None with too few values, or if it falls among canaries without a first token
    high: float | None = None
    at_least: float | None = None


def percentile(
    measured: Sequence[float], share: float, beyond: int = 0, smallest_wait: float | None = None
) -> Percentile:
    """Returns the `share` quantile (nearest rank) of the measured values and `beyond` more values
    that rank above them all.
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
    """Returns the ranks (from 1) of the order statistics that bound a quantile, each with the given
    one-sided confidence; None if no rank does.
    """
    below = 0.0
    low: int | None = None
    high: int | None = None
    for hits in range(count):
        # P(at most `hits` values are below the quantile)
        below += math.exp(_log_binomial(count, hits, share))
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
    """The percentiles of one cohort: a class in one phase on one target."""

    target: str
    traffic_class: str
    phase: str
    count: int  # all canaries except cancelled ones
    censored: int  # waited a known time without a first token
    unavailable: int  # no first token and no known wait: refused, rejected, failed
    ttft_ms: dict[str, Percentile]
    e2e_ms: dict[str, Percentile]
    decode_tok_s: dict[str, Percentile]
    itl_p95_ms: dict[str, Percentile]


def summarise(samples: Sequence[Sample]) -> list[Group]:
    """Returns one group for each target, class and phase; never one figure for a whole server."""
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

    def tails(
        values: Sequence[float], beyond: int, smallest: float | None
    ) -> dict[str, Percentile]:
        return {
            name: percentile(values, share, beyond, smallest)
            for name, share in (("p50", 0.5), ("p95", 0.95))
        }

    return Group(
        *key,
        count=len(samples),
        censored=len(waits),
        unavailable=len(without) - len(waits),
        ttft_ms=tails(ttft, len(without), wait),
        e2e_ms=tails(
            [s.e2e_ms for s in done if s.e2e_ms is not None], len(samples) - len(done), wait
        ),
        # the low end of a rate is the slow one
        decode_tok_s={
            name: percentile([s.decode_tok_s for s in done if s.decode_tok_s is not None], share)
            for name, share in (("p50", 0.5), ("p05", 0.05))
        },
        itl_p95_ms=tails([s.itl_p95_ms for s in done if s.itl_p95_ms is not None], 0, None),
    )
