"""The source that a watch reads GPUs from: the interface of NVML (nvml.py) and of a DCGM exporter's
page (dcgm.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from monitor.model import GpuEvent, GpuFault, GpuReading


class GpuLostError(Exception):
    """A GPU's handle is dead: close the session, open it again after a pause, and find the GPU by
    its UUID. `reason` is for a person.
    """

    def __init__(self, uuid: str, reason: str, fault: GpuFault = GpuFault.UNREADABLE) -> None:
        super().__init__(f"{uuid}: {reason}")
        self.uuid = uuid
        self.reason = reason
        self.fault = fault


class GpusUnavailableError(Exception):
    """No session can be opened; `reason` is for a person. Kind `absent`: this machine has no NVIDIA
    driver or no GPU.

    `unreadable` holds the GPUs that are counted but cannot be listed, where that is the reason.
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
    """The properties of a GPU that only an administrator changes; None = not offered."""

    uuid: str
    name: str | None = None
    index: int | None = None  # as nvidia-smi counts: for people, since it may change at a reboot
    power_limit_w: float | None = None  # enforced: after every limiter, out-of-band ones included
    power_limit_requested_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_mem_clock_mhz: int | None = None
    ecc: bool | None = None  # current mode
    mig: bool | None = None  # current mode
    vram_total_mib: float | None = None
    # compute processes: host pid, MiB used (None = hidden)
    processes: tuple[tuple[int, float | None], ...] | None = None


@dataclass(frozen=True, slots=True)
class GpusIdentity:
    """Versions and GPUs of one source; the CUDA version as MAJOR.MINOR."""

    driver_version: str | None
    cuda_driver_version: str | None
    gpus: tuple[GpuIdentity, ...]
    # GPUs that are missing from `gpus` only because they could never be read
    hidden: tuple[str, ...] = ()


class GpuSession(Protocol):
    """An open source of readings. Opening raises GpusUnavailableError, reading GpuLostError."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs of the source."""
        ...

    @property
    def unreadable(self) -> Mapping[str, GpuLostError]:
        """GPUs that are counted but cannot be listed: "GPU 1" -> reason."""
        ...

    def read(self, uuid: str, at: datetime, monotonic_ns: int) -> GpuReading:
        """Reads one GPU now."""
        ...

    def events(self, at: datetime) -> Sequence[GpuEvent]:
        """Faults reported since the last call, with the time `at`; never raises."""
        ...

    def identity(self) -> GpusIdentity:
        """Versions and GPUs."""
        ...

    def close(self) -> None:
        """Ends the session; never raises."""
        ...
