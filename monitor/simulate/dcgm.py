"""What dcgm-exporter would say of the simulated cards: the daemon reads it with the source it uses
for real ones.

Classic names and units (MHz, °C, W, mJ, %, MiB, ns) as in dcgm-exporter's etc/default-counters.csv.
A field that a card does not have is left out, as the exporter does with blank values. The throttle
counters and the reasons are commented out in the exporter's default configuration; `DEFAULT` leaves
them out as well. Software and hardware slowdowns are told apart only by the fields of DCGM 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from monitor.simulate.card import Card, CardReading

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Field:
    """One metric of the page: how it is called and where its value comes from. `default`: on in the
    exporter's own configuration.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    value: Callable[[CardReading], float | None]
    default: bool = True


def _thermal_ns(card: CardReading) -> float:
    """Both thermal slowdowns. The hardware's begins above the software's, so the longer of the two
    covers both.
    """
    return max(card.sw_thermal_ns, card.hw_thermal_ns)


def _free_mib(card: CardReading) -> float | None:
    return (
        None
        if card.vram_total_mib is None or card.vram_used_mib is None
        else card.vram_total_mib - card.vram_used_mib
    )


REASON = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_"
FIELDS: tuple[Field, ...] = (
    Field(
        "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda c: c.sm_clock_mhz
    ),
    Field(
        "DCGM_FI_DEV_MEM_CLOCK",
        "gauge",
        "Memory clock frequency (in MHz).",
        lambda c: c.mem_clock_mhz,
    ),
    Field("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", lambda c: c.mem_temp_c),
    Field("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda c: c.temp_c),
    Field(
        "DCGM_FI_DEV_GPU_TEMP_LIMIT",
        "gauge",
        "Thermal margin to the nearest slowdown threshold (in C).",
        lambda c: c.margin_c,
        False,
    ),
    Field("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda c: c.power_w),
    Field(
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        "gauge",
        "Current power limit for the device (in W).",
        lambda c: c.power_limit_w,
        False,
    ),
    Field(
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "gauge",
        "Effective power limit of the device (in W).",
        lambda c: c.power_limit_w,
        False,
    ),
    Field(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since boot (in mJ).",
        lambda c: int(c.energy_j * 1000),
    ),
    Field(
        "DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda c: round(c.util * 100)
    ),
    Field(
        "DCGM_FI_DEV_XID_ERRORS",
        "gauge",
        "Value of the last XID error encountered.",
        lambda c: c.xid,
    ),
    Field("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _free_mib),
    Field(
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda c: c.vram_used_mib,
    ),
    Field(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "gauge",
        "Current clock event reasons (bitmask).",
        lambda c: c.event_reasons,
        False,
    ),
    Field(
        "DCGM_FI_DEV_POWER_VIOLATION",
        "counter",
        "Throttling duration due to power constraints (in ns).",
        lambda c: c.sw_power_ns,
        False,
    ),
    Field(
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "counter",
        "Throttling duration due to thermal constraints (in ns).",
        _thermal_ns,
        False,
    ),
    Field(
        f"{REASON}SW_POWER_CAP_NS",
        "counter",
        "Throttling by the power limit (in ns).",
        lambda c: c.sw_power_ns,
        False,
    ),
    Field(
        f"{REASON}SW_THERM_SLOWDOWN_NS",
        "counter",
        "Throttling by the driver for heat (in ns).",
        lambda c: c.sw_thermal_ns,
        False,
    ),
    Field(
        f"{REASON}HW_THERM_SLOWDOWN_NS",
        "counter",
        "Throttling by the hardware for heat (in ns).",
        lambda c: c.hw_thermal_ns,
        False,
    ),
    Field(
        f"{REASON}HW_POWER_BRAKE_SLOWDOWN_NS",
        "counter",
        "Throttling by the power brake (in ns).",
        lambda c: c.brake_ns,
        False,
    ),
)
ALL = tuple(field.name for field in FIELDS)
DEFAULT = tuple(field.name for field in FIELDS if field.default)


def page(cards: Sequence[Card], hostname: str = "simulated", names: Sequence[str] = ALL) -> str:
    """The text exposition of some cards; `names`: which fields the exporter was configured with."""
    readings = [(card.index, card.reading()) for card in cards]
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


def _labels(index: int, card: CardReading, hostname: str) -> str:
    labels: Mapping[str, str] = {
        "gpu": str(index),
        "UUID": card.uuid,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "device": f"nvidia{index}",
        "modelName": card.name,
        "Hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": card.driver_version,
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _number(value: float) -> str:
    """As Go's exporter prints DCGM's integers and doubles: 1980, 420.125000."""
    return (
        str(int(value))
        if float(value).is_integer() and not isinstance(value, float)
        else f"{value:.6f}".rstrip("0").rstrip(".")
    )
