"""The cost of a lost clock: how decode and prefill of one target follow the SM clock. Until the
clock was seen to vary, published measurements.

A share of the work follows the SM clock, the rest (memory, host) does not: time = (1 - share) +
share · f0/f, Amdahl's law. On sweeps of power caps it predicts decoding with half the error of a
power law, and prefill equally well; at the highest clock the share is the elasticity, per cent of
speed for one per cent of clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.model import CanaryPoint, Predicted


class ElasticityEstimate(NamedTuple):
    """Share of the work that follows the clock, 0..1, with a 95 % interval, and from how many
    samples with another clock.
    """

    value: float
    low: float
    high: float
    samples: int


class Prior(NamedTuple):
    """Prior distribution: mean and standard deviation."""

    mean: float
    sd: float


#: Published measurements: decode 0.23 (vLLM, two RTX 3090), 0.45 (MoE, four bits), 0.57 to 0.93
#: (dense 27B, three bits; both llama.cpp); prefill 0.67 to 0.87 (github.com/noonghunna/club-3090,
#: docs/img/power-cap-*.py and issue 178).
DECODE = Prior(0.45, 0.22)
PREFILL = Prior(0.77, 0.10)
LAW_SD = 0.05  # of the share: the error of the law itself on the sweeps
GROUPS = 24  # probe, fingerprint and load: at most this many at a time
GROUP_MEMORY = 3000.0  # samples
SAMPLES_FROM = 6.0  # more than there are groups, before the scatter about the line is known
# a sample whose clock is this far (as a share) from its group's mean says something
MOVED = 0.015
CROWDING = 4.0  # neighbouring samples are alike: this many count as one
RAMPED_MS = 1000.0  # a shorter answer was generated while the clock ramped up from idle
FULL_MEMORY = 0.97  # of the highest memory clock seen
LONG_PROMPT = 500.0  # tokens; the time of shorter ones is mostly not computing
LONG_PREFILL_MS = 100.0  # a shorter prefill is mostly not computing
LEAST_TOKENS = 8.0
LEAST_SHARE = 0.02  # of the baseline clock: a clock near zero predicts no infinity


@dataclass(slots=True)
class ClockGroup:
    """Means and fading sums of products about them, of 1/clock (x, in 1/GHz) and time (y, in any
    unit), of samples at like load.
    """

    count: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0
    moved: int = 0  # samples at another clock

    def learn(self, x: float, y: float) -> None:
        """Processes one sample (Welford's update with a fading memory)."""
        keep = 1.0 - 1.0 / GROUP_MEMORY
        self.count = self.count * keep + 1.0
        dx, dy = x - self.x, y - self.y
        self.moved += int(self.count > 10 and abs(dx) > MOVED * self.x)
        self.x += dx / self.count
        self.y += dy / self.count
        self.xx = self.xx * keep + dx * (x - self.x)
        self.xy = self.xy * keep + dx * (y - self.y)
        self.yy = self.yy * keep + dy * (y - self.y)


@dataclass(slots=True)
class Elasticity:
    """Elasticity of decode and prefill of one target, from its own canaries. Groups of like load
    are compared with themselves.
    """

    decode_groups: dict[str, ClockGroup] = field(default_factory=dict)
    prefill_groups: dict[str, ClockGroup] = field(default_factory=dict)
    top_mhz: float = 0.0  # highest SM clock of a sample
    top_mem_mhz: float = 0.0

    def canary(self, p: CanaryPoint) -> None:
        """Processes one sample: good, warm, without requests waiting, and with a clock."""
        self.top_mem_mhz = max(self.top_mem_mhz, p.mem_clock_mhz or 0.0)
        if not self._is_usable(p) or not p.sm_clock_mhz:
            return
        self.top_mhz = max(self.top_mhz, p.sm_clock_mhz)
        x, name = 1000.0 / p.sm_clock_mhz, f"{p.probe}|{p.fingerprint}|{_load_step(p.running)}"
        is_long = (p.e2e_ms or 0.0) >= RAMPED_MS and (p.completion_tokens or 0.0) >= LEAST_TOKENS
        if is_long and p.decode_tok_s:
            _learn(self.decode_groups, name, x, 1000.0 / p.decode_tok_s)
        prefill_ms = _prefill_ms(p)
        if prefill_ms is not None:
            _learn(self.prefill_groups, name, x, prefill_ms)

    def _is_usable(self, p: CanaryPoint) -> bool:
        """A warm answer that did not wait, with the memory at its full clock."""
        if p.outcome != "ok" or p.phase != "warm" or (p.waiting or 0.0) > 0.0:
            return False
        return p.mem_clock_mhz is None or p.mem_clock_mhz >= FULL_MEMORY * self.top_mem_mhz

    def decode(self) -> ElasticityEstimate:
        """Share of decoding that follows the clock."""
        return _share(self.decode_groups, self.top_mhz, DECODE)

    def prefill(self) -> ElasticityEstimate:
        """Share of the time to the first token of long prompts that follows the clock."""
        return _share(self.prefill_groups, self.top_mhz, PREFILL)

    def predict(self, baseline_mhz: float, now_mhz: float) -> Predicted:
        """Predicted effect of the clock being `now_mhz` instead of `baseline_mhz`."""
        top = max(self.top_mhz, baseline_mhz)
        now_mhz = max(now_mhz, LEAST_SHARE * baseline_mhz)

        def slower(share: float) -> float:
            then, now = ((1.0 - share) + share * top / mhz for mhz in (baseline_mhz, now_mhz))
            return now / then

        decode, prefill = self.decode(), self.prefill()
        by_decode = sorted(
            100.0 * (1.0 / slower(share) - 1.0) for share in (decode.low, decode.high)
        )
        by_ttft = sorted(100.0 * (slower(share) - 1.0) for share in (prefill.low, prefill.high))
        return Predicted(
            decode_pct=100.0 * (1.0 / slower(decode.value) - 1.0),
            decode_low_pct=by_decode[0],
            decode_high_pct=by_decode[1],
            ttft_pct=100.0 * (slower(prefill.value) - 1.0),
            ttft_low_pct=by_ttft[0],
            ttft_high_pct=by_ttft[1],
        )


def _prefill_ms(p: CanaryPoint) -> float | None:
    """Prefill of a long prompt that was not cached."""
    prefill_ms = p.prefill_ms
    if prefill_ms is None and p.ttft_ms is not None:
        prefill_ms = p.ttft_ms - (p.queue_ms or 0.0)
    if prefill_ms is None or prefill_ms < LONG_PREFILL_MS or p.cached_tokens:
        return None
    return prefill_ms if (p.prompt_tokens or 0.0) >= LONG_PROMPT else None


def _load_step(running: float | None) -> int | None:
    return None if running is None else math.ceil(math.log2(running + 1.0))


def _learn(groups: dict[str, ClockGroup], name: str, x: float, y: float) -> None:
    if name not in groups and len(groups) >= GROUPS:
        del groups[min(groups, key=lambda of: (groups[of].count, of))]
    groups.setdefault(name, ClockGroup()).learn(x, y)


def _share(groups: dict[str, ClockGroup], top_mhz: float, prior: Prior) -> ElasticityEstimate:
    """Least squares within the groups, combined with the prior by their precisions (normal prior).

    In time = whole · (1 + share · (f0/f - 1)) each group has its own `whole`, the time at the
    highest clock; it follows from the group's means once the share is known, so both are found in a
    few iterations.
    """
    mean, precision, top = prior.mean, 1.0 / prior.sd**2, top_mhz / 1000.0
    known = [group for group in groups.values() if group.y > 0.0]
    free = sum(group.count for group in known) - len(known) - 1.0
    xx = top * top * sum(group.xx for group in known)
    if xx > 0.0 and free >= SAMPLES_FROM:
        share = prior.mean
        for _ in range(4):
            whole = [group.y / (1.0 + share * (top * group.x - 1.0)) for group in known]
            xy = top * sum(group.xy / time for group, time in zip(known, whole, strict=True))
            yy = sum(group.yy / time**2 for group, time in zip(known, whole, strict=True))
            share = min(max(xy / xx, 0.0), 1.0)
        noise = max(yy - share * xy, 0.0) / free + 1e-6
        seen = 1.0 / (noise * CROWDING / xx + LAW_SD**2)
        mean, precision = (mean * precision + share * seen) / (precision + seen), precision + seen
    half = 1.96 / math.sqrt(precision)
    moved = sum(group.moved for group in known)
    return ElasticityEstimate(mean, max(mean - half, 0.0), min(mean + half, 1.0), moved)
