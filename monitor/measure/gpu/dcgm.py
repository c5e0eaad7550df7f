"""The GPUs of another machine, from a DCGM exporter's page: a session like NVML's, so that one
watch serves both.

The exporter reads its GPUs every 30 s by default and reports no times: a page with the values of
the previous page is the same reading, and keeps the time of the first. Metric names and units are
changing (MHz to Hz, per cent to ratio): both are known, and each value is converted by its name. By
default an exporter omits the counters that prove thermal throttling; `missing_evidence` says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from monitor.measure.gpu.session import (
    GpuIdentity,
    GpuLostError,
    GpusIdentity,
    GpusUnavailableError,
)
from monitor.measure.server.metrics_page import looks_like_metrics
from monitor.model import GpuEvent, GpuFault, GpuReading

PAGE_TIMEOUT_S = 3.0
PAGE_FRESH_S = 0.5  # all GPUs of one poll come from one page
#: Our field -> (the exporter's name, factor), the first one present wins (dcgm-exporter
#: default-counters.csv, dcgm_fields.h).
NAMES: Mapping[str, tuple[tuple[str, float], ...]] = {
    "temp_c": (("DCGM_FI_DEV_GPU_TEMP", 1), ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 1)),
    "mem_temp_c": (("DCGM_FI_DEV_MEMORY_TEMP", 1), ("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", 1)),
    "margin_c": (("DCGM_FI_DEV_GPU_TEMP_LIMIT", 1), ("DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS", 1)),
    "sm_clock_mhz": (("DCGM_FI_DEV_SM_CLOCK", 1), ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1e-6)),
    "mem_clock_mhz": (("DCGM_FI_DEV_MEM_CLOCK", 1), ("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", 1e-6)),
    "util": (("DCGM_FI_DEV_GPU_UTIL", 0.01), ("DCGM_FI_DEV_GPU_UTIL_RATIO", 1)),
    "power_w": (("DCGM_FI_DEV_POWER_USAGE", 1), ("DCGM_FI_DEV_BOARD_POWER_WATTS", 1)),
    "power_limit_w": (
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1),
        ("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", 1),
    ),
    "energy_j": (
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0.001),
        ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1),
    ),
    "vram_used_mib": (("DCGM_FI_DEV_FB_USED", 1),),
    "event_reasons": (
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 1),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1),
    ),
    "throttle_power_ns": (
        ("DCGM_FI_DEV_POWER_VIOLATION", 1),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", 1),
    ),
    "throttle_thermal_ns": (
        ("DCGM_FI_DEV_THERMAL_VIOLATION", 1),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", 1),
    ),
    "throttle_brake_ns": (("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", 1),),
}
# added to the software slowdown's counter, where both are present
_HW_THERMAL = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS"
#: A gauge with the XID of the last fault, 0 where there was none; it keeps its value until the
#: driver is reloaded (dcgm_fields.h).
XID_NAMES = (("DCGM_FI_DEV_XID_ERRORS", 1.0), ("DCGM_FI_DEV_XID_ERROR", 1.0))
_WHOLE = frozenset(
    {"event_reasons", "throttle_power_ns", "throttle_thermal_ns", "throttle_brake_ns", "xid"}
)
#: DCGM's "no value" (blank, not found, not supported, no permission) for 32-bit integers, floats
#: and 64-bit integers (dcgm_structs.h: DCGM_INT32_BLANK, DCGM_FP64_BLANK, DCGM_INT64_BLANK, each
#: and the three after it).
_BLANKS = ((0x7FFFFFF0, 0x7FFFFFF3), (2.0**47, 2.0**47 + 3), (2.0**63 - 1024, math.inf))
#: The fields that attribution to heat rests on, and that an exporter omits by default.
EVIDENCE = {
    "event_reasons": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    "throttle_thermal_ns": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "throttle_power_ns": "DCGM_FI_DEV_POWER_VIOLATION",
}


@dataclass(frozen=True, slots=True)
class DcgmGpu:
    """One GPU on one page, in our units; None = not on the page."""

    uuid: str
    name: str | None
    driver_version: str | None
    values: Mapping[str, float | int | None]
    xid: int | None = None  # of the last fault; 0: there was none
    index: int | None = None  # as nvidia-smi counts


def parse_dcgm(text: str) -> dict[str, DcgmGpu]:
    """The GPUs of a page by UUID. With MIG the series of a GPU's instances repeat the GPU's own:
    the first is used.

    Raises ValueError for a page that is not a Prometheus exposition.
    """
    if not looks_like_metrics(text):
        raise ValueError("the page is not a Prometheus exposition")
    found: dict[str, dict[str, float]] = {}
    labels_of: dict[str, Mapping[str, str]] = {}
    lines = [line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_")]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            uuid = sample.labels.get("UUID") or sample.labels.get("uuid")
            if uuid:
                labels_of.setdefault(uuid, sample.labels)
                found.setdefault(uuid, {}).setdefault(sample.name, sample.value)
    return {uuid: _gpu(uuid, labels_of[uuid], values) for uuid, values in found.items()}


def _gpu(uuid: str, labels: Mapping[str, str], raw: Mapping[str, float]) -> DcgmGpu:
    values: dict[str, float | int | None] = {
        name: _first(raw, name, names) for name, names in NAMES.items()
    }
    hardware = _known(raw.get(_HW_THERMAL))
    if hardware is not None and "DCGM_FI_DEV_THERMAL_VIOLATION" not in raw:
        values["throttle_thermal_ns"] = int(values["throttle_thermal_ns"] or 0) + int(hardware)
    driver = labels.get("DCGM_FI_DRIVER_VERSION") or None
    xid = _first(raw, "xid", XID_NAMES)
    return DcgmGpu(
        uuid=uuid,
        name=labels.get("modelName") or None,
        driver_version=driver,
        values=values,
        xid=None if xid is None else int(xid),
        index=int(index) if (index := labels.get("gpu", "")).isdecimal() else None,
    )


def _first(
    raw: Mapping[str, float], name: str, names: tuple[tuple[str, float], ...]
) -> float | int | None:
    for their_name, factor in names:
        value = _known(raw.get(their_name))
        if value is not None:
            return int(value) if name in _WHOLE else value * factor
    return None


def _known(value: float | None) -> float | None:
    """The value, or None: DCGM writes a huge number for a metric that a GPU does not offer."""
    if value is None or math.isnan(value) or any(low <= value <= high for low, high in _BLANKS):
        return None
    return value


@dataclass(slots=True)
class DcgmSession:
    """Reads an exporter's page. Raises the errors of the NVML session, with the exporter's own
    reasons.

    `xids`: the last code by GPU; pass those of one session on to the next session of a page.
    """

    url: str
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=PAGE_TIMEOUT_S))
    clock: Callable[[], float] = time.monotonic
    unreadable: dict[str, GpuLostError] = field(default_factory=dict)
    xids: dict[str, int] = field(default_factory=dict)
    _gpus: dict[str, DcgmGpu] = field(default_factory=dict)
    # when a GPU's present values were first read
    _first_read: dict[str, tuple[datetime, int]] = field(default_factory=dict)
    _fetched_s: float | None = None
    _events: list[tuple[str, int]] = field(default_factory=list)

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs of the page."""
        return tuple(self._gpus)

    def open(self) -> None:
        """Fetches the page once. Raises GpusUnavailableError."""
        try:
            self._fetch()
        except GpuLostError as error:
            raise GpusUnavailableError(error.reason, "error") from None
        if not self._gpus:
            raise GpusUnavailableError(f"the DCGM page at {self.url} lists no GPUs", "error")

    def read(self, uuid: str, at: datetime, monotonic_ns: int) -> GpuReading:
        """One GPU as on the page. `at` and `monotonic_ns` are used where its values are new. Raises
        GpuLostError.
        """
        if self._fetched_s is None or self.clock() - self._fetched_s > PAGE_FRESH_S:
            self._fetch(at, monotonic_ns)
        gpu = self._gpus.get(uuid)
        if gpu is None:
            raise GpuLostError(uuid, f"the DCGM page at {self.url} no longer lists this GPU")
        first_at, first_ns = self._first_read[uuid]
        values: dict[str, Any] = dict(gpu.values)
        return GpuReading(at=first_at, monotonic_ns=first_ns, uuid=uuid, name=gpu.name, **values)

    def events(self, at: datetime) -> list[GpuEvent]:
        """New codes on the pages since the last call. The same fault twice in a row is one event:
        the gauge does not change.
        """
        taken, self._events = self._events, []
        return [GpuEvent(uuid, at, xid) for uuid, xid in taken]

    def identity(self) -> GpusIdentity:
        """Driver and GPUs from the page's labels."""
        drivers = {gpu.driver_version for gpu in self._gpus.values() if gpu.driver_version}
        gpus = tuple(
            GpuIdentity(
                uuid=gpu.uuid,
                name=gpu.name,
                index=gpu.index,
                power_limit_w=gpu.values["power_limit_w"],
            )
            for gpu in self._gpus.values()
        )
        return GpusIdentity(drivers.pop() if len(drivers) == 1 else None, None, gpus)

    def close(self) -> None:
        """Closes the connection."""
        self.http.close()

    def _fetch(self, at: datetime | None = None, monotonic_ns: int | None = None) -> None:
        at, monotonic_ns = at or datetime.now(UTC), monotonic_ns or time.monotonic_ns()
        try:
            response = self.http.get(self.url, follow_redirects=True)
            response.raise_for_status()
            gpus = parse_dcgm(response.text)
        except httpx.HTTPStatusError as error:
            raise self._failed(f"answers HTTP {error.response.status_code}") from None
        except httpx.HTTPError as error:
            raise self._failed(f"cannot be reached: {error or type(error).__name__}") from None
        except (ValueError, KeyError) as error:
            raise self._failed(f"cannot be read: {error}") from None
        for uuid, gpu in gpus.items():
            before = self._gpus.get(uuid)
            if before is None or before.values != gpu.values:
                self._first_read[uuid] = (at, monotonic_ns)
            self._note_xid(gpu)
        self._gpus, self._fetched_s = gpus, self.clock()

    def _failed(self, why: str) -> GpuLostError:
        return GpuLostError("DCGM", f"the DCGM page at {self.url} {why}", GpuFault.SOURCE)

    def _note_xid(self, gpu: DcgmGpu) -> None:
        """A code on the first page of a GPU has an unknown time, perhaps last month, and is no
        event.
        """
        if gpu.xid is None:
            return
        if gpu.xid not in {0, self.xids.get(gpu.uuid, gpu.xid)}:
            self._events.append((gpu.uuid, gpu.xid))
        self.xids[gpu.uuid] = gpu.xid


def missing_evidence(reading: GpuReading) -> str | None:
    """A sentence with the metrics that the exporter must enable before an effect can be attributed
    to heat; None where none is missing.
    """
    missing = [name for ours, name in EVIDENCE.items() if getattr(reading, ours) is None]
    if not missing:
        return None
    return (
        f"effects cannot be attributed to heat: enable {', '.join(missing)} in the DCGM "
        "exporter's list of counters"
    )
