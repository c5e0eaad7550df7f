"""What a watch reads GPUs from: the contract that NVML (nvml.py) and a DCGM exporter's page
(dcgm.py) both keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from monitor.model import GpuEvent, GpuFault, GpuReading


class GpuLostError(Exception):
    """A GPU's handle is dead: close, open again after a pause, and look for the GPU by its UUID.
    `reason` is for a person.
    """

    def __init__(self, uuid: str, reason: str, fault: GpuFault = GpuFault.UNREADABLE) -> None:
        super().__init__(f"{uuid}: {reason}")
        self.uuid = uuid
        self.reason = reason
        self.fault = fault


class GpusUnavailableError(Exception):
    """No session can be had; `reason` is for a person. Kind `absent`: there is no NVIDIA driver, or
    no GPU, here.

    `unreadable` has the GPUs that are counted and cannot be listed, where that is why.
    """

    def __init__(
        self,
        reason: str,
        kind: Literal["absent", "mismatch", "error"],
        unreadable: Mapping[str, GpuLostError] | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind
        self.unreadable = dict(unreadable or {})


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What stays the same of a GPU until someone changes it; None = not offered."""

    uuid: str
    name: str | None = None
    power_limit_w: float | None = None  # enforced: after every limiter, also out-of-band ones
    power_limit_requested_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_mem_clock_mhz: int | None = None
    ecc: bool | None = None  # current mode
    mig: bool | None = None  # current mode
    vram_total_mib: float | None = None
    processes: tuple[tuple[int, float | None], ...] | None = (
        None  # compute: host pid, MiB used (None = hidden)
    )


@dataclass(frozen=True, slots=True)
class GpusIdentity:
    """Versions and GPUs of one source; CUDA as people write it, for example 13.0."""

    driver_version: str | None
    cuda_driver_version: str | None
    gpus: tuple[GpuIdentity, ...]
    hidden: tuple[
        str, ...
    ] = ()  # GPUs that are missing above only because they cannot be read and never could


class GpuSession(Protocol):
    """An open source of readings. Opening raises GpusUnavailableError, reading GpuLostError."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs there are."""
        ...

    @property
    def unreadable(self) -> Mapping[str, GpuLostError]:
        """GPUs that are counted but cannot be listed: "GPU 1" -> why."""
        ...

    def read(self, uuid: str, at: datetime, monotonic_ns: int) -> GpuReading:
        """Look at one GPU now."""
        ...

    def events(self, at: datetime) -> Sequence[GpuEvent]:
        """Faults reported since the last call, taken up at `at`; never raises."""
        ...

    def identity(self) -> GpusIdentity:
        """Versions and GPUs."""
        ...

    def close(self) -> None:
        """End; never raises."""
        ...
