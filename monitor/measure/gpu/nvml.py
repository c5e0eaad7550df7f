"""One NVML session through the real binding: what the GPUs say, in our units, and None for what
they do not say.

NVML speaks in mW, mJ, ns, bytes and percent (nvml.h); values leave here in W, J, ns, MiB and 0..1.
GPUs are known by UUID: their index may change at a reboot. No asyncio and no thread here; every
call may block, so gpu.py has a thread.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pynvml

from monitor.measure.gpu.nvml_codes import LOST, REFUSALS, Support, no_gpus, unavailable, unlisted
from monitor.measure.gpu.nvml_events import XidEvents
from monitor.measure.gpu.session import GpuIdentity, GpuLostError, GpusIdentity
from monitor.model import GpuEvent, GpuFault, GpuReading

MEMORY_TEMP = 82  # field ids (nvml.h); these two are the same in every release
POWER_THROTTLE = 74  # PERF_POLICY_POWER, also called CLOCKS_EVENT_REASON_SW_POWER_CAP: ns
MIB = 1024 * 1024

#: nvmlFieldValue_t.valueType -> the member of the union that holds the value (nvml.h,
#: nvmlValueType_t).
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


@dataclass(frozen=True, slots=True)
class ThrottleFields:
    """Field ids of the counters of time throttled, all in ns; those of one tuple are added up."""

    thermal: tuple[int, ...]
    brake: tuple[int, ...]


def throttle_fields(driver_version: str | None) -> ThrottleFields:
    """The ids that this driver uses. They moved between releases, and a wrong one reads a foreign
    number, so the binding's constants are no guide: they know one release (nvml.h 12.9 has 251..,
    13.5 has 269.. and power smoothing at 251).
    """
    version = tuple(int(part) for part in re.findall(r"\d+", driver_version or ""))
    if version >= (580, 82):
        return ThrottleFields(thermal=(269, 270), brake=(271,))
    if version >= (575,):
        return ThrottleFields(thermal=(251, 252), brake=(253,))
    return ThrottleFields(thermal=(75,), brake=())  # PERF_POLICY_THERMAL, in every release


@dataclass(slots=True)
class _Gpu:
    uuid: str
    handle: Any
    name: str | None
    support: dict[str, Support] = field(default_factory=dict)
    said: dict[str, Any] = field(
        default_factory=dict
    )  # question -> the last answer as NVML gave it; None: refused


class Nvml:
    """A session: `open`, then `read` and `identity` as often as wanted, `close`. Keep one per
    process: NVML counts its users, and only after the last one has closed does opening it start
    afresh.
    """

    def __init__(self) -> None:
        self._gpus: dict[str, _Gpu] = {}
        self._throttle = throttle_fields(None)
        self._events = XidEvents()
        self._opened = False
        #: GPUs that NVML counts and cannot list, lost ones for example: "GPU 1" -> why.
        self.unreadable: dict[str, GpuLostError] = {}

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs of this session, in NVML's order."""
        return tuple(self._gpus)

    def support(self, uuid: str) -> Mapping[str, Support]:
        """What the GPU offers, by NVML function (with its arguments) or field, as far as it has
        been asked for.
        """
        return dict(self._gpu(uuid).support)

    def said(self, uuid: str) -> Mapping[str, Any]:
        """Every question that the GPU has been asked, with its last answer in NVML's own units;
        None where it was refused.
        """
        return dict(self._gpu(uuid).said)

    @property
    def throttle(self) -> ThrottleFields:
        """The counters that are read with this driver."""
        return self._throttle

    def open(self) -> None:
        """Initialise NVML and list the GPUs. Raises GpusUnavailableError."""
        try:
            pynvml.nvmlInit()
            self._opened = True
            self._throttle = throttle_fields(_said(pynvml.nvmlSystemGetDriverVersion))
            self._list_gpus()
        except pynvml.NVMLError as error:
            self.close()
            raise unavailable(error) from error

    def _list_gpus(self) -> None:
        count, self.unreadable = pynvml.nvmlDeviceGetCount(), {}
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
            except (pynvml.NVMLError, UnicodeDecodeError) as error:
                if (
                    getattr(error, "value", None) != pynvml.NVML_ERROR_NO_PERMISSION
                ):  # counted, but not ours (nvml.h)
                    self.unreadable[f"GPU {index}"] = unlisted(f"GPU {index}", error)
            else:
                self._gpus[uuid] = gpu = _Gpu(uuid, handle, _said(pynvml.nvmlDeviceGetName, handle))
                gpu.support["events"] = (
                    Support.OK if self._events.register(uuid, handle) else Support.NOT_SUPPORTED
                )
        if not self._gpus:
            self.close()
            raise no_gpus(count, self.unreadable)

    def close(self) -> None:
        """End the session; never raises, whatever has become of the driver."""
        self._gpus = {}
        if self._opened:
            self._opened = False
            self._events.close()
            with contextlib.suppress(
                pynvml.NVMLError
            ):  # the driver is gone: there is nothing to give back
                pynvml.nvmlShutdown()

    def read(self, uuid: str, at: datetime, monotonic_ns: int) -> GpuReading:
        """Look at one GPU now; `at` and `monotonic_ns` are when this call begins. Raises
        GpuLostError.
        """
        gpu, ids = self._gpu(uuid), self._throttle
        values = self._fields(gpu, MEMORY_TEMP, POWER_THROTTLE, *ids.thermal, *ids.brake)
        memory, utilisation = self._memory(gpu), self._ask(gpu, "nvmlDeviceGetUtilizationRates")
        reasons = (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        return GpuReading(
            at=at,
            monotonic_ns=monotonic_ns,
            uuid=uuid,
            name=gpu.name,
            temp_c=self._temperature(gpu),
            mem_temp_c=_scaled(values.get(MEMORY_TEMP)),
            margin_c=_scaled(self._ask(gpu, "nvmlDeviceGetMarginTemperature")),
            sm_clock_mhz=_scaled(self._ask(gpu, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
            mem_clock_mhz=_scaled(self._ask(gpu, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
            util=None if utilisation is None else utilisation.gpu / 100,
            power_w=_scaled(self._ask(gpu, "nvmlDeviceGetPowerUsage"), 1000),
            power_limit_w=_scaled(self._ask(gpu, "nvmlDeviceGetEnforcedPowerLimit"), 1000),
            energy_j=_scaled(self._ask(gpu, "nvmlDeviceGetTotalEnergyConsumption"), 1000),
            vram_used_mib=None if memory is None else memory.used / MIB,
            event_reasons=self._either(gpu, *reasons),
            throttle_thermal_ns=_total(gpu, values, ids.thermal),
            throttle_power_ns=_total(gpu, values, (POWER_THROTTLE,)),
            throttle_brake_ns=_total(gpu, values, ids.brake),
        )

    def events(self, at: datetime) -> list[GpuEvent]:
        """XIDs that the driver has reported since the last call; never raises, never waits."""
        return self._events.take(at)

    def ask(self, uuid: str, function: str, *arguments: Any) -> Any:
        """What any getter of the binding says of a GPU, or None. Raises GpuLostError."""
        return self._ask(self._gpu(uuid), function, *arguments)

    def ask_fields(self, uuid: str, *ids: int) -> dict[int, float]:
        """Values of any fields of a GPU, in NVML's units; refused ones are left out. Raises
        GpuLostError.
        """
        return self._fields(self._gpu(uuid), *ids)

    def identity(self) -> GpusIdentity:
        """Versions and GPUs. A GPU that is lost is left out; a value that cannot be read is
        None.
        """
        cuda = _said(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return GpusIdentity(
            driver_version=_said(pynvml.nvmlSystemGetDriverVersion),
            cuda_driver_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(
                found
                for gpu in self._gpus.values()
                if (found := self._gpu_identity(gpu)) is not None
            ),
        )

    def _gpu_identity(self, gpu: _Gpu) -> GpuIdentity | None:
        try:
            ecc, mig = (
                self._ask(gpu, "nvmlDeviceGetEccMode"),
                self._ask(gpu, "nvmlDeviceGetMigMode"),
            )
            memory = self._memory(gpu)
            return GpuIdentity(
                uuid=gpu.uuid,
                name=gpu.name,
                power_limit_w=_scaled(self._ask(gpu, "nvmlDeviceGetEnforcedPowerLimit"), 1000),
                power_limit_requested_w=_scaled(
                    self._ask(gpu, "nvmlDeviceGetPowerManagementLimit"), 1000
                ),
                max_sm_clock_mhz=self._ask(gpu, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
                max_mem_clock_mhz=self._ask(
                    gpu, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM
                ),
                ecc=None if ecc is None else bool(ecc[0]),
                mig=None if mig is None else bool(mig[0]),
                vram_total_mib=None if memory is None else memory.total / MIB,
                processes=self._processes(gpu),
            )
        except GpuLostError:
            return None

    def _gpu(self, uuid: str) -> _Gpu:
        if uuid not in self._gpus:
            reason = "the driver does not list this GPU; `nvidia-smi -L` shows those that it does"
            raise GpuLostError(uuid, reason, GpuFault.MISSING)
        return self._gpus[uuid]

    def _ask(self, gpu: _Gpu, function: str, *arguments: Any, key: str = "") -> Any:
        """What a getter says, or None. Refused at the first call, it is not asked again; once it
        has worked, always.
        """
        key = key or f"{function}({', '.join(map(str, arguments))})"
        if gpu.support.get(key, Support.OK) is not Support.OK:
            return None
        gpu.said[key] = None
        call = getattr(
            pynvml, function, None
        )  # an older binding lacks the newer names, a later one the deprecated
        if call is None:
            return _refused(gpu, key, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            value = call(gpu.handle, *arguments)
        except pynvml.NVMLError as error:
            return _refused(gpu, key, error.value)
        gpu.support[key], gpu.said[key] = Support.OK, value
        return value

    def _either(self, gpu: _Gpu, function: str, older: str, *arguments: Any) -> Any:
        value = self._ask(gpu, function, *arguments)
        return self._ask(gpu, older, *arguments) if value is None else value

    def _temperature(self, gpu: _Gpu) -> float | None:
        functions = "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"
        value = self._either(gpu, *functions, pynvml.NVML_TEMPERATURE_GPU)
        # The older call is unsigned: -5 degrees arrive as 4294967291.
        return None if value is None else float(value - 2**32 if value >= 2**31 else value)

    def _memory(self, gpu: _Gpu) -> Any:
        """Version 2 first: there `used` is without what the driver reserves for itself."""
        memory = self._ask(gpu, "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        return self._ask(gpu, "nvmlDeviceGetMemoryInfo") if memory is None else memory

    def _processes(self, gpu: _Gpu) -> tuple[tuple[int, float | None], ...] | None:
        """By the versioned calls, as the plain name raises errors outside NVMLError. And _v2 first:
        under the name _v3 drivers 535.43 to 535.86 write longer entries, which read as false pids
        (XuehaiPan/nvitop#79).
        """
        functions = (
            "nvmlDeviceGetComputeRunningProcesses_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
        )
        found: Sequence[Any] | None = self._either(gpu, *functions)
        return (
            None if found is None else tuple((p.pid, _scaled(p.usedGpuMemory, MIB)) for p in found)
        )

    def _fields(self, gpu: _Gpu, *ids: int) -> dict[int, float]:
        """Field values by id. The call succeeds if any field does, and one that failed reads 0:
        left out here.
        """
        wanted = [i for i in ids if gpu.support.get(f"field {i}", Support.OK) is Support.OK]
        elements = (
            self._ask(gpu, "nvmlDeviceGetFieldValues", wanted, key="fields") if wanted else None
        )
        values: dict[int, float] = {}
        for number, element in zip(wanted, elements or (), strict=False):
            gpu.said[f"field {number}"] = None
            if element.nvmlReturn != pynvml.NVML_SUCCESS:
                _refused(gpu, f"field {number}", element.nvmlReturn)
            elif element.valueType < len(_MEMBERS):
                gpu.support[f"field {number}"] = Support.OK
                values[number] = gpu.said[f"field {number}"] = getattr(
                    element.value, _MEMBERS[element.valueType]
                )
        return values


def _refused(gpu: _Gpu, key: str, code: int) -> None:
    if code in LOST:
        fault, reason = LOST[code]
        raise GpuLostError(gpu.uuid, reason, fault)
    if code in REFUSALS:
        gpu.support.setdefault(key, REFUSALS[code])


def _total(gpu: _Gpu, values: Mapping[int, float], ids: Sequence[int]) -> int | None:
    """The sum over the counters that this GPU has; one that fails after it has worked makes it
    unknown, not smaller.
    """
    offered = [i for i in ids if gpu.support.get(f"field {i}") is Support.OK]
    return (
        sum(int(values[i]) for i in offered)
        if offered and all(i in values for i in offered)
        else None
    )


def _scaled(value: float | None, divisor: float = 1) -> float | None:
    return None if value is None else value / divisor


def _said(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call says, or None: it may be refused, or answer with bytes that are no UTF-8."""
    try:
        return call(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None
