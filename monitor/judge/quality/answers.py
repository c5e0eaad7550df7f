"""The last runs of a target's probes, kept up to date run by run, and the findings from them. The
daemon and a replay use the same class. Pure.

Each probe's last runs are kept regardless of age: a probe that runs once a day is judged by its
last runs, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from monitor.judge.quality import verdicts
from monitor.judge.quality.flips import Flips
from monitor.judge.quality.gate import ConcurrentLoad, first_of, was_alone
from monitor.judge.quality.shift import limit_nat
from monitor.judge.quality.verdicts import JUDGED, DetailOf
from monitor.model import Finding, Pin, Probe, Sample, Verdict


class Run(ConcurrentLoad, Protocol):
    """The fields of a run that are needed here: both a stored sample and a point of a replay have
    them.
    """

    @property
    def probe(self) -> str: ...
    @property
    def verdict(self) -> str | None: ...
    @property
    def stale(self) -> bool | None: ...
    @property
    def pin(self) -> int | None: ...
    @property
    def logprob_shift(self) -> float | None: ...


R = TypeVar("R", bound=Run)


@dataclass(slots=True)
class _ProbeRuns(Generic[R]):
    """One probe's last runs. `counted_as`: the name under which its failures count in the test over
    all probes.
    """

    probe: Probe
    counted_as: str
    last: deque[R]
    moved: deque[R] = field(default_factory=lambda: deque(maxlen=verdicts.SHIFT_ROUNDS))

    @property
    def fails(self) -> bool:
        """Whether more of the runs failed than the probe allows."""
        return verdicts.too_few_passes(
            [run.verdict == Verdict.FAIL for run in self.last],
            self.probe.repeats,
            self.probe.require,
        )


@dataclass(slots=True)
class LastAnswers(Generic[R]):
    """The last answers of one target. `probe_of` returns a probe by name; None where the
    configuration no longer has it.
    """

    target: str
    probe_of: Callable[[str], Probe | None]
    _own: dict[str, _ProbeRuns[R]] = field(default_factory=dict)
    _pinned: deque[R] = field(default_factory=lambda: deque(maxlen=verdicts.NEAR_TIE_RUNS))
    _flips: Flips = field(default_factory=Flips)
    _first_failed: R | None = None  # since the evidence was last zero,
    _runs: int = 0  # and the number of runs since then, including that one

    def add(self, run: R, *, earlier: bool = False) -> bool:
        """Adds one run, in the order in which runs became known; returns whether it was judged.

        An unpinned answer counts only as one that is not broken. `earlier`: the run is older than
        the period of which all runs are known, so it counts for its own probe only.
        """
        if run.verdict == Verdict.UNPINNED and (known := self._own.get(run.probe)) is not None:
            known.last.append(run)  # no condition applied, but the answer was not broken
        if run.verdict not in JUDGED:
            return False
        own = self._own.get(run.probe) or self._begin(run.probe)
        if own is None:
            return False
        own.last.append(run)
        if run.pin is not None:
            self._pinned.append(run)
            if (
                run.logprob_shift is not None
                and not run.stale
                and own.counted_as == run.probe
                and was_alone(run)
            ):
                own.moved.append(run)
        if not earlier and not run.stale:
            self._count(run, own.counted_as)
        return True

    def _begin(self, name: str) -> _ProbeRuns[R] | None:
        probe = self.probe_of(name)
        if probe is None:
            return None
        own = self._own[name] = _ProbeRuns[R](probe, first_of(probe), deque(maxlen=probe.repeats))
        return own

    def _count(self, run: R, probe: str) -> None:
        failed = run.verdict == Verdict.FAIL
        if not self._flips.failures:
            if not failed:
                return
            self._first_failed, self._runs = run, 0
        self._runs += 1
        self._flips = self._flips.failed(probe) if failed else self._flips.passed()

    def moved(self, probe: str, pins: Mapping[int, Pin]) -> bool:
        """Whether any of a probe's last log-probability shifts exceeds its limit: otherwise the
        test cannot find anything.
        """
        own = self._own.get(probe)
        for run in () if own is None else own.moved:
            pin = None if run.pin is None else pins.get(run.pin)
            if pin is not None and (run.logprob_shift or 0.0) > limit_nat(pin.noise_nat):
                return True
        return False

    def findings(
        self, as_sample: Callable[[R], Sample], pins: Mapping[int, Pin], detail_of: DetailOf
    ) -> list[Finding]:
        """Returns the current findings. `detail_of` returns the stored text about a sample that
        failed. A judge is called only if it can find something: converting points to samples is
        expensive.
        """
        failing = [each for each in self._own.values() if each.fails]
        last = {each.probe.name: [as_sample(run) for run in each.last] for each in failing}
        found = [
            self._together(as_sample),
            self._near_ties(as_sample),
            self._model_shift(as_sample, pins),
        ]
        return [
            *verdicts.judge_quality(self.target, [each.probe for each in failing], last, detail_of),
            *(f for f in found if f is not None),
        ]

    def _together(self, as_sample: Callable[[R], Sample]) -> Finding | None:
        if self._first_failed is None or not self._flips.alarmed:
            return None
        return verdicts.judge_together(
            self.target, self._flips, as_sample(self._first_failed).started_at, self._runs
        )

    def _near_ties(self, as_sample: Callable[[R], Sample]) -> Finding | None:
        if sum(run.verdict == Verdict.NEAR_TIE for run in self._pinned) < verdicts.LEAST_NEAR_TIES:
            return None
        return verdicts.judge_near_ties(self.target, [as_sample(run) for run in self._pinned])

    def _model_shift(
        self, as_sample: Callable[[R], Sample], pins: Mapping[int, Pin]
    ) -> Finding | None:
        if not any(self.moved(name, pins) for name in self._own):
            return None
        return verdicts.judge_model_shift(
            self.target, [as_sample(run) for own in self._own.values() for run in own.moved], pins
        )
