"""The meaning of NVML's return codes (nvml.h, nvmlReturn_t), in sentences that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pynvml

from monitor.measure.gpu.session import GpuLostError, GpusUnavailableError
from monitor.model import GpuFault

_MISMATCH = (
    "the NVIDIA kernel driver and its library have different versions (LibRmVersionMismatch), as "
    "after an upgrade without a reboot; reboot, or reload the nvidia kernel modules and restart "
    "this program"
)
#: Codes after which a handle is dead and the session must be opened again (nvml.h, nvmlReturn_t).
LOST = {
    1: (GpuFault.SOURCE, "NVML is no longer initialised, as after a reload of the driver"),
    15: (
        GpuFault.LOST,
        "the driver has lost the GPU; look for Xid 79 in the kernel log (dmesg), then reset "
        "the GPU or reboot",
    ),
    16: (
        GpuFault.RESET,
        "the GPU must be reset before it can be used: nvidia-smi --gpu-reset, or reboot",
    ),
    18: (GpuFault.MISMATCH, _MISMATCH),
}


class QuerySupport(StrEnum):
    """Whether a GPU offers a value, as found at the first query."""

    OK = "ok"
    NOT_SUPPORTED = "NotSupported"
    NO_PERMISSION = "NoPermission"
    FUNCTION_NOT_FOUND = "FunctionNotFound"


#: nvmlReturn_t of a call that would return the same next time; 25: a struct version unknown to the
#: driver, 26: deprecated.
REFUSALS = {
    3: QuerySupport.NOT_SUPPORTED,
    4: QuerySupport.NO_PERMISSION,
    13: QuerySupport.FUNCTION_NOT_FOUND,
    25: QuerySupport.FUNCTION_NOT_FOUND,
    26: QuerySupport.NOT_SUPPORTED,
}


def unlisted(name: str, error: Exception) -> GpuLostError:
    """The error for a GPU that NVML counts but cannot list."""
    fault, reason = _meaning(error)
    return GpuLostError(name, reason, fault)


def _meaning(error: Exception) -> tuple[GpuFault, str]:
    return LOST.get(getattr(error, "value", 0), (GpuFault.UNREADABLE, f"NVML reports: {error}"))


def unavailable(error: pynvml.NVMLError) -> GpusUnavailableError:
    """The error for a session that NVML refused."""
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        mend = (
            "install the NVIDIA driver (in a container: start it with its GPUs) to watch a "
            "GPU, or set gpus: none"
        )
        return GpusUnavailableError(f"libnvidia-ml.so.1 is not on this machine; {mend}", "absent")
    if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return GpusUnavailableError(
            "the NVIDIA kernel driver is not loaded; load it with modprobe nvidia", "absent"
        )
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return GpusUnavailableError(_MISMATCH, "mismatch")
    return GpusUnavailableError(
        f"NVML cannot be opened: {_meaning(error)[1]}; check whether nvidia-smi works", "error"
    )


def no_gpus(count: int, unreadable: Mapping[str, GpuLostError]) -> GpusUnavailableError:
    """The error for a session in which none of the GPUs can be read."""
    if count == 0:
        return GpusUnavailableError(
            "the NVIDIA driver is loaded and lists no GPU; see nvidia-smi -L", "absent"
        )
    why = (
        "; ".join(map(str, unreadable.values()))
        or "this user has no access; see the permissions of /dev/nvidia*"
    )
    return GpusUnavailableError(
        f"NVML counts {count} GPUs and none of them can be read: {why}", "error", unreadable
    )
