"""Two samples compared stratum by stratum: a rank test (Mann and Whitney 1947), stratified by
adding up over strata (van Elteren 1960), and the Hodges-Lehmann estimate of the shift.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import median

Strata = Sequence[tuple[Sequence[float], Sequence[float]]]  # each: values before, values after


def hodges_lehmann(strata: Strata) -> tuple[float, float]:
    """Median of all differences after - before within strata, and the half width of its 95 %
    confidence interval.

    The interval takes the ordered differences as far from the middle as the rank statistic may
    deviate: 1.96 x sqrt(sum mn(m+n+1)/12), summed over strata (Hollander, Wolfe and Chicken 2014,
    section 4.3).
    """
    differences = sorted(a - b for before, after in strata for b in before for a in after)
    reach = 1.96 * math.sqrt(sum(len(b) * len(a) * (len(b) + len(a) + 1) for b, a in strata) / 12.0)
    n = len(differences)
    low = differences[max(0, math.floor(n / 2 - reach))]
    high = differences[min(n - 1, math.ceil(n / 2 + reach))]
    estimate = median(differences)
    return estimate, max(estimate - low, high - estimate)


def rank_test(strata: Strata) -> float:
    """Two-sided p-value of the hypothesis that both samples are alike in every stratum (normal
    approximation, ties counted half).
    """
    centred, variance = 0.0, 0.0
    for before, after in strata:
        m, n = len(before), len(after)
        ordered = sorted(before)
        wins = sum(bisect_left(ordered, a) + bisect_right(ordered, a) for a in after) / 2
        centred += wins - m * n / 2
        variance += m * n * (m + n + 1) / 12
    return math.erfc(abs(centred) / math.sqrt(2 * variance)) if variance > 0 else 1.0
