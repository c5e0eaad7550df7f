"""A report that a user can send: everything that NVML offers on this machine, query by query, so
that a GPU unknown to us can be supported.

It contains no host, user or process names and no serial numbers; a UUID becomes a short hash, the
same in every report of that GPU.
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
from monitor.measure.gpu.nvml_codes import QuerySupport
from monitor.measure.gpu.session import GpuLostError, GpusUnavailableError

HANG_S = 30.0
#: Further properties of a GPU, queried for the report only, by getter and arguments.
GETTERS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("nvmlDeviceGetSupportedEventTypes", ()),
    ("nvmlDeviceGetSupportedClocksEventReasons", ()),
    ("nvmlDeviceGetPerformanceState", ()),
    ("nvmlDeviceGetPersistenceMode", ()),
    ("nvmlDeviceGetVirtualizationMode", ()),
    ("nvmlDeviceGetArchitecture", ()),
    ("nvmlDeviceGetPowerManagementDefaultLimit", ()),
    # shutdown, slowdown, memory, GPU
    *(("nvmlDeviceGetTemperatureThreshold", (kind,)) for kind in range(4)),
)
#: And field ids (nvml.h): the throttle counters under the number of every release, and other power
#: and temperature fields.
FIELDS = (
    *(75, 76, 77, 78, 79, 83),
    *(185, 186, 190, 192, 193, 194, 195, 196, 230),
    *(251, 252, 253, 269, 270, 271),
)
UNITS = {
    "reading": "°C, MHz, W, J, MiB, ns; util 0..1; event_reasons a bit mask",
    "identity": "W, MHz, MiB",
    "questions": "NVML's units: °C, MHz, mW, mJ, bytes, per cent, ns; nothing is converted",
}
#: Queries whose values are left out: processes, and the call that returns the fields.
_HIDDEN = ("nvmlDeviceGetComputeRunningProcesses", "fields")


def gpu_report() -> dict[str, Any]:
    """Runs every query on every GPU once. Never raises: failures are in `error`. A driver that
    hangs is abandoned after HANG_S.
    """
    found: dict[str, object] = {}
    thread = threading.Thread(target=_query_all, args=(found,), name="gpu-report", daemon=True)
    thread.start()
    thread.join(HANG_S)
    hung = (
        f"NVML has not answered for {HANG_S:.0f} s; the driver may be hung: see dmesg and "
        "nvidia-smi"
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
        "error": hung if thread.is_alive() else None,
        "gpus": [],
        **found,
    }


def _query_all(found: dict[str, object]) -> None:
    session = Nvml()
    try:
        session.open()
        found |= _machine(session)
        found["gpus"] = [_gpu(session, uuid) for uuid in session.uuids]
    except GpusUnavailableError as error:
        found["error"] = error.reason
    # any error of a driver or binding: finding those is the purpose of a report
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    finally:
        session.close()


def _machine(session: Nvml) -> dict[str, object]:
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


def _gpu(session: Nvml, uuid: str) -> dict[str, object]:
    gpu: dict[str, object] = {"uuid": short_uuid(uuid), "error": None}
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
    return {**gpu, "questions": _questions(session.support(uuid), session.answers(uuid))}


def _questions(
    support: Mapping[str, QuerySupport], answers: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The queries by getter or field: whether the GPU offers the value ("failed": an error of the
    moment), and the value unless it is private.
    """
    return {
        question: {
            "support": support.get(question, "failed"),
            "value": None if question.startswith(_HIDDEN) else _plain(answers.get(question)),
        }
        for question in sorted(support.keys() | answers.keys())
    }


def _plain(value: object) -> object:
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
    """A hash that identifies a GPU within and across reports without revealing its UUID."""
    return "sha256:" + hashlib.sha256(uuid.encode()).hexdigest()[:12]


def _binding_fields() -> dict[str, int]:
    """The binding's own numbers for these counters: those of the release that it was made for, not
    the driver's.
    """
    prefix = "NVML_FI_DEV_CLOCKS_EVENT_REASON_"
    return {
        name.removeprefix(prefix).lower(): getattr(pynvml, name)
        for name in sorted(dir(pynvml))
        if name.startswith(prefix)
    }
