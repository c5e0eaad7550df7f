"""XIDs, the faults that the driver reports, from NVML's event set: registered when a session opens,
read without waiting.

An event has the GPU's handle and the XID, and no time (nvml.h, nvmlEventData_t). A failure here
costs events and nothing else: whether a GPU is lost shows in its readings.
"""

from __future__ import annotations

import ctypes
from datetime import datetime
from typing import Any

import pynvml

from monitor.model import GpuEvent

XID = 0x8  # nvmlEventTypeXidCriticalError
AT_ONCE = 64  # events per call; a storm of application faults must not delay the readings
NO_WAIT_MS = 0


class XidEvents:
    """The event set of one session."""

    def __init__(self) -> None:
        self._set: Any = None
        self._gpus: dict[int | None, str] = {}  # address of the handle -> UUID

    def register(self, uuid: str, handle: Any) -> bool:
        """Registers for a GPU's XIDs; False where it does not offer them."""
        try:
            if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & XID:
                return False
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, XID, self._set)
        except pynvml.NVMLError:
            return False
        self._gpus[_address(handle)] = uuid
        return True

    def take(self, at: datetime) -> list[GpuEvent]:
        """Returns the events since the last call."""
        taken: list[GpuEvent] = []
        while self._gpus and len(taken) < AT_ONCE:
            try:
                event = _wait(self._set)
            except pynvml.NVMLError:  # a time-out: no more events; any other: none can be read
                break
            uuid = self._gpus.get(_address(event.device))
            if uuid is not None and event.eventType & XID:
                taken.append(GpuEvent(uuid, at, int(event.eventData)))
        return taken

    def close(self) -> None:
        """Frees the set."""
        events, self._set, self._gpus = self._set, None, {}
        if events is not None:
            try:
                pynvml.nvmlEventSetFree(events)
            except pynvml.NVMLError:
                return  # the driver is gone, and the set with it


def _wait(events: Any) -> Any:
    """The next event. A driver before 450 has only the first version of the call, which fills the
    first part of the same struct.
    """
    try:
        return pynvml.nvmlEventSetWait_v2(events, NO_WAIT_MS)
    except pynvml.NVMLError_FunctionNotFound:
        event = pynvml.c_nvmlEventData_t()
        try:
            code = pynvml.nvmlLib.nvmlEventSetWait(
                events, ctypes.byref(event), ctypes.c_uint(NO_WAIT_MS)
            )
        except AttributeError:  # not even that
            code = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code) from None
        return event


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
