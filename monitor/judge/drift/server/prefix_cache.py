"""The prefix cache, from a probe that is sent twice with one salt: does the second prompt still
find what the first has left?

Where the server tells cached tokens, the share of the second prompt that was cached says it
directly. Elsewhere the time to the first token does: with a working cache the second takes a
fraction of the first, without one as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.evidence import Armed, Effect, Pair, Shift
from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US, DriftSettings
from monitor.model import CanaryPoint, Severity

# a probe with `same_salt_twice` records its second prompt under this name (docs/configuration.md)
AGAIN = "-again"
PAIR_US = (
    2 * MINUTE_US
)  # the second is sent at once; one that comes later than this belongs to another pair
LEARN_PAIRS = 12
KEEP_PAIRS = 504  # seven days at one in 20 minutes
WORKS_BELOW = 0.8  # a second prompt that takes so much of the first's time shows nothing of a cache
MONTH_US = 30 * DAY_US
BACK_PAIRS = 2
STARTS_A_MONTH = 30.0


class CachePair(NamedTuple):
    """One pair: when it was known, the second's time to the first token by the first's, and its
    share of cached tokens.
    """

    at_us: int
    ratio: float | None
    share: float | None


@dataclass(slots=True)
class PrefixChannel:
    """Learns what the second of a pair takes while the cache works, and finds when that is over
    (`effect`).
    """

    first: dict[str, tuple[int, float]] = field(default_factory=dict)  # by probe: when known, ms
    learnt: list[CachePair] = field(default_factory=list)
    lost: list[CachePair] = field(
        default_factory=list
    )  # the newest pairs, as long as each of them missed
    process_us: int | None = None  # the process and
    digest: str | None = None  # the configuration that were seen last,
    pairs: int = 0  # and how many pairs of both
    hits: int = 0  # pairs in a row that found the cache again while `since_us` is set
    since_us: int | None = None

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """Take up one canary; only a good answer of the pair says anything."""
        if p.outcome != "ok" or p.ttft_ms is None:
            return
        process_us, digest = (
            p.process_start_us or self.process_us,
            p.fingerprint or self.digest,
        )  # unknown is no other one
        if process_us != self.process_us or digest != self.digest:
            self.process_us, self.digest, self.pairs, self.first = process_us, digest, 0, {}
        took_ms, warm = p.ttft_ms - (p.queue_ms or 0.0), p.phase == "warm"
        if not p.probe.endswith(AGAIN):
            self.first[p.probe] = (p.known_us, took_ms if warm else 0.0)
            return
        first_us, first_ms = self.first.pop(p.probe.removesuffix(AGAIN), (0, 0.0))
        if first_us == 0 or p.known_us - first_us > PAIR_US:
            return
        share = (
            p.cached_tokens / p.prompt_tokens
            if p.cached_tokens is not None and p.prompt_tokens
            else None
        )
        ratio = (
            took_ms / first_ms if warm and first_ms > 0 and took_ms > 0 else None
        )  # a GPU that wakes up only now is no measure
        if share is not None or ratio is not None:
            self._take(CachePair(p.known_us, ratio, share), settings)

    def _take(self, pair: CachePair, settings: DriftSettings) -> None:
        missed = self._missed(pair)
        self.pairs += 1
        if self.since_us is not None:
            self.hits = 0 if missed else self.hits + 1
            if missed:
                self.lost = [*self.lost[-LEARN_PAIRS:], pair]
            elif self.hits >= BACK_PAIRS:
                self.since_us, self.lost, self.hits = None, [], 0
            return
        if missed:
            self.lost.append(pair)
            if len(self.lost) >= self._needed(settings):
                self.since_us = self.lost[0].at_us
            return
        # A miss now and then belongs to how it is: a block that was thrown out, a prompt of
        # somebody else's in between.
        self.learnt = [*self.learnt, *self.lost, pair][-KEEP_PAIRS:]
        self.lost = []

    def _limits(self) -> tuple[float, float] | None:
        """The ratio above which and the share below which a pair has missed; None while not learnt,
        or where nothing was ever cached.
        """
        if len(self.learnt) < LEARN_PAIRS:
            return None
        ratio, share = _ratio(self.learnt) or 1.0, _share(self.learnt) or 0.0
        if ratio > WORKS_BELOW and share <= 0:
            return None
        return (1.0 + ratio) / 2, share / 2

    def _missed(self, pair: CachePair) -> bool:
        limits = self._limits()
        if limits is None:
            return False
        if pair.share is not None and limits[1] > 0:
            return pair.share < limits[1]
        return pair.ratio is not None and pair.ratio > limits[0]

    def _needed(self, settings: DriftSettings) -> int:
        """How many misses in a row happen by chance less often than the false alarms allowed: times
        a month x p^k <= that number.

        p is the share of misses among the pairs learnt, by Laplace's rule (x + 1) / (n + 2). A row
        may begin with any pair; one that has lasted since the process began can only begin with a
        start, of which there are far fewer.
        """
        n = len(self.learnt)
        p = (sum(self._missed(pair) for pair in self.learnt) + 1) / (n + 2)
        span_us = max(self.learnt[-1].at_us - self.learnt[0].at_us, HOUR_US)
        times = STARTS_A_MONTH if self.pairs == len(self.lost) else MONTH_US / span_us * n
        return max(2, math.ceil(math.log(settings.false_alarms_per_month / times) / math.log(p)))

    def effect(self) -> Effect | None:
        """The cache is lost: what the second prompt of a pair takes longer. None while it works, or
        while that is not known.
        """
        if self.since_us is None or not self.lost:
            return None
        before, now = _ratio(self.learnt), _ratio(self.lost)
        served = self.share()
        statistic = {
            "pairs": len(self.lost),
            "cached_share": served.now,
            "cached_share_before": served.before,
        }
        if (
            before is None or now is None
        ):  # only the cached tokens tell: how many of them is the figure there is
            return Effect(
                "cache", self._share_lost(served), self.since_us, Severity.WARNING, statistic
            )
        spread = 1.4826 * median(
            [abs(math.log(p.ratio / before)) for p in self.learnt if p.ratio is not None]
        )
        half = 1.96 * spread * math.sqrt(1 / len(self.learnt) + 1 / len(self.lost))
        return Effect(
            "cache",
            Shift.of_log("ttft_ms", math.log(now / before), half),
            self.since_us,
            Severity.WARNING,
            statistic,
        )

    def _share_lost(self, served: Pair) -> Shift:
        """The fall of the cached share, with the least and the most that a lost pair still
        found.
        """
        before, shares = (
            served.before or 1.0,
            [p.share for p in self.lost if p.share is not None] or [served.now or 0.0],
        )
        now, low, high = (
            100.0 * (share / before - 1.0) for share in (median(shares), min(shares), max(shares))
        )
        return Shift("cached_share", now, low, high)

    def share(self) -> Pair:
        """How much of the second prompt the cache served, before and now: by cached tokens, else 1
        - its time by the first's.
        """

        def served(pairs: list[CachePair]) -> float | None:
            share, ratio = _share(pairs), _ratio(pairs)
            return share if share is not None else None if ratio is None else max(0.0, 1.0 - ratio)

        return Pair(
            served(self.learnt),
            served(self.lost if self.since_us is not None else self.learnt[-3:]),
        )

    def armed(self) -> list[Armed]:
        """Nothing where no probe is sent twice."""
        if not self.learnt:
            return []
        if self._limits() is not None:
            return [
                Armed(
                    "prefix cache",
                    True,
                    f"what a cached prompt takes is known from {len(self.learnt)} pairs",
                )
            ]
        if len(self.learnt) < LEARN_PAIRS:
            return [
                Armed(
                    "prefix cache",
                    False,
                    f"{len(self.learnt)} of {LEARN_PAIRS} pairs of one prompt sent twice",
                )
            ]
        return [
            Armed(
                "prefix cache",
                False,
                (
                    "the second of two equal prompts takes as long as the first: there is no "
                    "cache to lose"
                ),
            )
        ]

    def relearn(self) -> None:
        """What is served now is what is usual."""
        self.learnt, self.lost, self.hits, self.since_us = [], [], 0, None


def _ratio(pairs: Sequence[CachePair]) -> float | None:
    ratios = [p.ratio for p in pairs if p.ratio is not None]
    return median(ratios) if ratios else None


def _share(pairs: Sequence[CachePair]) -> float | None:
    shares = [p.share for p in pairs if p.share is not None]
    return median(shares) if shares else None
