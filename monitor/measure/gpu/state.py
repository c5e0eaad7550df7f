"""Whether the GPUs can be seen, and how long the watch over them waits for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from monitor.model import ReadProblem


@dataclass(frozen=True, slots=True)
class GpuState:
    """Whether the GPUs can be seen. `off`: not wanted; `absent`: no NVIDIA GPU here; `blind`:
    there, and not readable.

    `since` is when this status began; `reason`, for a person, is None only while all is well.
    `troubles` tells what is blind: nothing before the first look. `answering` are the GPUs that
    could be read at the last look.
    """

    status: Literal["ok", "absent", "blind", "off"]
    reason: str | None
    since: datetime
    troubles: Mapping[str, ReadProblem] = field(default_factory=dict)
    answering: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds between things; a part of its own so that tests can shorten it."""

    hang_s: float = 5.0  # a NVML call that takes longer often comes before a wedged driver
    retry_first_s: float = 1.0  # pause before NVML is opened again; doubles up to the last
    retry_last_s: float = 60.0
    absent_s: float = 60.0
    identity_s: float = 60.0


USUAL_TIMING = Timing()
