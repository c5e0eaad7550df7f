"""The prefix cache, from a probe that is sent twice with one salt: does the second prompt still
find the first one in the cache?

Where the server reports cached tokens, the cached share of the second prompt shows it directly.
Elsewhere the time to first token does: with a working cache the second takes a fraction of the
first, without one as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.evidence import Armed, Effect, Pair, Shift
from monitor.judge.drift.settings import DAY_US, HOUR_US, MINUTE_US, DriftSettings
from monitor.judge.drift.stats.robust import known_median, mad_sd
from monitor.model import CanaryPoint, Severity
from monitor.model.probe import AGAIN

# the second is sent at once; a later one belongs to another pair
PAIR_US = 2 * MINUTE_US
LEARN_PAIRS = 12
KEEP_PAIRS = 504  # seven days at one in 20 minutes
WORKS_BELOW = 0.8  # of the first's time: a slower second prompt shows no cache
MONTH_US = 30 * DAY_US
BACK_PAIRS = 2
STARTS_A_MONTH = 30.0


class CachePair(NamedTuple):
    """One pair: when it was known, the second's time to first token over the first's, and the
    second's share of cached tokens.
    """

    at_us: int
    ratio: float | None
    share: float | None


@dataclass(slots=True)
class PrefixCacheChannel:
    """Learns how fast the second prompt is while the cache works, and finds out when the cache is
    lost.
    """

    first: dict[str, tuple[int, float]] = field(default_factory=dict)  # by probe: when known, ms
    learned: list[CachePair] = field(default_factory=list)
    lost: list[CachePair] = field(default_factory=list)  # the newest pairs while each one misses
    process_us: int | None = None  # the process and
    digest: str | None = None  # the configuration that were seen last,
    pairs: int = 0  # and the number of pairs of both
    hits: int = 0  # pairs in a row that hit the cache again while `since_us` is set
    since_us: int | None = None

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:
        """Processes one canary; only good answers of a pair count."""
        if p.outcome != "ok" or p.ttft_ms is None:
            return
        self._note_process(p)
        took_ms, warm = p.ttft_ms - (p.queue_ms or 0.0), p.phase == "warm"
        if not p.probe.endswith(AGAIN):
            self.first[p.probe] = (p.known_us, took_ms if warm else 0.0)
            return
        first_us, first_ms = self.first.pop(p.probe.removesuffix(AGAIN), (0, 0.0))
        if first_us == 0 or p.known_us - first_us > PAIR_US:
            return
        share, ratio = None, None
        if p.cached_tokens is not None and p.prompt_tokens:
            share = p.cached_tokens / p.prompt_tokens
        if warm and first_ms > 0 and took_ms > 0:  # both with the GPU's clocks ramped up
            ratio = took_ms / first_ms
        if share is not None or ratio is not None:
            self._take(CachePair(p.known_us, ratio, share), settings)

    def _note_process(self, p: CanaryPoint) -> None:
        """Begins counting pairs for a new process or configuration; an unknown one is not new."""
        process_us, digest = p.process_start_us or self.process_us, p.fingerprint or self.digest
        if process_us != self.process_us or digest != self.digest:
            self.process_us, self.digest, self.pairs, self.first = process_us, digest, 0, {}

    def _take(self, pair: CachePair, settings: DriftSettings) -> None:
        missed = self._missed(pair)
        self.pairs += 1
        if self.since_us is not None:
            self._take_lost(pair, missed)
        elif missed:
            self.lost.append(pair)
            if len(self.lost) >= self._needed(settings):
                self.since_us = self.lost[0].at_us
        else:
            # A miss now and then is part of the baseline: an evicted block, another prompt in
            # between.
            self.learned = [*self.learned, *self.lost, pair][-KEEP_PAIRS:]
            self.lost = []

    def _take_lost(self, pair: CachePair, missed: bool) -> None:
        """Processes a pair while the cache is lost."""
        self.hits = 0 if missed else self.hits + 1
        if missed:
            self.lost = [*self.lost[-LEARN_PAIRS:], pair]
        elif self.hits >= BACK_PAIRS:
            self.since_us, self.lost, self.hits = None, [], 0

    def _limits(self) -> tuple[float, float] | None:
        """The ratio above which and the share below which a pair has missed; None while learning,
        or where nothing was ever cached.
        """
        if len(self.learned) < LEARN_PAIRS:
            return None
        ratio, share = _ratio(self.learned) or 1.0, _share(self.learned) or 0.0
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
        """How many misses in a row happen by chance less often than false alarms are allowed:
        occasions per month x p^k <= that number.

        p is the share of misses among the learned pairs, by Laplace's rule (x + 1) / (n + 2). A row
        may begin with any pair; one that has lasted since the process began can only begin with a
        start, of which there are far fewer.
        """
        n = len(self.learned)
        p = (sum(self._missed(pair) for pair in self.learned) + 1) / (n + 2)
        span_us = max(self.learned[-1].at_us - self.learned[0].at_us, HOUR_US)
        times = STARTS_A_MONTH if self.pairs == len(self.lost) else MONTH_US / span_us * n
        return max(2, math.ceil(math.log(settings.false_alarms_per_month / times) / math.log(p)))

    def effect(self) -> Effect | None:
        """The lost cache, as the slowdown of the second prompt; None while it works, or while that
        is unknown.
        """
        if self.since_us is None or not self.lost:
            return None
        served = self.share()
        return Effect(
            channel="cache",
            shift=self._slowdown() or self._share_lost(served),
            since_us=self.since_us,
            severity=Severity.WARNING,
            statistic={
                "pairs": len(self.lost),
                "cached_share": served.now,
                "cached_share_before": served.before,
            },
        )

    def _slowdown(self) -> Shift | None:
        """The rise of the time to first token; None where only cached tokens are known."""
        before, now = _ratio(self.learned), _ratio(self.lost)
        if before is None or now is None:
            return None
        logs = [math.log(p.ratio / before) for p in self.learned if p.ratio is not None]
        spread = mad_sd(logs, 0.0)
        half = 1.96 * spread * math.sqrt(1 / len(self.learned) + 1 / len(self.lost))
        return Shift.of_log("ttft_ms", math.log(now / before), half)

    def _share_lost(self, served: Pair) -> Shift:
        """The fall of the cached share, with the lowest and the highest share of the lost pairs."""
        before = served.before or 1.0
        shares = [p.share for p in self.lost if p.share is not None] or [served.now or 0.0]
        now, low, high = (
            100.0 * (share / before - 1.0) for share in (median(shares), min(shares), max(shares))
        )
        return Shift("cached_share", now, low, high)

    def share(self) -> Pair:
        """Share of the second prompt that the cache served, before and now."""
        now = self.lost if self.since_us is not None else self.learned[-3:]
        return Pair(_served(self.learned), _served(now))

    def armed(self) -> list[Armed]:
        """Whether a lost cache can be seen; nothing where no probe is sent twice."""
        if not self.learned:
            return []
        armed, detail = False, "the second of two equal prompts takes as long: nothing is cached"
        if self._limits() is not None:
            armed, detail = True, f"baseline from {len(self.learned)} pairs"
        elif len(self.learned) < LEARN_PAIRS:
            detail = f"learning the baseline ({len(self.learned)} of {LEARN_PAIRS} pairs)"
        return [Armed("prefix cache", armed, detail)]

    def relearn(self) -> None:
        """Learns the baseline again."""
        self.learned, self.lost, self.hits, self.since_us = [], [], 0, None


def _served(pairs: Sequence[CachePair]) -> float | None:
    """By cached tokens, else 1 - the second's time over the first's."""
    share, ratio = _share(pairs), _ratio(pairs)
    if share is not None or ratio is None:
        return share
    return max(0.0, 1.0 - ratio)


def _ratio(pairs: Sequence[CachePair]) -> float | None:
    return known_median([p.ratio for p in pairs])


def _share(pairs: Sequence[CachePair]) -> float | None:
    return known_median([p.share for p in pairs])
