"""Failures over all probes that are more frequent than greedy answers flip by themselves: a
Bernoulli CUSUM over their runs. Pure.

Greedy answers flip now and then on a healthy server. Of 600 items, asked six times, FLIP_RATE of
the answers differed between the two passes that agreed least
(benchmarks/data/gb10_greedy_agreement.csv). So one failed answer says little, while a fault
repeats, on the same probes.

Test: Page's CUSUM with the log-likelihood ratio of FAILING_RATE against FLIP_RATE, over the judged
runs of all probes in order (E. S. Page, Continuous inspection schemes, Biometrika 41, 1954; for
Bernoulli trials M. R. Reynolds and Z. G. Stoumbos, J. Quality Technology 31, 1999). An alarm needs
ALARM_NAT of evidence, and DISTINCT probes that each failed TWICE since the evidence was last zero:
one or two probes alone cannot raise it; a probe that fails alone is judged by its own `repeats` and
`require`. `benchmarks/quality.py` measures the false alarms and the delay of exactly this code
(docs/quality.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

#: The share that flips without a fault: 17 of the 600 items, in the two passes that agreed least.
FLIP_RATE = 0.028
#: The failure rate to detect: one answer in ten.
FAILING_RATE = 0.10
#: At most 0.05 false alarms in 30 days of 12 probes every 15 minutes at 2.4 % flips (measured:
#: 0.03), and one answer in ten that fails is found within 10 rounds (the median).
ALARM_NAT = 8.5
#: The evidence is capped here, so that an alarm ends a dozen rounds after the last failure.
MOST_NAT = 12.0
DISTINCT, TWICE = 3, 2
SEVERAL = "several probes"  # the subject of the finding; no probe has a blank in its name

_FAILED_NAT = math.log(FAILING_RATE / FLIP_RATE)
_PASSED_NAT = math.log((1 - FAILING_RATE) / (1 - FLIP_RATE))


@dataclass(frozen=True, slots=True)
class Flips:
    """The state of the CUSUM; each run produces the next state."""

    evidence_nat: float = 0.0
    # by probe, since the evidence was last zero
    failures: Mapping[str, int] = field(default_factory=dict)
    alarmed: bool = False  # until the evidence is back at zero

    def passed(self, runs: int = 1) -> Flips:
        """Returns the state after runs that did not fail."""
        evidence = self.evidence_nat + runs * _PASSED_NAT
        return Flips() if evidence <= 0 else Flips(evidence, self.failures, self.alarmed)

    def failed(self, probe: str) -> Flips:
        """Returns the state after a run that failed."""
        evidence = min(MOST_NAT, self.evidence_nat + _FAILED_NAT)
        failures = {**self.failures, probe: self.failures.get(probe, 0) + 1}
        alarmed = self.alarmed or (evidence > ALARM_NAT and len(_twice(failures)) >= DISTINCT)
        return Flips(evidence, failures, alarmed)

    @property
    def failed_twice(self) -> tuple[str, ...]:
        """The probes that failed twice or more, by name."""
        return _twice(self.failures)


def _twice(failures: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(probe for probe, count in failures.items() if count >= TWICE))
