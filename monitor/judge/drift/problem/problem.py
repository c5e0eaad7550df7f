"""An open problem as plain data, and all that the parts of detection observe at one time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.judge.drift.evidence import Effect, Observations, Pair
from monitor.model import Cause, GpuWarning, Kind, Severity

THERMAL = (Cause.HEAT, Cause.MEMORY_HEAT)
POWER = (Cause.POWER_CAP, Cause.POWER_BRAKE)
FAMILY: Mapping[Cause, Kind] = {
    **dict.fromkeys(THERMAL, Kind.THERMAL),
    **dict.fromkeys(POWER, Kind.POWER),
}
GPU_FAMILIES = (Kind.THERMAL.value, Kind.POWER.value)


class Prompts(NamedTuple):
    """Prompt lengths in tokens per request: the longest hour of the baseline, and the last hour."""

    baseline: float
    now: float


@dataclass(frozen=True, slots=True)
class CauseEvidence:
    """What the cause of an effect rests on. `gpu`: the GPU of the readings."""

    gpu: str | None = None
    seen: Mapping[str, bool | None] = field(default_factory=dict)
    readings: Mapping[str, Pair] = field(default_factory=dict)
    slope_per_h: float | None = None
    also_possible: tuple[Cause, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """What is open. Plain data, so that the detector's state can be stored.

    `name`: main, level, thermal, power, config, workload; "thermal UUID" for a GPU that began at
    another time than the first. `warnings`: the one that named the cause first.
    """

    name: str
    kind: Kind
    subject: str
    severity: Severity
    since_us: int
    opened_us: int
    cause: Cause | None = None
    score: float = 0.0
    effects: tuple[Effect, ...] = ()
    calm: tuple[str, ...] = ()
    evidence: CauseEvidence | None = None  # of the effects
    warnings: tuple[GpuWarning, ...] = ()
    levels: Mapping[str, Effect] = field(default_factory=dict)  # by traffic class
    also_slower: tuple[Effect, ...] = ()  # in addition to a service level
    prompts: Prompts | None = None
    compared: Mapping[str, str] | None = None  # verdicts on a change of configuration

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that warn of it, by UUID."""
        return frozenset(warning.uuid for warning in self.warnings)


@dataclass(frozen=True, slots=True)
class Observed:
    """All that the parts of detection observe at one time.

    `observations`: what attribution may use, for the effects, or for the levels if there are none.
    """

    effects: Mapping[str, Effect]  # decode, ttft, steps, start, cache
    levels: Mapping[str, Effect]  # by traffic class
    warned: Sequence[GpuWarning]
    observations: Observations
    workload: tuple[int, float, float] | None = None
    changed_us: int | None = None  # a change of the digest that is still being compared
    comparisons: Mapping[str, str] = field(default_factory=dict)


def name_of(cause: Cause) -> str:
    """Returns the name of the problem with a cause: the family of what throttles a GPU, or main."""
    return FAMILY[cause].value if cause in FAMILY else "main"


def family(name: str) -> str:
    """Returns "thermal" for "thermal GPU-1"."""
    return name.partition(" ")[0]
