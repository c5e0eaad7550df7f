"""A report that a user can send: what NVML offers on this machine, question by question, so that a
GPU we never saw can be supported.

It names no host, no user, no process and no serial number; a UUID becomes a short hash, the same in
every report of that GPU.
"""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import pynvml

from monitor.__about__ import __version__
from monitor.measure.gpu.nvml import MEMORY_TEMP, POWER_THROTTLE, Nvml
from monitor.measure.gpu.nvml_codes import Support
from monitor.measure.gpu.session import GpuLostError, GpusUnavailableError

HANG_S = 30.0
#: Asked for the report only: what else tells a GPU's state, by getter and arguments.
GETTERS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("nvmlDeviceGetSupportedEventTypes", ()),
    ("nvmlDeviceGetSupportedClocksEventReasons", ()),
    ("nvmlDeviceGetPerformanceState", ()),
    ("nvmlDeviceGetPersistenceMode", ()),
    ("nvmlDeviceGetVirtualizationMode", ()),
    ("nvmlDeviceGetArchitecture", ()),
    ("nvmlDeviceGetPowerManagementDefaultLimit", ()),
    *(
        ("nvmlDeviceGetTemperatureThreshold", (kind,)) for kind in range(4)
    ),  # shutdown, slowdown, memory, GPU
)
#: And field ids (nvml.h): the counters of throttling under every number that a release gave them,
#: other power and temperature fields.
FIELDS = (
    75,
    76,
    77,
    78,
    79,
    83,
    185,
    186,
    190,
    192,
    193,
    194,
    195,
    196,
    230,
    251,
    252,
    253,
    269,
    270,
    271,
)
UNITS = {
    "reading": "°C, MHz, W, J, MiB, ns; util 0..1; event_reasons a bit mask",
    "identity": "W, MHz, MiB",
    "questions": "as NVML gives them: °C, MHz, mW, mJ, bytes, per cent, ns; nothing is converted",
}
_HIDDEN = (
    "nvmlDeviceGetComputeRunningProcesses",
    "fields",
)  # whose values are left out: processes, and the call that carries the fields


def gpu_report() -> dict[str, Any]:
    """Ask every GPU everything once. Never raises: what stands in the way is `error`. A driver
    that hangs is given up after HANG_S.
    """
    found: dict[str, Any] = {}
    asking = threading.Thread(target=_ask_all, args=(found,), name="gpu-report", daemon=True)
    asking.start()
    asking.join(HANG_S)
    hung = (
        f"NVML has not answered for {HANG_S:.0f} s; the driver may hang: see dmesg and nvidia-smi"
    )
    return {
        "format": "vllm-canary gpu-report 1",
        "vllm_canary": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "binding": f"nvidia-ml-py {metadata.version('nvidia-ml-py')}",
        "privacy": (
            "no host, user or process names, no serial numbers; a uuid is the start of "
            "its SHA-256, a process list only its length"
        ),
        "units": UNITS,
        "error": hung if asking.is_alive() else None,
        "gpus": [],
        **found,
    }


def _ask_all(found: dict[str, Any]) -> None:
    session = Nvml()
    try:
        session.open()
        found |= _machine(session)
        found["gpus"] = [_gpu(session, uuid) for uuid in session.uuids]
    except GpusUnavailableError as error:
        found["error"] = error.reason
    # whatever a driver or binding does that we never saw: exactly that is what a report is for
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    finally:
        session.close()


def _machine(session: Nvml) -> dict[str, Any]:
    versions, chosen = session.identity(), session.throttle
    return {
        "driver": versions.driver_version,
        "cuda": versions.cuda_driver_version,
        "throttle_fields": {
            "thermal": chosen.thermal,
            "brake": chosen.brake,
            "power": (POWER_THROTTLE,),
        },
        "memory_temperature_field": MEMORY_TEMP,
        "throttle_fields_of_the_binding": _binding_fields(),
        "unreadable": {gpu: error.reason for gpu, error in session.unreadable.items()},
    }


def _gpu(session: Nvml, uuid: str) -> dict[str, Any]:
    gpu: dict[str, Any] = {"uuid": short_uuid(uuid), "error": None}
    try:
        identity = next((asdict(one) for one in session.identity().gpus if one.uuid == uuid), {})
        reading = asdict(session.read(uuid, datetime.now(UTC), 0))
        for function, arguments in GETTERS:
            session.ask(uuid, function, *arguments)
        session.ask_fields(uuid, *FIELDS)
        gpu |= {"name": identity.get("name"), "reading": reading, "identity": identity}
        processes = identity.get("processes")
        identity["processes"] = None if processes is None else len(processes)
        for values in (reading, identity):
            for name in ("uuid", "name", "at", "monotonic_ns"):
                values.pop(name, None)
    except GpuLostError as error:
        gpu["error"] = error.reason
    return {**gpu, "questions": _questions(session.support(uuid), session.said(uuid))}


def _questions(
    support: Mapping[str, Support], said: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """By getter or field: what became of the question ("failed": an error of the moment), and the
    value where it tells nobody anything.
    """
    return {
        question: {
            "support": support.get(question, "failed"),
            "value": None if question.startswith(_HIDDEN) else _plain(said.get(question)),
        }
        for question in sorted(support.keys() | said.keys())
    }


def _plain(value: Any) -> Any:
    """A number or a text as it is, a structure of the binding as its members."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    members = getattr(value, "_fields_", ())
    return (
        {member[0]: _plain(getattr(value, member[0])) for member in members}
        if members
        else repr(type(value))
    )


def short_uuid(uuid: str) -> str:
    """Tells two GPUs of one report apart and the same GPU in two, and does not tell which GPU it
    is.
    """
    return "sha256:" + hashlib.sha256(uuid.encode()).hexdigest()[:12]


def _binding_fields() -> dict[str, int]:
    """The numbers that the binding itself has for these counters: they tell the release that it was
    made for, not the driver's.
    """
    prefix = "NVML_FI_DEV_CLOCKS_EVENT_REASON_"
    return {
        name.removeprefix(prefix).lower(): getattr(pynvml, name)
        for name in sorted(dir(pynvml))
        if name.startswith(prefix)
    }
