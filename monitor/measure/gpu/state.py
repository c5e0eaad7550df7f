"""Whether the GPUs can be read, and the intervals of the watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from monitor.model import ReadProblem


@dataclass(frozen=True, slots=True)
class GpuState:
    """Whether the GPUs can be read. `off`: not wanted; `absent`: this machine has no NVIDIA GPU;
    `blind`: a GPU is there and cannot be read.

    `since` is the start of this status; `reason`, for a person, is None only in status `ok`.
    `problems` are the reasons by GPU, empty before the first reading. `answering` are the GPUs that
    could be read last.
    """

    status: Literal["ok", "absent", "blind", "off"]
    reason: str | None
    since: datetime
    problems: Mapping[str, ReadProblem] = field(default_factory=dict)
    answering: frozenset[str] = frozenset()


def first_state(off: bool) -> GpuState:
    """The state of a watch that has not read anything yet."""
    if off:
        return GpuState("off", "gpus: none in the configuration", datetime.now(UTC))
    return GpuState("blind", "the GPUs have not been read yet", datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; apart from the watch so that tests can shorten them."""

    hang_s: float = 5.0  # a longer NVML call often precedes a driver that hangs
    retry_first_s: float = 1.0  # pause before NVML is opened again; doubles up to the last
    retry_last_s: float = 60.0
    absent_s: float = 60.0
    identity_s: float = 60.0


DEFAULT_TIMING = Timing()
