"""One card: what its driver says of what happens in it (physics.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from monitor.simulate.gpu.physics import (
    GPU_IDLE,
    GpuPhysics,
)

IDLE_MEMORY_MHZ = 405.0
NS = 1_000_000_000


class DriverReading(NamedTuple):
    """What a driver would say now; None where this kind of card does not say it. Counters run since
    the card was made.
    """

    uuid: str
    name: str
    driver_version: str
    temp_c: float
    mem_temp_c: float | None
    margin_c: float | None
    sm_clock_mhz: float
    mem_clock_mhz: float | None
    util: float
    power_w: float
    power_limit_w: float | None
    energy_j: float
    vram_used_mib: float | None
    vram_total_mib: float | None
    event_reasons: int
    sw_power_ns: int
    sw_thermal_ns: int
    hw_thermal_ns: int
    brake_ns: int
    xid: int


@dataclass(slots=True)
class Gpu(GpuPhysics):
    """One card and its state. Its fields without an underscore are settings and may be changed at
    any moment.
    """

    @property
    def uuid(self) -> str:
        """Always the same for the same kind and index."""
        return f"{self.kind.uuid_prefix}-0000-4000-8000-{self.index + 1:012x}"

    def reading(self) -> DriverReading:
        """What the driver says now."""
        kind, temp_c, mem_temp_c = self.kind, self.temp_c, self.mem_temp_c
        clock, capped = self._clock(temp_c)
        return DriverReading(
            uuid=self.uuid,
            name=kind.model_name,
            driver_version=self.driver_version,
            temp_c=round(temp_c),
            mem_temp_c=round(mem_temp_c) if kind.shows_memory_temp else None,
            margin_c=self._margin(temp_c, mem_temp_c),
            sm_clock_mhz=round(self._ramped(clock)),
            mem_clock_mhz=self._memory_mhz(self._ramp),
            util=round(self._util, 2),
            power_w=round(self._power_w, 3),
            power_limit_w=self.limit_w if kind.shows_limit else None,
            energy_j=self._energy_j,
            vram_used_mib=self._vram_used_mib(),
            vram_total_mib=kind.vram_mib if kind.shows_memory else None,
            event_reasons=self._reasons(capped),
            sw_power_ns=int(self._sw_power_s * NS),
            sw_thermal_ns=int(self._sw_thermal_s * NS),
            hw_thermal_ns=int(self._hw_thermal_s * NS),
            brake_ns=int(self._brake_s * NS),
            xid=self.xid,
        )

    def sample_fields(self) -> dict[str, object]:
        """What of a reading stands in a sample of the daemon, by the names there."""
        kind, temp_c, mem_temp_c = self.kind, self.temp_c, self.mem_temp_c
        return {
            "gpu_uuid": self.uuid,
            "gpu_temp_c": round(temp_c),
            "gpu_mem_temp_c": round(mem_temp_c) if kind.shows_memory_temp else None,
            "gpu_margin_c": self._margin(temp_c, mem_temp_c),
            "sm_clock_mhz": round(self._ramped(self._clock(temp_c)[0])),
            "mem_clock_mhz": self._memory_mhz(self._ramp),
            "gpu_util": round(self._util, 2),
            "power_w": round(self._power_w, 3),
            "power_limit_w": self.limit_w if kind.shows_limit else None,
            "vram_used_mib": self._vram_used_mib(),
        }

    def counts(self) -> tuple[float, int, int, int]:
        """Energy (J), and what has been counted so far (ns): thermal slowdown of both kinds, power
        cap, power brake.
        """
        thermal_ns = int(self._sw_thermal_s * NS) + int(self._hw_thermal_s * NS)
        return self._energy_j, thermal_ns, int(self._sw_power_s * NS), int(self._brake_s * NS)

    def _margin(self, temp_c: float, mem_temp_c: float) -> float | None:
        """Degrees to the nearest threshold, be it the die's or the memory's; so it is not maximum
        minus die temperature.
        """
        kind = self.kind
        return (
            round(min(kind.max_c - temp_c, kind.memory_max_c - mem_temp_c))
            if kind.shows_margin
            else None
        )

    def _memory_mhz(self, ramp: float) -> float | None:
        if not self.kind.shows_memory:
            return None
        return (
            round(self.kind.memory_clock_mhz * (1.0 - self._memory_taken))
            if ramp > 0.5
            else IDLE_MEMORY_MHZ
        )

    def _vram_used_mib(self) -> float | None:
        kind = self.kind
        return (
            round(min(self.model_mib + self.neighbour_mib, kind.vram_mib))
            if kind.shows_memory
            else None
        )

    def _reasons(self, capped: bool) -> int:
        return (
            self._working_reasons(capped) if self._idle_s == 0 else self._idle_reasons or GPU_IDLE
        )
