"""The kinds of card that can be simulated, with the constants of their heat, their governor and
their speed, and where each comes from.

Sources. "measured": fitted to public traces of real cards (an H100 serving vLLM at 420 W stands at
54 °C; GB10 at 70-74 °C and 2470-2496 MHz over 165 hours; two RTX 3090 from 36 to 88 °C in 3.5
minutes). "scaled": carried over from a card of the same make and checked against nothing. Above 60
°C the H100 is a model: no public trace of a throttling one was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from monitor.errors import USAGE, Told


class UnknownGpuError(Told):
    """A kind of card that is not in the table."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class GpuKind:
    """Constants of one kind of card. Heat: T = inlet + a + b, with a' = (P·r1 - a)/t1 and b' =
    (P·r2·cooling - b)/t2.

    Power when busy: p0_w + pd_w·(f/f0)^exponent, times up to `prefill_power` on the second term
    while it works on prompts.
    """

    name: str
    model_name: str  # as NVML and DCGM say it
    source: Literal["measured", "scaled"]
    clock_mhz: int  # f0: the highest boost clock
    step_mhz: int  # of the governor
    idle_clock_mhz: int
    p_idle_w: float
    p0_w: float
    pd_w: float
    exponent: float
    # 1.6 on the H100: 420 W while decoding, 606 W in heavy prefill; smaller for cards near their
    # limit (assumed)
    prefill_power: float
    limit_w: float
    r1: float  # °C/W, die
    t1_s: float
    r2: float  # °C/W, heat sink and air
    t2_s: float
    inlet_c: float
    max_c: float  # above it the governor takes clock away (GeForce: the target temperature)
    slowdown_c: float  # above it the hardware halves the clock
    boost_loss_mhz: float  # per degree above boost_from_c, without any reason bit: GPU Boost bins
    boost_from_c: float
    decode_share: (
        float  # share of a decode step that follows the SM clock; the rest follows the memory clock
    )
    prefill_share: float  # share of a prefill that follows the SM clock
    memory_clock_mhz: int
    memory_over_c: float  # how much hotter than the die the memory is at full power
    memory_max_c: float
    vram_mib: int
    bandwidth_gb_s: float  # data sheet; for engines that derive their base speed from it
    tflops: float  # data sheet, dense bf16
    uuid_prefix: str
    # what the driver shows (nvidia-smi --query-gpu on real cards: GeForce has no memory temperature
    # and no margin, GB10 shows neither memory figures nor a power limit)
    shows_memory_temp: bool = True
    shows_margin: bool = True
    shows_memory: bool = True
    shows_limit: bool = True
    power_cap_bit: Literal["when capped", "always"] = "when capped"

    @property
    def full_w(self) -> float:
        """Power at full clock, decoding."""
        return self.p0_w + self.pd_w


#: Decode and prefill shares: of the measured elasticities 0.2 to 0.5 (decode) and 0.67 to 0.87
#: (prefill).
KINDS: Mapping[str, GpuKind] = {
    kind.name: kind
    for kind in (
        GpuKind(
            "h100", "NVIDIA H100 80GB HBM3", "measured", 1980, 15, 345, 75, 110, 310, 2.2, 1.6, 700,
            0.020, 4, 0.034, 90, 30, 87, 89, 0, 0, 0.20, 0.80, 2619, 10, 98, 81559, 3350, 989, "GPU-a100c0de",
        ),
        GpuKind(
            "a100", "NVIDIA A100-SXM4-80GB", "scaled", 1410, 15, 210, 55, 90, 210, 2.2, 1.4, 400,
            0.030, 4, 0.050, 90, 30, 85, 92, 0, 0, 0.25, 0.80, 1593, 9, 95, 81920, 2039, 312, "GPU-b100c0de",
            shows_margin=False,  # the margin came with Hopper and Ada
        ),
        GpuKind(
            "rtx4090", "NVIDIA GeForce RTX 4090", "measured", 2610, 15, 210, 20, 130, 255, 2.4, 1.2, 450,
            0.025, 5, 0.075, 80, 25, 84, 97, 3, 55, 0.35, 0.85, 10501, 22, 105, 24564, 1008, 165, "GPU-c100c0de",
            shows_memory_temp=False, shows_margin=False,
        ),
        GpuKind(
            "rtx3090", "NVIDIA GeForce RTX 3090", "measured", 1905, 15, 210, 25, 190, 130, 2.5, 1.2, 350,
            0.030, 5, 0.100, 80, 28, 83, 92, 5, 55, 0.45, 0.85, 9501, 24, 110, 24576, 936, 71, "GPU-d100c0de",
            shows_memory_temp=False, shows_margin=False,
            # The bit stands in nearly every decode sample of a healthy one
            # (github.com/ashalliants/ninfer-3090/issues/72): no fault. At idle it stands as well,
            # without the idle bit, in a capture of nvidia-smi of an RTX 2080 Super; assumed to be
            # so here.
            power_cap_bit="always",
        ),
        GpuKind(
            "rtx5090", "NVIDIA GeForce RTX 5090", "scaled", 2850, 15, 180, 30, 150, 330, 2.4, 1.2, 575,
            0.020, 5, 0.070, 85, 25, 85, 92, 3, 55, 0.30, 0.85, 14001, 22, 105, 32607, 1792, 209, "GPU-e100c0de",
            shows_memory_temp=False, shows_margin=False,
        ),
        GpuKind(
            "dgx-spark", "NVIDIA GB10", "measured", 2509, 13, 208, 5, 20, 45, 2.0, 1.2, 140,
            0.150, 5, 0.520, 67, 28, 94, 96, 4.5, 62, 0.20, 0.80, 4266, 8, 105, 122502, 273, 125, "GPU-f100c0de",
            shows_memory_temp=False, shows_memory=False, shows_limit=False,
        ),
    )
}  # fmt: skip


def kind_of(name: str) -> GpuKind:
    """The constants of a kind of card. Raises UnknownCardError."""
    if name not in KINDS:
        raise UnknownGpuError(
            f"there is no simulated card {name!r}; it is one of: {', '.join(KINDS)}"
        )
    return KINDS[name]
