"""What is open, in plain data, and all that the parts of detection say at one moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monitor.judge.drift.evidence import Effect, GpuWarning, Observations
from monitor.model import Cause, Kind, Severity

LOUDNESS = (Severity.INFO, Severity.WARNING, Severity.PAGE)
THERMAL = (Cause.HEAT, Cause.MEMORY_HEAT)
POWER = (Cause.POWER_CAP, Cause.POWER_BRAKE)
FAMILY: Mapping[Cause, Kind] = {
    **dict.fromkeys(THERMAL, Kind.THERMAL),
    **dict.fromkeys(POWER, Kind.POWER),
}
KINDS_OF_GPUS = tuple(kind.value for kind in (Kind.THERMAL, Kind.POWER))


@dataclass(slots=True)
class Problem:
    """What is open: in plain data, so that it can be stored. Kind, cause and severity are the words
    of the closed lists.
    """

    # main, level, thermal, power, config, workload; "thermal UUID" of a GPU that fell ill by
    # itself
    name: str
    kind: str
    subject: str
    severity: str
    since_us: int
    opened_us: int
    cause: str | None = None
    score: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)  # sentences of the GPU's warnings
    look_at: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """All that the parts say at one moment."""

    effects: Mapping[str, Effect]  # decode, ttft, steps, start, cache
    levels: Mapping[str, Effect]  # by traffic class
    warned: Sequence[GpuWarning]
    signs: Observations  # beside `effects`, or where there are none, beside the levels
    workload: tuple[int, float, float] | None = None
    changed_us: int | None = None  # a change of the digest that is still being compared
    comparisons: Mapping[str, Any] = field(default_factory=dict)


def name_of(cause: Cause) -> str:
    """Of the trouble that a cause makes: what a GPU is held back by, or anything else that is
    slow.
    """
    return FAMILY[cause].value if cause in FAMILY else "main"


def family(name: str) -> str:
    """thermal of "thermal GPU-1": a GPU that fell ill by itself is in the name of its trouble."""
    return name.partition(" ")[0]
