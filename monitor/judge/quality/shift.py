"""The model shift: a rank test on log-probabilities, which shift when the model changes even if its
answers do not. Pure.

Each sample carries `logprob_shift`: the distance between its log-probabilities and the pin's, over
the tokens of the pinned answer and their alternatives (root mean square, nat). It comes from the
sample's own stream if the answer is the pinned one, otherwise from scoring the pinned answer.
Quantised or swapped weights shift log-probabilities long before a text changes. Noise shifts them,
too, but not further than the repeats at pinning, scoring included (the pin's noise).

Test: without a change, the shift of a new sample is one more draw from the distribution of the
repeats, and exceeds the largest of N repeats with a probability of at most 1/(N + 1), whatever the
distribution. A probe has *moved* if the mean of its last rounds exceeds MARGIN times its pin's
noise (at least NOISE_FLOOR_NAT). The number of probes that moved is then at most binomial(probes,
1/(N + 1)). A finding needs a binomial tail below P_VALUE and a median shift of PRACTICAL_NAT over
the probes. With too few probes to reach P_VALUE the test has no result. A pin with more noise than
MOST_NOISE_NAT is not used: 4-bit weights would not shift it far enough.
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
LEAST_REPEATS = 3  # with fewer repeats the noise of a pin is unknown
#: 4-bit weights shift the tiny model of the tests by some tenths of a nat; MARGIN times more noise
#: than this would hide them.
MOST_NOISE_NAT = 0.3
LOG_PROBABILITIES = "log-probabilities"  # the subject of the finding


@dataclass(frozen=True, slots=True)
class ShiftResult:
    """The result of the test. `shifted` None: too little data to test."""

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
    """Tests whether the model has shifted. `shifts`: each pinned probe's logprob_shift over the
    same rounds; `noise_nat` and `repeats`: each pin's noise, and the number of repeats it is from.
    """
    usable = {
        p: list(v)
        for p, v in shifts.items()
        if len(v) >= LEAST_ROUNDS and is_usable(noise_nat.get(p), repeats.get(p, 0))
    }
    rounds = min((len(values) for values in usable.values()), default=0)
    chances = [1 / (repeats[probe] + 1) for probe in usable]
    if not usable or math.prod(chances) > P_VALUE:
        return ShiftResult(
            shifted=None, effect_nat=None, p_value=None, probes=len(usable), rounds=rounds
        )
    means = {probe: fmean(values) for probe, values in usable.items()}
    moved = sorted(
        (probe for probe, mean in means.items() if mean > limit_nat(noise_nat.get(probe))),
        key=lambda probe: -means[probe],
    )
    p_value = binomial_tail(len(usable), len(moved), max(chances))
    effect = median(means.values())
    return ShiftResult(
        shifted=p_value < P_VALUE and effect >= PRACTICAL_NAT,
        effect_nat=effect,
        p_value=p_value,
        probes=len(usable),
        rounds=rounds,
        moved=tuple(moved),
    )


def is_usable(noise_nat: float | None, repeats: int) -> bool:
    """Whether the noise of a pin is known, and small enough for a shift to be detected."""
    return repeats >= LEAST_REPEATS and noise_nat is not None and noise_nat <= MOST_NOISE_NAT


def limit_nat(noise_nat: float | None) -> float:
    """Returns the mean shift above which a probe has moved."""
    return MARGIN * max(noise_nat or 0.0, NOISE_FLOOR_NAT)


def binomial_tail(n: int, k: int, p: float) -> float:
    """Returns P(at least k of n), with logarithms: the coefficients of 10,000 runs overflow a
    float.
    """
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
