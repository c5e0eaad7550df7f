"""The page that dcgm-exporter would show of the simulated GPUs: the daemon reads it with the same
source as for real ones.

Classic names and units (MHz, °C, W, mJ, %, MiB, ns) as in dcgm-exporter's etc/default-counters.csv.
A field that a GPU lacks is left out, as the exporter does with blank values. Throttle counters and
reasons are commented out in the exporter's default configuration; `DEFAULT` leaves them out as
well. Only the fields of DCGM 4 separate software and hardware slowdowns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from monitor.simulate.api.server import SimulatedServer
from monitor.simulate.api.wire import Exchange, Listener
from monitor.simulate.gpu.gpu import DriverReading, Gpu

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class DcgmField:
    """One metric of the page: its name, and where its value comes from. `default`: enabled in
    the exporter's own configuration.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    value: Callable[[DriverReading], float | None]
    default: bool = True


def _thermal_ns(gpu: DriverReading) -> float:
    """Both thermal slowdowns. The hardware's threshold lies above the software's, so the longer
    of the two covers both.
    """
    return max(gpu.sw_thermal_ns, gpu.hw_thermal_ns)


def _free_mib(gpu: DriverReading) -> float | None:
    return (
        None
        if gpu.vram_total_mib is None or gpu.vram_used_mib is None
        else gpu.vram_total_mib - gpu.vram_used_mib
    )


REASON = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_"
FIELDS: tuple[DcgmField, ...] = (
    DcgmField(
        "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda c: c.sm_clock_mhz
    ),
    DcgmField(
        "DCGM_FI_DEV_MEM_CLOCK",
        "gauge",
        "Memory clock frequency (in MHz).",
        lambda c: c.mem_clock_mhz,
    ),
    DcgmField(
        "DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", lambda c: c.mem_temp_c
    ),
    DcgmField("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda c: c.temp_c),
    DcgmField(
        "DCGM_FI_DEV_GPU_TEMP_LIMIT",
        "gauge",
        "Thermal margin to the nearest slowdown threshold (in C).",
        lambda c: c.margin_c,
        False,
    ),
    DcgmField("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda c: c.power_w),
    DcgmField(
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        "gauge",
        "Current power limit for the device (in W).",
        lambda c: c.power_limit_w,
        False,
    ),
    DcgmField(
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "gauge",
        "Effective power limit of the device (in W).",
        lambda c: c.power_limit_w,
        False,
    ),
    DcgmField(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since boot (in mJ).",
        lambda c: int(c.energy_j * 1000),
    ),
    DcgmField(
        "DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda c: round(c.util * 100)
    ),
    DcgmField(
        "DCGM_FI_DEV_XID_ERRORS",
        "gauge",
        "Value of the last XID error encountered.",
        lambda c: c.xid,
    ),
    DcgmField("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _free_mib),
    DcgmField(
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda c: c.vram_used_mib,
    ),
    DcgmField(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "gauge",
        "Current clock event reasons (bitmask).",
        lambda c: c.event_reasons,
        False,
    ),
    DcgmField(
        "DCGM_FI_DEV_POWER_VIOLATION",
        "counter",
        "Throttling duration due to power constraints (in ns).",
        lambda c: c.sw_power_ns,
        False,
    ),
    DcgmField(
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "counter",
        "Throttling duration due to thermal constraints (in ns).",
        _thermal_ns,
        False,
    ),
    DcgmField(
        f"{REASON}SW_POWER_CAP_NS",
        "counter",
        "Throttling by the power limit (in ns).",
        lambda c: c.sw_power_ns,
        False,
    ),
    DcgmField(
        f"{REASON}SW_THERM_SLOWDOWN_NS",
        "counter",
        "Throttling by the driver for heat (in ns).",
        lambda c: c.sw_thermal_ns,
        False,
    ),
    DcgmField(
        f"{REASON}HW_THERM_SLOWDOWN_NS",
        "counter",
        "Throttling by the hardware for heat (in ns).",
        lambda c: c.hw_thermal_ns,
        False,
    ),
    DcgmField(
        f"{REASON}HW_POWER_BRAKE_SLOWDOWN_NS",
        "counter",
        "Throttling by the power brake (in ns).",
        lambda c: c.brake_ns,
        False,
    ),
)
ALL = tuple(field.name for field in FIELDS)
DEFAULT = tuple(field.name for field in FIELDS if field.default)


def page(gpus: Sequence[Gpu], hostname: str = "simulated", names: Sequence[str] = ALL) -> str:
    """The text exposition of some GPUs; `names`: the fields that the exporter is configured
    with.
    """
    readings = [(gpu.index, gpu.reading()) for gpu in gpus]
    lines: list[str] = []
    for field in FIELDS:
        values = [
            (_labels(index, reading, hostname), field.value(reading)) for index, reading in readings
        ]
        shown = [
            f"{field.name}{{{labels}}} {_number(value)}"
            for labels, value in values
            if value is not None
        ]
        if field.name in names and shown:
            lines += [
                f"# HELP {field.name} {field.help}",
                f"# TYPE {field.name} {field.kind}",
                *shown,
            ]
    return "\n".join(lines) + "\n"


def _labels(index: int, gpu: DriverReading, hostname: str) -> str:
    labels: Mapping[str, str] = {
        "gpu": str(index),
        "UUID": gpu.uuid,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "device": f"nvidia{index}",
        "modelName": gpu.name,
        "Hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": gpu.driver_version,
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _number(value: float) -> str:
    """A number as Go's exporter prints DCGM's integers and doubles: 1980, 420.125000."""
    return (
        str(int(value))
        if float(value).is_integer() and not isinstance(value, float)
        else f"{value:.6f}".rstrip("0").rstrip(".")
    )


def exporter(server: SimulatedServer, host: str = "127.0.0.1", port: int = 0) -> Listener:
    """A listener that serves the GPUs of a running simulated server on /metrics, and stays up
    when the server is down: `async with exporter(server) as gpus: gpus.url`.
    """

    def handle(exchange: Exchange) -> None:
        if exchange.request.path not in {"/metrics", "/metrics/"}:
            exchange.reply("404 page not found\n", 404, "text/plain; charset=utf-8")
            return
        server.catch_up()
        server.world.settle()
        exchange.reply(
            page([gpu for gpu in server.world.gpus if isinstance(gpu, Gpu)]),
            kind=CONTENT_TYPE,
        )

    return Listener(handle, host, port)
