"""An NVML session through the real binding: readings in our units, and None for every value that a
GPU does not offer.

NVML uses mW, mJ, ns, bytes and percent (nvml.h); readings are in W, J, ns, MiB and 0..1. GPUs are
identified by UUID: their index may change at a reboot. No asyncio and no thread here; every call
may block, so that watch.py calls from a thread of its own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pynvml

from monitor.measure.gpu.nvml_codes import QuerySupport, no_gpus, unavailable, unlisted
from monitor.measure.gpu.nvml_device import MIB, NvmlDevice, result, scaled
from monitor.measure.gpu.nvml_events import XidEvents
from monitor.measure.gpu.session import GpuIdentity, GpuLostError, GpusIdentity
from monitor.model import GpuEvent, GpuFault, GpuReading

MEMORY_TEMP = 82  # field ids (nvml.h); these two are the same in every release
POWER_THROTTLE = 74  # PERF_POLICY_POWER, also called CLOCKS_EVENT_REASON_SW_POWER_CAP: ns


@dataclass(frozen=True, slots=True)
class ThrottleFields:
    """Field ids of the counters of throttled time, all in ns; those of one tuple are summed."""

    thermal: tuple[int, ...]
    brake: tuple[int, ...]


def throttle_fields(driver_version: str | None) -> ThrottleFields:
    """The ids that this driver uses. They moved between releases, and a wrong id reads another
    counter. The binding's constants do not help: they are those of one release (nvml.h 12.9 has
    251.., 13.5 has 269.. and power smoothing at 251).
    """
    version = tuple(int(part) for part in re.findall(r"\d+", driver_version or ""))
    if version >= (580, 82):
        return ThrottleFields(thermal=(269, 270), brake=(271,))
    if version >= (575,):
        return ThrottleFields(thermal=(251, 252), brake=(253,))
    return ThrottleFields(thermal=(75,), brake=())  # PERF_POLICY_THERMAL, in every release


class Nvml:
    """A session: `open`, any number of `read` and `identity`, `close`. Keep one per process: NVML
    counts its users, and restarts only after the last one has closed.
    """

    def __init__(self) -> None:
        self._devices: dict[str, NvmlDevice] = {}
        self._throttle = throttle_fields(None)
        self._events = XidEvents()
        self._opened = False
        #: GPUs that NVML counts but cannot list, for example lost ones: "GPU 1" -> reason.
        self.unreadable: dict[str, GpuLostError] = {}

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs of this session, in NVML's order."""
        return tuple(self._devices)

    def support(self, uuid: str) -> Mapping[str, QuerySupport]:
        """The values that the GPU offers, by NVML function (with its arguments) or field, as far as
        it has been queried.
        """
        return dict(self._device(uuid).support)

    def answers(self, uuid: str) -> Mapping[str, Any]:
        """Every query to the GPU with its last answer in NVML's own units; None where it was
        refused.
        """
        return dict(self._device(uuid).answers)

    @property
    def throttle(self) -> ThrottleFields:
        """The counters that are read with this driver."""
        return self._throttle

    def open(self) -> None:
        """Initialises NVML and lists the GPUs. Raises GpusUnavailableError."""
        try:
            pynvml.nvmlInit()
            self._opened = True
            self._throttle = throttle_fields(result(pynvml.nvmlSystemGetDriverVersion))
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
                # NO_PERMISSION: counted, but not ours (nvml.h)
                if getattr(error, "value", None) != pynvml.NVML_ERROR_NO_PERMISSION:
                    self.unreadable[f"GPU {index}"] = unlisted(f"GPU {index}", error)
            else:
                name = result(pynvml.nvmlDeviceGetName, handle)
                self._devices[uuid] = device = NvmlDevice(uuid, handle, name, index)
                has_events = self._events.register(uuid, handle)
                device.support["events"] = (
                    QuerySupport.OK if has_events else QuerySupport.NOT_SUPPORTED
                )
        if not self._devices:
            self.close()
            raise no_gpus(count, self.unreadable)

    def close(self) -> None:
        """Ends the session; never raises, whatever the state of the driver."""
        self._devices = {}
        if self._opened:
            self._opened = False
            self._events.close()
            # Without a driver there is nothing to shut down.
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def read(self, uuid: str, at: datetime, monotonic_ns: int) -> GpuReading:
        """Reads one GPU now; `at` and `monotonic_ns` are the start of this call. Raises
        GpuLostError.
        """
        gpu, ids = self._device(uuid), self._throttle
        values = gpu.fields(MEMORY_TEMP, POWER_THROTTLE, *ids.thermal, *ids.brake)
        memory, utilisation = gpu.memory(), gpu.ask("nvmlDeviceGetUtilizationRates")
        reasons = (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        return GpuReading(
            at=at,
            monotonic_ns=monotonic_ns,
            uuid=uuid,
            name=gpu.name,
            temp_c=gpu.temperature(),
            mem_temp_c=scaled(values.get(MEMORY_TEMP)),
            margin_c=scaled(gpu.ask("nvmlDeviceGetMarginTemperature")),
            sm_clock_mhz=scaled(gpu.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
            mem_clock_mhz=scaled(gpu.ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
            util=None if utilisation is None else utilisation.gpu / 100,
            power_w=scaled(gpu.ask("nvmlDeviceGetPowerUsage"), 1000),
            power_limit_w=scaled(gpu.ask("nvmlDeviceGetEnforcedPowerLimit"), 1000),
            energy_j=scaled(gpu.ask("nvmlDeviceGetTotalEnergyConsumption"), 1000),
            vram_used_mib=None if memory is None else memory.used / MIB,
            event_reasons=gpu.either(*reasons),
            throttle_thermal_ns=gpu.total(values, ids.thermal),
            throttle_power_ns=gpu.total(values, (POWER_THROTTLE,)),
            throttle_brake_ns=gpu.total(values, ids.brake),
        )

    def events(self, at: datetime) -> list[GpuEvent]:
        """XIDs that the driver has reported since the last call; never raises, never waits."""
        return self._events.take(at)

    def ask(self, uuid: str, function: str, *arguments: Any) -> Any:
        """The result of any getter of the binding, or None. Raises GpuLostError."""
        return self._device(uuid).ask(function, *arguments)

    def ask_fields(self, uuid: str, *ids: int) -> dict[int, float]:
        """Values of any fields of a GPU, in NVML's units; refused ones are left out. Raises
        GpuLostError.
        """
        return self._device(uuid).fields(*ids)

    def identity(self) -> GpusIdentity:
        """Versions and GPUs. A GPU that is lost is left out; a value that cannot be read is
        None.
        """
        cuda = result(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        gpus = [_identity(device) for device in self._devices.values()]
        return GpusIdentity(
            driver_version=result(pynvml.nvmlSystemGetDriverVersion),
            cuda_driver_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(gpu for gpu in gpus if gpu is not None),
        )

    def _device(self, uuid: str) -> NvmlDevice:
        if uuid not in self._devices:
            reason = "the driver does not list this GPU; `nvidia-smi -L` shows those that it does"
            raise GpuLostError(uuid, reason, GpuFault.MISSING)
        return self._devices[uuid]


def _identity(gpu: NvmlDevice) -> GpuIdentity | None:
    requested = "nvmlDeviceGetPowerManagementLimit"
    try:
        ecc, mig = gpu.ask("nvmlDeviceGetEccMode"), gpu.ask("nvmlDeviceGetMigMode")
        memory = gpu.memory()
        return GpuIdentity(
            uuid=gpu.uuid,
            name=gpu.name,
            index=gpu.index,
            power_limit_w=scaled(gpu.ask("nvmlDeviceGetEnforcedPowerLimit"), 1000),
            power_limit_requested_w=scaled(gpu.ask(requested), 1000),
            max_sm_clock_mhz=gpu.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
            max_mem_clock_mhz=gpu.ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            vram_total_mib=None if memory is None else memory.total / MIB,
            processes=gpu.processes(),
        )
    except GpuLostError:
        return None
