"""What is wrong with a GPU, before users notice it: the condition and the figures it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from monitor.model.words import Cause, Severity


class Predicted(NamedTuple):
    """The expected effect of a clock on speed, in per cent; low and high bound it."""

    decode_pct: float
    decode_low_pct: float
    decode_high_pct: float
    ttft_pct: float
    ttft_low_pct: float
    ttft_high_pct: float


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """The figures that a condition rests on; None: unknown, or no part of this condition.

    The names are those of the evidence in JSON, which has no `least_margin_c`. Duties are shares of
    time, 0..1.
    """

    temp_c: float | None = None
    mem_temp_c: float | None = None
    margin_c: float | None = None
    least_margin_c: float | None = None  # of core and memory, if the memory's limit is configured
    residual_c: float | None = None
    mem_residual_c: float | None = None
    minutes_to_limit: float | None = None
    thermal_duty: float | None = None
    usual_thermal_duty: float | None = None
    thermal_bits: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    usual_power_limit_w: float | None = None
    binding: bool | None = None
    power_duty: float | None = None
    usual_power_duty: float | None = None
    brake_duty: float | None = None
    util: float | None = None
    sm_clock_mhz: float | None = None
    usual_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class GpuWarning:
    """One condition that holds for one GPU, for example `thermal_duty`."""

    condition: str
    uuid: str
    severity: Severity
    since_us: int
    cause: Cause = Cause.UNEXPLAINED
    figures: GpuFigures = GpuFigures()
    expected: Predicted | None = None
    not_seen_since_us: int | None = None  # set when the GPU has not been seen for long


@dataclass(frozen=True, slots=True)
class DriftDetail:
    """What a finding of drift knows of the GPUs beyond its evidence in JSON.

    `warnings` in the order of their importance; `gpu` is the GPU whose readings are the evidence.
    """

    warnings: tuple[GpuWarning, ...] = ()
    gpu: str | None = None
