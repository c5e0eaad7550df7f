"""Did the model change although its answers did not? A rank test on how far log-probabilities
moved. Pure.

Each sample carries `logprob_shift`: how far the log-probabilities of the pinned answer's tokens and
of their alternatives moved from the pin (root mean square, nat); from its own stream where the
answer is the pinned one, else by having the pinned one scored. Quantised or swapped weights move
them long before a text changes; noise moves them too, by at most what the repeats at pinning moved,
scoring included (the pin's noise).

Test: if nothing changed, the shift of a probe's new sample is one more draw beside its repeats, and
exceeds the largest of N of them with a chance of at most 1/(N + 1), whatever the distribution. A
probe *moved* when the mean of its last rounds exceeds MARGIN times its pin's noise (never below
NOISE_FLOOR_NAT). The number of probes that moved is at most binomial(probes, 1/(N + 1)). A finding
needs a binomial tail below P_VALUE and a median shift of PRACTICAL_NAT over the probes. Too few
probes to reach P_VALUE at all say nothing, nor does a pin whose own noise is above MOST_NOISE_NAT:
it would have to move further than weights of four bits move it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

NOISE_FLOOR_NAT = 0.01
PRACTICAL_NAT = 0.03
MARGIN = 2.0
P_VALUE = 1e-3
LEAST_ROUNDS = 2
LEAST_REPEATS = 3  # a pin with fewer repeats does not know its noise
#: Weights in 4 bits move the tiny model of the tests by some tenths of a nat; MARGIN times more
#: noise than this would hide them.
MOST_NOISE_NAT = 0.3


@dataclass(frozen=True, slots=True)
class ShiftResult:
    """What the test says. `shifted` None: not enough evidence to say anything."""

    shifted: bool | None
    effect_nat: float | None  # median over probes of the mean shift
    p_value: float | None
    probes: int
    rounds: int
    moved: tuple[str, ...] = ()  # the probes that moved, the most moved first


def judge_shift(
    shifts: Mapping[str, Sequence[float]],
    noise_nat: Mapping[str, float | None],
    repeats: Mapping[str, int],
) -> ShiftResult:
    """`shifts`: each pinned probe's logprob_shift over the same rounds; `noise_nat` and `repeats`:
    each pin's largest move, of how many.
    """
    usable = {
        p: list(v)
        for p, v in shifts.items()
        if len(v) >= LEAST_ROUNDS and is_usable(noise_nat.get(p), repeats.get(p, 0))
    }
    rounds = min((len(values) for values in usable.values()), default=0)
    chances = [1 / (repeats[probe] + 1) for probe in usable]
    if not usable or math.prod(chances) > P_VALUE:
        return ShiftResult(None, None, None, len(usable), rounds)
    means = {probe: fmean(values) for probe, values in usable.items()}
    moved = sorted(
        (probe for probe, mean in means.items() if mean > limit_nat(noise_nat.get(probe))),
        key=lambda probe: -means[probe],
    )
    p_value = binomial_tail(len(usable), len(moved), max(chances))
    effect = median(means.values())
    return ShiftResult(
        p_value < P_VALUE and effect >= PRACTICAL_NAT,
        effect,
        p_value,
        len(usable),
        rounds,
        tuple(moved),
    )


def is_usable(noise_nat: float | None, repeats: int) -> bool:
    """Whether a pin knows its noise, and has little enough of it for a shift to be seen."""
    return repeats >= LEAST_REPEATS and noise_nat is not None and noise_nat <= MOST_NOISE_NAT


def limit_nat(noise_nat: float | None) -> float:
    """The mean shift above which a probe has moved."""
    return MARGIN * max(noise_nat or 0.0, NOISE_FLOOR_NAT)


def binomial_tail(n: int, k: int, p: float) -> float:
    """P(at least k of n), by logarithms: the coefficients of ten thousand runs fit no float."""
    if k <= 0:
        return 1.0
    if p <= 0 or k > n:
        return 0.0
    if p >= 1:
        return 1.0

    def log_share(i: int) -> float:
        return (
            math.lgamma(n + 1)
            - math.lgamma(i + 1)
            - math.lgamma(n - i + 1)
            + i * math.log(p)
            + (n - i) * math.log1p(-p)
        )

    return min(1.0, math.fsum(math.exp(log_share(i)) for i in range(k, n + 1)))
