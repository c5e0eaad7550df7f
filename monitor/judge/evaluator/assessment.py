"""The result of asking a judge, and the part of the configuration that judges need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from monitor.judge.quality import gate
from monitor.model import (
    CanaryPoint,
    Finding,
    Kind,
    Outcome,
    Phase,
    Pin,
    Probe,
    Sample,
    Verdict,
    from_us,
)
from monitor.model.probe import AGAIN

_OUTCOMES = {word.value: word for word in Outcome}
_PHASES = {word.value: word for word in Phase}
_VERDICTS = {word.value: word for word in Verdict}


class OpenIncident(Protocol):
    """The fields of an open incident by which a judge decides whether it may close."""

    @property
    def kind(self) -> Kind: ...
    @property
    def subject(self) -> str: ...
    @property
    def opened_at(self) -> datetime: ...


def always(_incident: OpenIncident) -> bool:
    """Lets every incident close that is no longer found."""
    return True


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the judges of some kinds find now.

    `may_close` is False for an open incident that stays open although it is not found, for example
    because there is no evidence of either yet.
    """

    kinds: Sequence[Kind]
    findings: Sequence[Finding] = ()
    may_close: Callable[[OpenIncident], bool] = always


@dataclass(frozen=True, slots=True)
class Rules:
    """The part of the configuration that judges need.

    `only_known`: samples of a probe that is not in `probes` are not judged. Otherwise they are
    judged by the defaults of a probe file, as those of a CSV file without a configuration are.
    """

    probes: Mapping[str, Probe] = field(default_factory=dict)
    intervals: Mapping[str, timedelta] = field(default_factory=dict)  # by probe; else not expected
    pins: Mapping[int, Pin] = field(default_factory=dict)
    same_address: bool = True  # of API and metrics page: a refusal of one is evidence on the other
    only_known: bool = False

    def probe(self, name: str) -> Probe | None:
        """Returns a probe, or the second run of one, by its name."""
        if name in self.probes:
            return self.probes[name]
        first = self.probes.get(name.removesuffix(AGAIN))
        if first is not None and first.same_salt_twice:
            return gate.again(first)
        return None if self.only_known else _default_probe(name)


def _default_probe(name: str) -> Probe:
    return Probe(
        name=name,
        traffic_class="",
        endpoint="chat",
        messages=(),
        prompt=None,
        max_tokens=1,
        sampling={},
        every_s=None,
        cron=None,
        max_wait_s=None,
        timeout_s=300.0,
    )


def sample_of(target: str, point: CanaryPoint) -> Sample:
    """Returns the sample that a point was made from, with the fields that the judges of
    availability and answers read.
    """
    return Sample(
        target=target,
        probe=point.probe,
        traffic_class=point.traffic_class,
        started_at=from_us(point.at_us),
        phase=_PHASES.get(point.phase, Phase.WARM),
        outcome=_OUTCOMES.get(point.outcome, Outcome.OK),
        verdict=_VERDICTS.get(point.verdict or "", Verdict.UNKNOWN),
        stale=point.stale,
        fingerprint=point.fingerprint,
        pin=point.pin,
        ttft_ms=point.ttft_ms,
        e2e_ms=point.e2e_ms,
        running=point.running,
        other_generation_tokens=point.other_generation_tokens,
        first_divergence=None if point.first_divergence is None else int(point.first_divergence),
        logprob_shift=point.logprob_shift,
    )
