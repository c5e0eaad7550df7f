"""Before and after a change of configuration: two samples at like load, not the drift detector.

When the digest changes, the canaries before it are kept and compared with those after it, probe by
probe and load by load (stats/rank.py). Loads and probes that only one side met are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.evidence import Effect, Shift
from monitor.judge.drift.settings import HOUR_US, DriftSettings
from monitor.judge.drift.speed.load import (
    EngineLoad,
    decode_load,
    decode_rate,
    probe_name,
    wait_load,
    wait_ms,
)
from monitor.judge.drift.speed.metric import TTFT_PRACTICAL, practical_log
from monitor.judge.drift.stats.rank import hodges_lehmann, rank_test
from monitor.model import CanaryPoint, Severity

KEPT = 320  # warm good canaries on either side of a change: some hours
KEPT_BEFORE, KEPT_AFTER = 60, 40  # of each probe and load: the last before, the first after
LEAST_EACH = 3  # a stratum with fewer on either side is left out
LEAST_AFTER = 12  # canaries after the change, over all strata, before there is a verdict
LEAST_AFTER_US = HOUR_US // 4  # and they cover a quarter of an hour
LOAD_BIN = 0.4  # width of a load stratum in ln(1 + peers)
P_VALUE = 1e-3
# AR(1) noise of a level within hours (standard deviation, logarithm): no interval is narrower
NOISE_SD = {"decode": 0.005, "ttft": 0.03}
OPEN_US = 24 * HOUR_US  # a comparison ends after a day
GROWN = 1.25  # it is costly, so it is made again when there are this many times more canaries
METRICS = {"decode": "decode_tok_s", "ttft": "ttft_ms"}


class StratumValue(NamedTuple):
    """Time and logarithm (lower is worse) of one canary's metric."""

    known_us: int
    value: float


@dataclass(frozen=True, slots=True)
class ChangeComparison:
    """One metric before and after. `verdict`: slower | faster | same | not enough yet."""

    channel: str
    verdict: str
    shift: Shift | None
    p_value: float | None
    before: int  # canaries that were compared
    after: int


class ComparedCanary(NamedTuple):
    """The fields of a canary that a comparison needs. `name`: number of probe and priority."""

    known_us: int
    name: int
    ttft_ms: float | None
    queue_ms: float | None
    e2e_ms: float | None
    decode_tok_s: float | None
    completion_tokens: float | None
    running: float | None
    waiting: float | None
    other_prompt_tokens: float | None
    other_generation_tokens: float | None

    @classmethod
    def of(cls, p: CanaryPoint, name: int) -> ComparedCanary:
        """The fields of a canary."""
        return cls(
            known_us=p.known_us,
            name=name,
            ttft_ms=p.ttft_ms,
            queue_ms=p.queue_ms,
            e2e_ms=p.e2e_ms,
            decode_tok_s=p.decode_tok_s,
            completion_tokens=p.completion_tokens,
            running=p.running,
            waiting=p.waiting,
            other_prompt_tokens=p.other_prompt_tokens,
            other_generation_tokens=p.other_generation_tokens,
        )

    def point(self) -> CanaryPoint:
        """The same as a canary."""
        fields = self._asdict()
        del fields["name"]
        return CanaryPoint(at_us=self.known_us, **fields)


@dataclass(slots=True)
class DigestChange:
    """A change between two digests, and the canaries on both sides."""

    before_digest: str
    after_digest: str
    changed_us: int
    before: list[ComparedCanary] = field(default_factory=list)
    after: list[ComparedCanary] = field(default_factory=list)


@dataclass(slots=True)
class ChangeWindow:
    """Keeps recent canaries, opens at a change, compares."""

    digest: str | None = None
    names: list[str] = field(default_factory=list)
    recent: list[ComparedCanary] = field(default_factory=list)
    change: DigestChange | None = None
    # of the newest change, made from this many canaries after it
    compared: list[ChangeComparison] = field(default_factory=list)
    compared_with: int = 0

    def canary(self, p: CanaryPoint) -> None:
        """Processes one canary; only warm good ones count. Cheap: values are computed only at a
        change.
        """
        if p.outcome != "ok" or p.phase != "warm":
            return
        if p.fingerprint is not None and p.fingerprint != self.digest:
            if self.digest is not None:
                self.open(self.digest, p.fingerprint, p.at_us)
            self.digest = p.fingerprint
        kept = ComparedCanary.of(p, self._number(p))
        self.recent.append(kept)
        if len(self.recent) > KEPT:
            del self.recent[0]
        if self.change is not None and len(self.change.after) < KEPT:
            self.change.after.append(kept)

    def _number(self, p: CanaryPoint) -> int:
        name = probe_name(p)
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def open(self, before: str, after: str, at_us: int) -> None:
        """Opens at a change: the recent canaries become the reference. A second change soon after
        keeps the reference of the first one, unless it is a rollback.
        """
        last = self.change
        reference = self.recent
        if last is not None and last.before_digest != after and len(last.after) < LEAST_AFTER:
            reference = last.before
        self.change = DigestChange(before, after, at_us, list(reference))
        self.recent = []

    def advance(self, now_us: int) -> None:
        """Closes after a day."""
        if self.change is not None and now_us - self.change.changed_us > OPEN_US:
            self.change = None

    def comparisons(self, settings: DriftSettings) -> list[ChangeComparison]:
        """Comparisons of the present change, updated as more canaries come; empty without one."""
        change = self.change
        if change is None:
            self.compared, self.compared_with = [], 0
        elif not self.compared_with <= len(change.after) <= GROWN * self.compared_with:
            # fewer canaries than compared: it is another change
            self.compared, self.compared_with = self.compare(settings), len(change.after)
        return self.compared

    def compare(self, settings: DriftSettings) -> list[ChangeComparison]:
        """Decode and time to first token after the change against before."""
        if self.change is None:
            return []
        return [_compare(channel, self.change, settings) for channel in METRICS]

    def slower(self, comparisons: Iterable[ChangeComparison]) -> dict[str, Effect]:
        """Metrics that are slower after the change, as effects that began with it."""
        if self.change is None:
            return {}
        return {
            c.channel: Effect(
                channel=c.channel,
                shift=c.shift,
                since_us=self.change.changed_us,
                severity=Severity.WARNING,
                statistic={"p_value": c.p_value, "before": c.before, "after": c.after},
            )
            for c in comparisons
            if c.verdict == "slower" and c.shift is not None
        }


def _strata(canaries: Iterable[ComparedCanary], channel: str) -> dict[str, list[StratumValue]]:
    """Values by probe and load, in order of time."""
    strata: dict[str, list[StratumValue]] = {}
    for one in canaries:
        measured = _measured(one.point(), channel)
        if measured is not None:
            value, load = measured
            stratum = StratumValue(one.known_us, round(value, 6))
            strata.setdefault(_name(one.name, load), []).append(stratum)
    return strata


def _measured(p: CanaryPoint, channel: str) -> tuple[float, EngineLoad] | None:
    """Logarithm of a canary's metric (lower is worse) and its load."""
    if channel == "decode":
        rate = decode_rate(p)
        return None if rate is None else (math.log(rate), decode_load(p))
    wait = wait_ms(p)
    return None if wait is None else (-math.log(wait), wait_load(p))


def _name(name: int, load: EngineLoad) -> str:
    peers = "?" if load.peers is None else str(int(load.peers / LOAD_BIN))
    prompts = "?" if load.prompts is None else str(int(load.prompts / (2 * LOAD_BIN)))
    return f"{peers} {prompts} {name}"


def _compare(channel: str, change: DigestChange, settings: DriftSettings) -> ChangeComparison:
    earlier, later = _strata(change.before, channel), _strata(change.after, channel)
    pairs = _pairs(earlier, later)
    before, after = sum(len(b) for b, _ in pairs), sum(len(a) for _, a in pairs)
    times = [v.known_us for values in later.values() for v in values]
    if after < LEAST_AFTER or max(times) - min(times) < LEAST_AFTER_US:
        return ChangeComparison(channel, "not enough yet", None, None, before, after)
    estimate, half = hodges_lehmann(pairs)
    half = math.hypot(half, 1.96 * math.sqrt(2.0) * NOISE_SD[channel])
    p_value = rank_test(pairs)
    practical = practical_log(settings) if channel == "decode" else TTFT_PRACTICAL
    sign = 1 if channel == "decode" else -1
    return ChangeComparison(
        channel=channel,
        verdict=_verdict(estimate, half, p_value, practical),
        shift=Shift.of_log(METRICS[channel], sign * estimate, half),
        p_value=p_value,
        before=before,
        after=after,
    )


def _pairs(
    earlier: dict[str, list[StratumValue]], later: dict[str, list[StratumValue]]
) -> list[tuple[Sequence[float], Sequence[float]]]:
    """Strata with enough canaries on both sides."""
    return [
        ([v.value for v in earlier[name][-KEPT_BEFORE:]], [v.value for v in after[:KEPT_AFTER]])
        for name, after in sorted(later.items())
        if len(after) >= LEAST_EACH and len(earlier.get(name, ())) >= LEAST_EACH
    ]


def _verdict(estimate: float, half: float, p_value: float, practical: float) -> str:
    if p_value < P_VALUE and abs(estimate) >= practical and abs(estimate) > half:
        return "slower" if estimate < 0 else "faster"
    return "same" if abs(estimate) + half <= 2 * practical else "not enough yet"
