"""The kinds of GPU that can be simulated: constants of heat, governor and speed, and their origin.

Sources. "measured": fitted to public traces of real GPUs (an H100 serving vLLM at 420 W settles at
54 °C; GB10 at 70-74 °C and 2470-2496 MHz over 165 hours; two RTX 3090 from 36 to 88 °C in 3.5
minutes). "scaled": derived from a GPU of the same make, not validated. Above 60 °C the H100 is a
model: no public trace of a throttling one was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from monitor.errors import USAGE, UserError


class UnknownGpuError(UserError):
    """An unknown kind of GPU."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class GpuKind:
    """Constants of one kind of GPU. Heat: T = inlet + a + b, with a' = (P·r1 - a)/t1 and b' =
    (P·r2·cooling - b)/t2.

    Power when busy: p0_w + pd_w·(f/f0)^exponent, times up to `prefill_power` on the second term
    during prefill.
    """

    name: str
    model_name: str  # as reported by NVML and DCGM
    source: Literal["measured", "scaled"]
    clock_mhz: int  # f0: the highest boost clock
    step_mhz: int  # of the governor
    idle_clock_mhz: int
    p_idle_w: float
    p0_w: float
    pd_w: float
    exponent: float
    # 1.6 on the H100: 420 W while decoding, 606 W in heavy prefill; smaller for GPUs near their
    # limit (assumed)
    prefill_power: float
    limit_w: float
    r1: float  # °C/W, die
    t1_s: float
    r2: float  # °C/W, heat sink and air
    t2_s: float
    inlet_c: float
    max_c: float  # above it the governor lowers the clock (GeForce: the target temperature)
    slowdown_c: float  # above it the hardware halves the clock
    boost_loss_mhz: float  # per degree above boost_from_c, without any reason bit: GPU Boost bins
    boost_from_c: float
    decode_share: (
        float  # share of a decode step that follows the SM clock; the rest follows the memory clock
    )
    prefill_share: float  # share of a prefill that follows the SM clock
    memory_clock_mhz: int
    memory_over_c: float  # excess of memory over die temperature at full power
    memory_max_c: float
    vram_mib: int
    bandwidth_gb_s: float  # data sheet; engines derive their base speed from it
    tflops: float  # data sheet, dense bf16
    uuid_prefix: str
    # what the driver reports (nvidia-smi --query-gpu on real GPUs: GeForce has no memory
    # temperature and no margin, GB10 has neither memory figures nor a power limit)
    shows_memory_temp: bool = True
    shows_margin: bool = True
    shows_memory: bool = True
    shows_limit: bool = True
    power_cap_bit: Literal["when capped", "always"] = "when capped"

    @property
    def full_w(self) -> float:
        """Power at full clock, decoding."""
        return self.p0_w + self.pd_w


#: Decode and prefill shares: from measured elasticities of 0.2 to 0.5 (decode) and 0.67 to 0.87
#: (prefill).
GPU_KINDS: Mapping[str, GpuKind] = {
    kind.name: kind
    for kind in (
        GpuKind(
            name="h100",
            model_name="NVIDIA H100 80GB HBM3",
            source="measured",
            clock_mhz=1980,
            step_mhz=15,
            idle_clock_mhz=345,
            p_idle_w=75,
            p0_w=110,
            pd_w=310,
            exponent=2.2,
            prefill_power=1.6,
            limit_w=700,
            r1=0.020,
            t1_s=4,
            r2=0.034,
            t2_s=90,
            inlet_c=30,
            max_c=87,
            slowdown_c=89,
            boost_loss_mhz=0,
            boost_from_c=0,
            decode_share=0.20,
            prefill_share=0.80,
            memory_clock_mhz=2619,
            memory_over_c=10,
            memory_max_c=98,
            vram_mib=81559,
            bandwidth_gb_s=3350,
            tflops=989,
            uuid_prefix="GPU-a100c0de",
        ),
        GpuKind(
            name="a100",
            model_name="NVIDIA A100-SXM4-80GB",
            source="scaled",
            clock_mhz=1410,
            step_mhz=15,
            idle_clock_mhz=210,
            p_idle_w=55,
            p0_w=90,
            pd_w=210,
            exponent=2.2,
            prefill_power=1.4,
            limit_w=400,
            r1=0.030,
            t1_s=4,
            r2=0.050,
            t2_s=90,
            inlet_c=30,
            max_c=85,
            slowdown_c=92,
            boost_loss_mhz=0,
            boost_from_c=0,
            decode_share=0.25,
            prefill_share=0.80,
            memory_clock_mhz=1593,
            memory_over_c=9,
            memory_max_c=95,
            vram_mib=81920,
            bandwidth_gb_s=2039,
            tflops=312,
            uuid_prefix="GPU-b100c0de",
            shows_margin=False,  # the margin came with Hopper and Ada
        ),
        GpuKind(
            name="rtx4090",
            model_name="NVIDIA GeForce RTX 4090",
            source="measured",
            clock_mhz=2610,
            step_mhz=15,
            idle_clock_mhz=210,
            p_idle_w=20,
            p0_w=130,
            pd_w=255,
            exponent=2.4,
            prefill_power=1.2,
            limit_w=450,
            r1=0.025,
            t1_s=5,
            r2=0.075,
            t2_s=80,
            inlet_c=25,
            max_c=84,
            slowdown_c=97,
            boost_loss_mhz=3,
            boost_from_c=55,
            decode_share=0.35,
            prefill_share=0.85,
            memory_clock_mhz=10501,
            memory_over_c=22,
            memory_max_c=105,
            vram_mib=24564,
            bandwidth_gb_s=1008,
            tflops=165,
            uuid_prefix="GPU-c100c0de",
            shows_memory_temp=False,
            shows_margin=False,
        ),
        GpuKind(
            name="rtx3090",
            model_name="NVIDIA GeForce RTX 3090",
            source="measured",
            clock_mhz=1905,
            step_mhz=15,
            idle_clock_mhz=210,
            p_idle_w=25,
            p0_w=190,
            pd_w=130,
            exponent=2.5,
            prefill_power=1.2,
            limit_w=350,
            r1=0.030,
            t1_s=5,
            r2=0.100,
            t2_s=80,
            inlet_c=28,
            max_c=83,
            slowdown_c=92,
            boost_loss_mhz=5,
            boost_from_c=55,
            decode_share=0.45,
            prefill_share=0.85,
            memory_clock_mhz=9501,
            memory_over_c=24,
            memory_max_c=110,
            vram_mib=24576,
            bandwidth_gb_s=936,
            tflops=71,
            uuid_prefix="GPU-d100c0de",
            # A healthy one has this bit set in nearly every decode sample
            # (github.com/ashalliants/ninfer-3090/issues/72): no fault. At idle it is
            # set as well,
            # without the idle bit, in a capture of nvidia-smi of an RTX 2080 Super;
            # assumed
            # here, too.
            shows_memory_temp=False,
            shows_margin=False,
            power_cap_bit="always",
        ),
        GpuKind(
            name="rtx5090",
            model_name="NVIDIA GeForce RTX 5090",
            source="scaled",
            clock_mhz=2850,
            step_mhz=15,
            idle_clock_mhz=180,
            p_idle_w=30,
            p0_w=150,
            pd_w=330,
            exponent=2.4,
            prefill_power=1.2,
            limit_w=575,
            r1=0.020,
            t1_s=5,
            r2=0.070,
            t2_s=85,
            inlet_c=25,
            max_c=85,
            slowdown_c=92,
            boost_loss_mhz=3,
            boost_from_c=55,
            decode_share=0.30,
            prefill_share=0.85,
            memory_clock_mhz=14001,
            memory_over_c=22,
            memory_max_c=105,
            vram_mib=32607,
            bandwidth_gb_s=1792,
            tflops=209,
            uuid_prefix="GPU-e100c0de",
            shows_memory_temp=False,
            shows_margin=False,
        ),
        GpuKind(
            name="dgx-spark",
            model_name="NVIDIA GB10",
            source="measured",
            clock_mhz=2509,
            step_mhz=13,
            idle_clock_mhz=208,
            p_idle_w=5,
            p0_w=20,
            pd_w=45,
            exponent=2.0,
            prefill_power=1.2,
            limit_w=140,
            r1=0.150,
            t1_s=5,
            r2=0.520,
            t2_s=67,
            inlet_c=28,
            max_c=94,
            slowdown_c=96,
            boost_loss_mhz=4.5,
            boost_from_c=62,
            decode_share=0.20,
            prefill_share=0.80,
            memory_clock_mhz=4266,
            memory_over_c=8,
            memory_max_c=105,
            vram_mib=122502,
            bandwidth_gb_s=273,
            tflops=125,
            uuid_prefix="GPU-f100c0de",
            shows_memory_temp=False,
            shows_memory=False,
            shows_limit=False,
        ),
    )
}


def kind_of(name: str) -> GpuKind:
    """The constants of a kind of GPU. Raises UnknownGpuError."""
    if name not in GPU_KINDS:
        raise UnknownGpuError(
            f"there is no simulated GPU {name!r}; it is one of: {', '.join(GPU_KINDS)}"
        )
    return GPU_KINDS[name]
