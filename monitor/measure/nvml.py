"""One NVML session through the real binding: what the cards say, in our units, and None for what they do not say.

NVML speaks in mW, mJ, ns, bytes and percent (nvml.h); values leave here in W, J, ns, MiB and 0..1. Cards are known by
UUID: their index may change at a reboot. No asyncio and no thread here; every call may block, so gpu.py has a thread.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import pynvml

from monitor.model import GpuReading

MEMORY_TEMP = 82  # field ids (nvml.h); these two are the same in every release
POWER_THROTTLE = 74  # PERF_POLICY_POWER, also called CLOCKS_EVENT_REASON_SW_POWER_CAP: ns
MIB = 1024 * 1024

_MISMATCH = (
    "the NVIDIA driver in the kernel and its library are of different versions (LibRmVersionMismatch),"
    " as after an upgrade without a reboot; reboot, or reload the nvidia kernel modules and restart this program"
)
#: After these a handle is dead and the session must be opened anew (nvml.h, nvmlReturn_t).
_LOST = {
    1: "NVML is not initialised any more, as after a reload of the driver",
    15: "the driver has lost the card; look for Xid 79 in the kernel log (dmesg), then reset the card or reboot",
    16: "the card must be reset before it can be used: nvidia-smi --gpu-reset, or reboot",
    18: _MISMATCH,
}
#: nvmlFieldValue_t.valueType -> the member of the union that holds the value (nvml.h, nvmlValueType_t).
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Support(StrEnum):
    """Whether a card offers a value, as found when it was first asked for."""

    OK = "ok"
    NOT_SUPPORTED = "NotSupported"
    NO_PERMISSION = "NoPermission"
    FUNCTION_NOT_FOUND = "FunctionNotFound"


#: nvmlReturn_t of a call that would say the same next time; 25: a struct version unknown to the driver, 26: deprecated.
_REFUSALS = {
    3: Support.NOT_SUPPORTED,
    4: Support.NO_PERMISSION,
    13: Support.FUNCTION_NOT_FOUND,
    25: Support.FUNCTION_NOT_FOUND,
    26: Support.NOT_SUPPORTED,
}


class NvmlUnavailable(Exception):  # noqa: N818 - a state of the machine, read as a sentence
    """No session can be had; `reason` is for a person. Kind `absent`: there is no NVIDIA driver, or no card, here."""

    def __init__(self, reason: str, kind: Literal["absent", "mismatch", "error"]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class NvmlLost(Exception):  # noqa: N818 - a state of the card, read as a sentence
    """The card's handle is dead: close, open again after a pause, and look for the card by its UUID."""

    def __init__(self, uuid: str, reason: str) -> None:
        super().__init__(f"{uuid}: {reason}")
        self.uuid = uuid
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CardIdentity:
    """What stays the same of a card until someone changes it; None = not offered."""

    uuid: str
    name: str | None = None
    power_limit_w: float | None = None  # enforced: after every limiter, also out-of-band ones
    power_limit_requested_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_mem_clock_mhz: int | None = None
    ecc: bool | None = None  # current mode
    mig: bool | None = None  # current mode
    vram_total_mib: float | None = None
    processes: tuple[tuple[int, float | None], ...] | None = None  # compute: host pid, MiB used (None = hidden)


@dataclass(frozen=True, slots=True)
class NvmlIdentity:
    """Versions and cards of this machine; CUDA as people write it, for example 13.0."""

    driver_version: str | None
    cuda_driver_version: str | None
    cards: tuple[CardIdentity, ...]


@dataclass(frozen=True, slots=True)
class ThrottleFields:
    """Field ids of the counters of time throttled, all in ns; those of one tuple are added up."""

    thermal: tuple[int, ...]
    brake: tuple[int, ...]


def throttle_fields(driver_version: str | None) -> ThrottleFields:
    """The ids that this driver uses. They moved between releases, and a wrong one reads a foreign number, so the binding's
    constants are no guide: they know one release (nvml.h 12.9 has 251.., 13.5 has 269.. and power smoothing at 251)."""
    version = tuple(int(part) for part in re.findall(r"\d+", driver_version or ""))
    if version >= (580, 82):
        return ThrottleFields(thermal=(269, 270), brake=(271,))
    if version >= (575,):
        return ThrottleFields(thermal=(251, 252), brake=(253,))
    return ThrottleFields(thermal=(75,), brake=())  # PERF_POLICY_THERMAL, in every release


@dataclass(slots=True)
class _Card:
    uuid: str
    handle: Any
    name: str | None
    support: dict[str, Support] = field(default_factory=dict)


class Nvml:
    """A session: `open`, then `read` and `identity` as often as wanted, `close`. Keep one per process: NVML counts its
    users, and only after the last one has closed does opening it start afresh."""

    def __init__(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._throttle = throttle_fields(None)
        self._opened = False
        #: Cards that NVML counts and cannot list, lost ones for example: "card 1" -> the reason.
        self.unreadable: dict[str, str] = {}

    @property
    def uuids(self) -> tuple[str, ...]:
        """The cards of this session, in NVML's order."""
        return tuple(self._cards)

    def support(self, uuid: str) -> Mapping[str, Support]:
        """What the card offers, by NVML function (with its arguments) or field, as far as it has been asked for."""
        return dict(self._card(uuid).support)

    def open(self) -> None:
        """Initialise NVML and list the cards. Raises NvmlUnavailable."""
        try:
            pynvml.nvmlInit()
            self._opened = True
            self._throttle = throttle_fields(_said(pynvml.nvmlSystemGetDriverVersion))
            self._list_cards()
        except pynvml.NVMLError as error:
            self.close()
            raise _unavailable(error) from error

    def _list_cards(self) -> None:
        count, self.unreadable = pynvml.nvmlDeviceGetCount(), {}
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = pynvml.nvmlDeviceGetUUID(handle)
            except (pynvml.NVMLError, UnicodeDecodeError) as error:
                if getattr(error, "value", None) != pynvml.NVML_ERROR_NO_PERMISSION:  # counted, but not ours (nvml.h)
                    self.unreadable[f"card {index}"] = _words(error)
            else:
                self._cards[uuid] = _Card(uuid, handle, _said(pynvml.nvmlDeviceGetName, handle))
        if not self._cards:
            self.close()
            raise _no_cards(count, self.unreadable)

    def close(self) -> None:
        """End the session; never raises, whatever has become of the driver."""
        self._cards = {}
        if self._opened:
            self._opened = False
            with contextlib.suppress(pynvml.NVMLError):  # the driver is gone: there is nothing to give back
                pynvml.nvmlShutdown()

    def read(self, uuid: str, at: datetime, monotonic_ns: int) -> GpuReading:
        """Look at one card now; `at` and `monotonic_ns` are when this call begins. Raises NvmlLost."""
        card, ids = self._card(uuid), self._throttle
        values = self._fields(card, MEMORY_TEMP, POWER_THROTTLE, *ids.thermal, *ids.brake)
        memory, utilisation = self._memory(card), self._ask(card, "nvmlDeviceGetUtilizationRates")
        reasons = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        return GpuReading(
            at=at,
            monotonic_ns=monotonic_ns,
            uuid=uuid,
            name=card.name,
            temp_c=self._temperature(card),
            mem_temp_c=_scaled(values.get(MEMORY_TEMP)),
            margin_c=_scaled(self._ask(card, "nvmlDeviceGetMarginTemperature")),
            sm_clock_mhz=_scaled(self._ask(card, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
            mem_clock_mhz=_scaled(self._ask(card, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
            util=None if utilisation is None else utilisation.gpu / 100,
            power_w=_scaled(self._ask(card, "nvmlDeviceGetPowerUsage"), 1000),
            power_limit_w=_scaled(self._ask(card, "nvmlDeviceGetEnforcedPowerLimit"), 1000),
            energy_j=_scaled(self._ask(card, "nvmlDeviceGetTotalEnergyConsumption"), 1000),
            vram_used_mib=None if memory is None else memory.used / MIB,
            event_reasons=self._either(card, *reasons),
            throttle_thermal_ns=_total(card, values, ids.thermal),
            throttle_power_ns=_total(card, values, (POWER_THROTTLE,)),
            throttle_brake_ns=_total(card, values, ids.brake),
        )

    def identity(self) -> NvmlIdentity:
        """Versions and cards. A card that is lost is left out; a value that cannot be read is None."""
        cuda = _said(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return NvmlIdentity(
            driver_version=_said(pynvml.nvmlSystemGetDriverVersion),
            cuda_driver_version=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            cards=tuple(found for card in self._cards.values() if (found := self._card_identity(card)) is not None),
        )

    def _card_identity(self, card: _Card) -> CardIdentity | None:
        try:
            ecc, mig = self._ask(card, "nvmlDeviceGetEccMode"), self._ask(card, "nvmlDeviceGetMigMode")
            memory = self._memory(card)
            return CardIdentity(
                uuid=card.uuid,
                name=card.name,
                power_limit_w=_scaled(self._ask(card, "nvmlDeviceGetEnforcedPowerLimit"), 1000),
                power_limit_requested_w=_scaled(self._ask(card, "nvmlDeviceGetPowerManagementLimit"), 1000),
                max_sm_clock_mhz=self._ask(card, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
                max_mem_clock_mhz=self._ask(card, "nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM),
                ecc=None if ecc is None else bool(ecc[0]),
                mig=None if mig is None else bool(mig[0]),
                vram_total_mib=None if memory is None else memory.total / MIB,
                processes=self._processes(card),
            )
        except NvmlLost:
            return None

    def _card(self, uuid: str) -> _Card:
        if uuid not in self._cards:
            raise NvmlLost(uuid, "the driver does not list this card; `nvidia-smi -L` shows those that it does")
        return self._cards[uuid]

    def _ask(self, card: _Card, function: str, *arguments: Any, key: str = "") -> Any:
        """What a getter says, or None. Refused at the first call, it is not asked again; once it has worked, always."""
        key = key or f"{function}({', '.join(map(str, arguments))})"
        if card.support.get(key, Support.OK) is not Support.OK:
            return None
        call = getattr(pynvml, function, None)  # an older binding lacks the newer names, a later one the deprecated
        if call is None:
            return _refused(card, key, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            value = call(card.handle, *arguments)
        except pynvml.NVMLError as error:
            return _refused(card, key, error.value)
        card.support[key] = Support.OK
        return value

    def _either(self, card: _Card, function: str, older: str, *arguments: Any) -> Any:
        value = self._ask(card, function, *arguments)
        return self._ask(card, older, *arguments) if value is None else value

    def _temperature(self, card: _Card) -> float | None:
        functions = "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"
        value = self._either(card, *functions, pynvml.NVML_TEMPERATURE_GPU)
        # The older call is unsigned: -5 degrees arrive as 4294967291.
        return None if value is None else float(value - 2**32 if value >= 2**31 else value)

    def _memory(self, card: _Card) -> Any:
        """Version 2 first: there `used` is without what the driver reserves for itself."""
        memory = self._ask(card, "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        return self._ask(card, "nvmlDeviceGetMemoryInfo") if memory is None else memory

    def _processes(self, card: _Card) -> tuple[tuple[int, float | None], ...] | None:
        """By the versioned calls, as the plain name raises errors outside NVMLError. And _v2 first: under the name _v3
        drivers 535.43 to 535.86 write longer entries, which read as false pids (XuehaiPan/nvitop#79)."""
        functions = "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"
        found: Sequence[Any] | None = self._either(card, *functions)
        return None if found is None else tuple((p.pid, _scaled(p.usedGpuMemory, MIB)) for p in found)

    def _fields(self, card: _Card, *ids: int) -> dict[int, float]:
        """Field values by id. The call succeeds if any field does, and one that failed reads 0: left out here."""
        wanted = [i for i in ids if card.support.get(f"field {i}", Support.OK) is Support.OK]
        elements = self._ask(card, "nvmlDeviceGetFieldValues", wanted, key="fields") if wanted else None
        values: dict[int, float] = {}
        for number, element in zip(wanted, elements or (), strict=False):
            if element.nvmlReturn != pynvml.NVML_SUCCESS:
                _refused(card, f"field {number}", element.nvmlReturn)
            elif element.valueType < len(_MEMBERS):
                card.support[f"field {number}"] = Support.OK
                values[number] = getattr(element.value, _MEMBERS[element.valueType])
        return values


def _refused(card: _Card, key: str, code: int) -> None:
    if code in _LOST:
        raise NvmlLost(card.uuid, _LOST[code])
    if code in _REFUSALS:
        card.support.setdefault(key, _REFUSALS[code])


def _total(card: _Card, values: Mapping[int, float], ids: Sequence[int]) -> int | None:
    """The sum over the counters that this card has; one that fails after it has worked makes it unknown, not smaller."""
    offered = [i for i in ids if card.support.get(f"field {i}") is Support.OK]
    return sum(int(values[i]) for i in offered) if offered and all(i in values for i in offered) else None


def _scaled(value: float | None, divisor: float = 1) -> float | None:
    return None if value is None else value / divisor


def _said(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call says, or None: it may be refused, or answer with bytes that are no UTF-8."""
    try:
        return call(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _words(error: Exception) -> str:
    return _LOST.get(getattr(error, "value", 0), f"NVML says: {error}")


def _unavailable(error: Any) -> NvmlUnavailable:
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        mend = "install the NVIDIA driver (in a container: start it with its GPUs) to watch a GPU, or set gpus: none"
        return NvmlUnavailable(f"libnvidia-ml.so.1 is not on this machine; {mend}", "absent")
    if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return NvmlUnavailable("the NVIDIA kernel driver is not loaded; load it with modprobe nvidia", "absent")
    if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return NvmlUnavailable(_MISMATCH, "mismatch")
    return NvmlUnavailable(f"NVML cannot be opened: {_words(error)}; see whether nvidia-smi works", "error")


def _no_cards(count: int, unreadable: Mapping[str, str]) -> NvmlUnavailable:
    if count == 0:
        return NvmlUnavailable("the NVIDIA driver is loaded and shows no card; see nvidia-smi -L", "absent")
    why = "; ".join(f"{card}: {reason}" for card, reason in unreadable.items()) or "this user may read none; see the rights on /dev/nvidia*"
    return NvmlUnavailable(f"NVML counts {count} cards and none can be read: {why}", "error")
