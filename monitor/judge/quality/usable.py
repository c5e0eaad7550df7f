"""The retry-or-abstain rate of a class and phase: how often a user would get no usable answer.
Pure.

A canary *abstained* if its answer is a refusal, by the phrases of the probe's own `refusal`
condition or else the default ones. It needs a *retry* if there is no finished answer, or a wrong
one (verdict `fail`). The rate is the sum of both over all canaries; cancelled canaries, and probes
that expect a refusal, are not counted. It is compared with the previous period by a binomial tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monitor.judge.quality.refusals import REFUSALS, is_refusal
from monitor.judge.quality.shift import binomial_tail
from monitor.model import Expectation, Outcome, Sample, Verdict

RISING_P = 0.01
LEAST_RATE = 0.005  # an earlier rate of exactly 0 only means that it was small


@dataclass(frozen=True, slots=True)
class Usable:
    """The rate of one class in one phase. `before`: the rate of the previous period, None if
    nothing was counted then.
    """

    count: int
    abstained: int
    retried: int
    rate: float
    before: float | None
    rising: bool


def refusal_phrases(expect: Iterable[Expectation]) -> tuple[str, ...] | None:
    """Returns the phrases that count as abstaining for a probe with these conditions; None if a
    refusal is the right answer.
    """
    conditions = [e for e in expect if e.refusal is not None]
    if any(not e.negate for e in conditions):
        return None
    own = tuple(phrase for e in conditions for phrase in e.refusal or ())
    return own or REFUSALS


def abstained(sample: Sample, phrases: Sequence[str]) -> bool:
    """Whether the model refused."""
    return sample.outcome is Outcome.OK and is_refusal(sample.output or "", phrases)


def wants_retry(sample: Sample) -> bool:
    """Whether there is no finished answer, or a wrong one."""
    return sample.outcome is not Outcome.OK or sample.verdict is Verdict.FAIL


Key = tuple[str, str, str]  # target, class, phase
Phrases = Mapping[str, tuple[str, ...] | None]
_Counts = tuple[int, int, int]  # all, abstained, retries


def usable(
    samples: Sequence[Sample], before: Sequence[Sample], phrases: Phrases
) -> dict[Key, Usable]:
    """Returns the rates by target, class and phase, with the previous period; `phrases` by probe,
    the default ones for a probe that is not in it.
    """
    now, then = _counted(samples, phrases), _counted(before, phrases)
    return {key: _usable(counts, then.get(key)) for key, counts in sorted(now.items())}


def _counted(samples: Sequence[Sample], phrases: Phrases) -> dict[Key, _Counts]:
    counts: dict[Key, _Counts] = {}
    for sample in samples:
        known = phrases.get(sample.probe, REFUSALS)
        if sample.outcome is Outcome.CANCELLED or known is None:
            continue
        refused = abstained(sample, known)
        # a refusal that also fails its condition counts once
        again = not refused and wants_retry(sample)
        key = (sample.target, sample.traffic_class, sample.phase.value)
        total, refusals, retries = counts.get(key, (0, 0, 0))
        counts[key] = (total + 1, refusals + refused, retries + again)
    return counts


def _usable(now: _Counts, then: _Counts | None) -> Usable:
    count, refusals, retries = now
    before = None if then is None else (then[1] + then[2]) / then[0]
    rising = (
        before is not None
        and binomial_tail(count, refusals + retries, max(before, LEAST_RATE)) < RISING_P
    )
    return Usable(
        count=count,
        abstained=refusals,
        retried=retries,
        rate=(refusals + retries) / count,
        before=before,
        rising=rising,
    )
