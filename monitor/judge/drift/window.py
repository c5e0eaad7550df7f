"""Before and after a change of configuration: two samples under like load, not the drift detector.

When the digest changes, the canaries before it are kept as they are and compared with those after
it, probe by probe and load by load: a rank test (Mann and Whitney 1947), stratified by adding up
over probes and loads (van Elteren 1960), and the Hodges-Lehmann estimate of the shift with its
interval. What cannot be compared (a load or a probe that one side did not meet) is left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from monitor.judge.drift.evidence import Shift
from monitor.judge.drift.settings import HOUR_US, DriftSettings
from monitor.judge.drift.speed.load import Load, decode_load, wait_load
from monitor.model import CanaryPoint

KEPT = 320  # warm good canaries on either side of a change: some hours
KEPT_BEFORE, KEPT_AFTER = 60, 40  # of each probe and load: the last before, the first after
LEAST_EACH = 3  # a stratum with fewer on either side is left out
LEAST_AFTER = 12  # canaries after the change, over all strata, before anything is said
LEAST_AFTER_US = HOUR_US // 4  # and they cover a quarter of an hour
LOAD_BIN = 0.4  # width of a load stratum in ln(1 + mates)
P_VALUE = 1e-3
WANDER = {
    "decode": 0.005,
    "ttft": 0.03,
}  # what a level moves by itself within hours (standard deviation, logarithm): no test may be surer
OPEN_US = 24 * HOUR_US  # a comparison is over after a day


class Value(NamedTuple):
    """One canary: when it was known, and the logarithms of its metric (lower is worse)."""

    known_us: int
    value: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of one metric. `verdict`: slower | faster | same | not enough yet."""

    channel: str
    verdict: str
    shift: Shift | None
    p_value: float | None
    before: int  # canaries that were compared
    after: int


class Kept(NamedTuple):
    """Of a canary what a comparison needs. `name`: probe and priority, by their number."""

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


@dataclass(slots=True)
class Window:
    """A change: from which configuration to which, and the canaries on both sides."""

    before_digest: str
    after_digest: str
    changed_us: int
    before: list[Kept] = field(default_factory=list)
    after: list[Kept] = field(default_factory=list)


@dataclass(slots=True)
class ChangeWindow:
    """Keeps what came before, opens at a change, compares."""

    digest: str | None = None
    names: list[str] = field(default_factory=list)
    recent: list[Kept] = field(default_factory=list)
    window: Window | None = None

    def canary(self, p: CanaryPoint, settings: DriftSettings) -> None:  # noqa: ARG002 - fed like the other parts
        """Take in one canary; only warm good ones count. Cheap: what they are worth is only asked
        at a change.
        """
        if p.outcome != "ok" or p.phase != "warm":
            return
        if p.fingerprint is not None and p.fingerprint != self.digest:
            if self.digest is not None:
                self.open(self.digest, p.fingerprint, p.at_us)
            self.digest = p.fingerprint
        kept = Kept(
            p.known_us, self._number(p), p.ttft_ms, p.queue_ms, p.e2e_ms, p.decode_tok_s, p.completion_tokens, p.running, p.waiting,
            p.other_prompt_tokens, p.other_generation_tokens,
        )  # fmt: skip
        self.recent.append(kept)
        if len(self.recent) > KEPT:
            del self.recent[0]
        if self.window is not None and len(self.window.after) < KEPT:
            self.window.after.append(kept)

    def _number(self, p: CanaryPoint) -> int:
        name = p.probe if p.priority is None else f"{p.probe} at priority {p.priority}"
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def open(self, before: str, after: str, at_us: int) -> None:
        """A change: what was seen until now is the reference, and stays as it is. Back within a
        window: its reference goes on.
        """
        kept = self.window
        if (
            kept is not None and kept.before_digest == after
        ):  # rolled back: compare with what was before the way back
            kept = None
        reference = (
            kept.before if kept is not None and len(kept.after) < LEAST_AFTER else self.recent
        )
        self.window = Window(before, after, at_us, list(reference))
        self.recent = []

    def advance(self, now_us: int, settings: DriftSettings) -> None:  # noqa: ARG002 - told the time like the other parts
        """A window closes after a day; what was compared by then is known."""
        if self.window is not None and now_us - self.window.changed_us > OPEN_US:
            self.window = None

    def compare(self, settings: DriftSettings) -> list[Comparison]:
        """Decode and time to first token after the change against before; empty while there is no
        change to look at.
        """
        window = self.window
        return (
            []
            if window is None
            else [
                _compare(channel, metric, window, settings) for channel, metric in METRICS.items()
            ]
        )

    def armed(self, settings: DriftSettings) -> bool:  # noqa: ARG002
        """Whether a change that comes now could be compared with something."""
        return any(len(values) >= LEAST_EACH for values in _strata(self.recent).values())


METRICS = {"decode": "decode_tok_s", "ttft": "ttft_ms"}


def _strata(kept: Iterable[Kept]) -> dict[str, list[Value]]:
    """By channel, probe and load, in the order of time."""
    strata: dict[str, list[Value]] = {}
    for one in kept:
        for name, value in _values(one):
            strata.setdefault(name, []).append(value)
    return strata


def _values(kept: Kept) -> Iterable[tuple[str, Value]]:
    """The strata that a canary belongs to, with its values."""
    p = CanaryPoint(
        kept.known_us, kept.known_us, ttft_ms=kept.ttft_ms, queue_ms=kept.queue_ms, e2e_ms=kept.e2e_ms, decode_tok_s=kept.decode_tok_s,
        completion_tokens=kept.completion_tokens, running=kept.running, waiting=kept.waiting,
        other_prompt_tokens=kept.other_prompt_tokens, other_generation_tokens=kept.other_generation_tokens,
    )  # fmt: skip
    if (
        p.decode_tok_s is not None
        and 0 < p.decode_tok_s < math.inf
        and (p.completion_tokens is None or p.completion_tokens >= 8)
    ):
        yield (
            _stratum("decode", kept.name, decode_load(p)),
            Value(p.known_us, round(math.log(p.decode_tok_s), 6)),
        )
    wait = None if p.ttft_ms is None else p.ttft_ms - (p.queue_ms or 0.0)
    if wait is not None and 0 < wait < math.inf:
        yield (
            _stratum("ttft", kept.name, wait_load(p)),
            Value(p.known_us, round(-math.log(wait), 6)),
        )


def _stratum(channel: str, name: int, load: Load) -> str:
    mates = "?" if load.mates is None else str(int(load.mates / LOAD_BIN))
    prompts = "?" if load.prompts is None else str(int(load.prompts / (2 * LOAD_BIN)))
    return f"{channel} {mates} {prompts} {name}"


def _compare(channel: str, metric: str, window: Window, settings: DriftSettings) -> Comparison:
    earlier, later = _strata(window.before), _strata(window.after)
    pairs = [
        ([v.value for v in earlier[name][-KEPT_BEFORE:]], [v.value for v in after[:KEPT_AFTER]])
        for name, after in sorted(later.items())
        if name.startswith(channel)
        and len(after) >= LEAST_EACH
        and len(earlier.get(name, ())) >= LEAST_EACH
    ]
    before, after_n = sum(len(b) for b, _ in pairs), sum(len(a) for _, a in pairs)
    times = [
        v.known_us for name, values in later.items() if name.startswith(channel) for v in values
    ]
    if after_n < LEAST_AFTER or max(times) - min(times) < LEAST_AFTER_US:
        return Comparison(channel, "not enough yet", None, None, before, after_n)
    estimate, half = hodges_lehmann(pairs)
    half = math.hypot(half, 1.96 * math.sqrt(2.0) * WANDER[channel])
    p_value = rank_test(pairs)
    practical = practical_log(channel, settings)
    sign = 1 if channel == "decode" else -1
    shift = Shift.of_log(metric, sign * estimate, half)
    return Comparison(
        channel, _verdict(estimate, half, p_value, practical), shift, p_value, before, after_n
    )


def practical_log(channel: str, settings: DriftSettings) -> float:
    """What matters to anybody: the practical limit for decode, 10 % for first tokens."""
    return -math.log1p(-settings.practical_pct / 100.0) if channel == "decode" else math.log(1.10)


def _verdict(estimate: float, half: float, p_value: float, practical: float) -> str:
    if p_value < P_VALUE and abs(estimate) >= practical and abs(estimate) > half:
        return "slower" if estimate < 0 else "faster"
    return "same" if abs(estimate) + half <= 2 * practical else "not enough yet"


def hodges_lehmann(
    strata: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[float, float]:
    """Median of all differences after - before within strata, and the half width of its 95 %
    interval.

    The interval takes the ordered differences as far from the middle as the rank statistic may
    stray: 1.96 x sqrt(sum mn(m+n+1)/12) (Hollander, Wolfe and Chicken 2014, 4.3), summed over
    strata.
    """
    differences = sorted(a - b for before, after in strata for b in before for a in after)
    reach = 1.96 * math.sqrt(sum(len(b) * len(a) * (len(b) + len(a) + 1) for b, a in strata) / 12.0)
    n = len(differences)
    low = differences[max(0, math.floor(n / 2 - reach))]
    high = differences[min(n - 1, math.ceil(n / 2 + reach))]
    estimate = median(differences)
    return estimate, max(estimate - low, high - estimate)


def rank_test(strata: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Two-sided p-value that both sides are alike in every stratum (normal approximation, ties
    counted half).
    """
    centred, variance = 0.0, 0.0
    for before, after in strata:
        m, n = len(before), len(after)
        ordered = sorted(before)
        wins = sum(bisect_left(ordered, a) + bisect_right(ordered, a) for a in after) / 2
        centred += wins - m * n / 2
        variance += m * n * (m + n + 1) / 12
    return math.erfc(abs(centred) / math.sqrt(2 * variance)) if variance > 0 else 1.0


def slower(comparisons: Iterable[Comparison]) -> Mapping[str, Comparison]:
    """Those that got slower, by channel."""
    return {c.channel: c for c in comparisons if c.verdict == "slower"}
