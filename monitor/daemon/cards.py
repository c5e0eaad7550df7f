"""The cards of one target, seen through the one GPU watch of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from monitor.measure.gpu import GpuWatch
from monitor.measure.nvml import NvmlIdentity
from monitor.model import GpuReading


@dataclass(frozen=True, slots=True)
class TargetCards:
    """What a target may see of the watch: its own cards, or all of this machine's."""

    watch: GpuWatch | None
    gpus: Literal["auto", "none"] | Sequence[str]

    @property
    def watching(self) -> bool:
        """Whether any card is watched for this target."""
        return self.watch is not None and self.gpus != "none"

    def before(self, monotonic_ns: int) -> dict[str, GpuReading]:
        """As GpuWatch.before, for this target's cards."""
        return {} if self.watch is None else self._own(self.watch.before(monotonic_ns))

    async def after(self, monotonic_ns: int, timeout_s: float = 0.5) -> dict[str, GpuReading]:
        """As GpuWatch.after, for this target's cards."""
        return {} if self.watch is None else self._own(await self.watch.after(monotonic_ns, timeout_s))

    def identity(self) -> tuple[NvmlIdentity | None, str | None]:
        """Driver and cards, or why they are unknown."""
        if self.watch is None or self.gpus == "none":
            return None, "no card is watched for this target"
        found = self.watch.identity()
        return found, None if found is not None else self.watch.state().reason

    def settled(self) -> tuple[object, ...] | None:
        """What of the identity should stay as it is (not the processes and their memory): when it moves, the identity is read anew."""
        found, _ = self.identity()
        if found is None:
            return None
        cards = tuple((c.uuid, c.power_limit_w, c.max_sm_clock_mhz, c.ecc, c.mig) for c in found.cards)
        return (found.driver_version, found.cuda_driver_version, cards)

    def _own(self, readings: Mapping[str, GpuReading]) -> dict[str, GpuReading]:
        return {uuid: r for uuid, r in readings.items() if self.gpus == "auto" or uuid in self.gpus}


def wanted_cards(per_target: Sequence[Literal["auto", "none"] | list[str]]) -> Literal["auto", "none"] | list[str]:
    """What one watch must read to serve several targets."""
    if "auto" in per_target:
        return "auto"
    return sorted({uuid for gpus in per_target if isinstance(gpus, list) for uuid in gpus}) or "none"
