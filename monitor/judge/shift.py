"""Did the model change although its answers did not? A test on the log-probabilities of pinned tokens. Pure.

Each sample whose answer is the pinned one carries `logprob_shift`, the mean of log-probability now minus log-probability pinned over its
tokens. Quantised or swapped weights move it long before a text changes, some probes up and some down; noise moves it a little, by an amount
that the pin itself has measured (repeats at pinning).

Test: for each probe the mean shift over the rounds is standardised by the pin's noise (never below NOISE_FLOOR_NAT) over the square root of
the number of rounds, and clipped at Z_CLIP so that one probe cannot decide; the sum of squares is chi-square with one degree of freedom a
probe when nothing changed. A finding needs P_VALUE, at least DISTINCT_PROBES beyond Z_PROBE, and a root-mean-square shift of PRACTICAL_NAT.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

NOISE_FLOOR_NAT = 0.002
PRACTICAL_NAT = 0.005
P_VALUE = 1e-6
Z_CLIP = 6.0
Z_PROBE = 3.0
DISTINCT_PROBES = 3
LEAST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class ShiftResult:
    """What the test says. `shifted` None: not enough evidence to say anything."""

    shifted: bool | None
    effect_nat: float | None  # root mean square over probes of the mean shift
    p_value: float | None
    probes: int
    rounds: int
    moved: tuple[str, ...] = ()  # the probes that moved, the most moved first


def judge_shift(shifts: Mapping[str, Sequence[float]], noise_nat: Mapping[str, float]) -> ShiftResult:
    """`shifts`: for each pinned probe its samples' logprob_shift over the same rounds; `noise_nat`: each pin's own standard deviation."""
    usable = {probe: list(values) for probe, values in shifts.items() if len(values) >= LEAST_ROUNDS}
    rounds = min((len(values) for values in usable.values()), default=0)
    if len(usable) < DISTINCT_PROBES:
        return ShiftResult(None, None, None, len(usable), rounds)
    means = {probe: fmean(values) for probe, values in usable.items()}
    scores = {p: _score(m, len(usable[p]), noise_nat.get(p, 0.0)) for p, m in means.items()}
    statistic = sum(min(abs(z), Z_CLIP) ** 2 for z in scores.values())
    p_value = chi_square_tail(statistic, len(scores))
    effect = math.sqrt(fmean([m * m for m in means.values()]))
    moved = tuple(sorted((p for p, z in scores.items() if abs(z) >= Z_PROBE), key=lambda p: -abs(means[p])))
    shifted = p_value < P_VALUE and len(moved) >= DISTINCT_PROBES and effect >= PRACTICAL_NAT
    return ShiftResult(shifted, effect, p_value, len(scores), rounds, moved)


def _score(mean: float, count: int, noise: float) -> float:
    return mean / (max(noise, NOISE_FLOOR_NAT) / math.sqrt(count))


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square with `degrees` > statistic): the regularised upper incomplete gamma function (Numerical Recipes, 6.2)."""
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    front = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - total * front)
    b, c = x + 1 - a, 1e300
    d = h = 1 / b
    for i in range(1, 500):
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b)
        c = b + an / c
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return front * h
