"""One GPU of an NVML session: queries it, and remembers which queries it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from monitor.measure.gpu.nvml_codes import LOST, REFUSALS, QuerySupport
from monitor.measure.gpu.session import GpuLostError

MIB = 1024 * 1024
#: nvmlFieldValue_t.valueType -> the member of the union that holds the value (nvml.h,
#: nvmlValueType_t).
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(slots=True)
class NvmlDevice:
    """A GPU's handle. Values are in NVML's units, and of the types of the binding (`Any`: it has
    none of its own). Every query may raise GpuLostError.

    `support`: whether the GPU offers a value, by NVML function (with its arguments) or field, as
    far as it has been queried. `answers`: the last answer to each query; None: refused.
    """

    uuid: str
    handle: Any
    name: str | None
    index: int  # as nvidia-smi counts: it may change at a reboot
    support: dict[str, QuerySupport] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)

    def ask(self, function: str, *arguments: Any, key: str = "") -> Any:
        """The result of a getter, or None. One that is refused at its first call is not called
        again; one that has worked once is always called.
        """
        key = key or f"{function}({', '.join(map(str, arguments))})"
        if self.support.get(key, QuerySupport.OK) is not QuerySupport.OK:
            return None
        self.answers[key] = None
        # An older binding lacks the newer names, a later one the deprecated.
        call = getattr(pynvml, function, None)
        if call is None:
            return self._refused(key, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            value = call(self.handle, *arguments)
        except pynvml.NVMLError as error:
            return self._refused(key, error.value)
        self.support[key], self.answers[key] = QuerySupport.OK, value
        return value

    def either(self, function: str, older: str, *arguments: Any) -> Any:
        """The result of a getter, or else of its older version."""
        value = self.ask(function, *arguments)
        return self.ask(older, *arguments) if value is None else value

    def temperature(self) -> float | None:
        """The temperature of the core in °C."""
        functions = "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"
        value = self.either(*functions, pynvml.NVML_TEMPERATURE_GPU)
        # The older call is unsigned: -5 degrees arrive as 4294967291.
        return None if value is None else float(value - 2**32 if value >= 2**31 else value)

    def memory(self) -> Any:
        """Memory info. Version 2 first: its `used` excludes what the driver reserves for itself."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        return self.ask("nvmlDeviceGetMemoryInfo") if memory is None else memory

    def processes(self) -> tuple[tuple[int, float | None], ...] | None:
        """Compute processes: pid and MiB. By the versioned calls, as the plain name raises errors
        outside NVMLError. _v2 comes first: under the name _v3 drivers 535.43 to 535.86 write longer
        entries, which read as false pids (XuehaiPan/nvitop#79).
        """
        functions = (
            "nvmlDeviceGetComputeRunningProcesses_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
        )
        found: Sequence[Any] | None = self.either(*functions)
        if found is None:
            return None
        return tuple((process.pid, scaled(process.usedGpuMemory, MIB)) for process in found)

    def fields(self, *ids: int) -> dict[int, float]:
        """Field values by id. The call succeeds if any field does, and one that failed reads 0:
        those are left out.
        """
        wanted = [
            i for i in ids if self.support.get(f"field {i}", QuerySupport.OK) is QuerySupport.OK
        ]
        elements = self.ask("nvmlDeviceGetFieldValues", wanted, key="fields") if wanted else None
        values: dict[int, float] = {}
        for number, element in zip(wanted, elements or (), strict=False):
            key = f"field {number}"
            self.answers[key] = None
            if element.nvmlReturn != pynvml.NVML_SUCCESS:
                self._refused(key, element.nvmlReturn)
            elif element.valueType < len(_MEMBERS):
                self.support[key] = QuerySupport.OK
                values[number] = getattr(element.value, _MEMBERS[element.valueType])
                self.answers[key] = values[number]
        return values

    def total(self, values: Mapping[int, float], ids: Sequence[int]) -> int | None:
        """The sum over the counters that this GPU has; one that fails after it has worked makes it
        unknown, not smaller.
        """
        offered = [i for i in ids if self.support.get(f"field {i}") is QuerySupport.OK]
        known = bool(offered) and all(i in values for i in offered)
        return sum(int(values[i]) for i in offered) if known else None

    def _refused(self, key: str, code: int) -> None:
        if code in LOST:
            fault, reason = LOST[code]
            raise GpuLostError(self.uuid, reason, fault)
        if code in REFUSALS:
            self.support.setdefault(key, REFUSALS[code])


def scaled(value: float | None, divisor: float = 1) -> float | None:
    """A value in another unit; unknown stays unknown."""
    return None if value is None else value / divisor


def result(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, or None: it may be refused, or return bytes that are not UTF-8."""
    try:
        return call(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None
