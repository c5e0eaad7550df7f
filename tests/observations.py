"""Observations for the tests of causes, problems and their texts: a healthy GPU and a quiet server,
and what each cause does to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from monitor.judge.drift.evidence import (
    Effect,
    GpuComparison,
    Observations,
    Pair,
    ServerComparison,
    Shift,
)
from monitor.model import Severity

SAME = GpuComparison(
    "GPU-1",
    temp_c=Pair(55.0, 55.0),
    mem_temp_c=Pair(65.0, 65.0),
    margin_c=Pair(32.0, 32.0),
    residual_c=0.0,
    sm_clock_mhz=Pair(1980.0, 1980.0),
    mem_clock_mhz=Pair(2619.0, 2619.0),
    util=Pair(0.9, 0.9),
    power_w=Pair(400.0, 400.0),
    power_limit_w=Pair(700.0, 700.0),
    vram_used_mib=Pair(70_000.0, 70_000.0),
    thermal_duty=Pair(0.0, 0.0),
    power_duty=Pair(0.0, 0.0),
    brake_duty=Pair(0.0, 0.0),
    top_util=Pair(0.95, 0.95),
    top_power_w=Pair(405.0, 405.0),
)
QUIET = ServerComparison(
    running=Pair(4.0, 4.0),
    waiting=Pair(0.0, 0.0),
    queue_ms=Pair(1.0, 1.0),
    spec_acceptance=Pair(0.7, 0.7),
)


def effect(channel: str, change_pct: float = -8.0) -> Effect:
    """A change of a channel that began at 0."""
    metric = {"decode": "decode_tok_s", "ttft": "ttft_ms", "start": "decode_tok_s"}.get(
        channel, channel
    )
    return Effect(
        channel, Shift(metric, change_pct, change_pct - 1.0, change_pct + 1.0), 0, Severity.WARNING
    )


def observed(
    gpu: GpuComparison | None = SAME,
    server: ServerComparison = QUIET,
    felt: Mapping[str, float] | None = None,
    **more: Any,
) -> Observations:
    """One GPU, the server, and the effects by channel."""
    felt = {"decode": -8.0} if felt is None else felt
    effects = {channel: effect(channel, change) for channel, change in felt.items()}
    return Observations(effects, calm=(), gpus=() if gpu is None else (gpu,), server=server, **more)


HOT = replace(
    SAME,
    temp_c=Pair(55.0, 86.0),
    margin_c=Pair(32.0, 1.0),
    residual_c=30.0,
    sm_clock_mhz=Pair(1980.0, 1700.0),
    thermal_duty=Pair(0.0, 0.9),
    power_w=Pair(400.0, 320.0),
    top_power_w=Pair(405.0, 320.0),
)
HOT_MEMORY = replace(
    SAME,
    mem_temp_c=Pair(65.0, 97.0),
    margin_c=Pair(32.0, 1.0),
    sm_clock_mhz=Pair(1980.0, 1900.0),
    mem_clock_mhz=Pair(2619.0, 2200.0),
    thermal_duty=Pair(0.0, 0.9),
    power_w=Pair(400.0, 380.0),
)
CAPPED = replace(
    SAME,
    temp_c=Pair(55.0, 47.0),
    sm_clock_mhz=Pair(1980.0, 1640.0),
    power_w=Pair(400.0, 300.0),
    power_limit_w=Pair(700.0, 300.0),
    power_duty=Pair(0.0, 0.95),
    top_power_w=Pair(405.0, 300.0),
)
BRAKED = replace(
    SAME,
    temp_c=Pair(55.0, 40.0),
    sm_clock_mhz=Pair(1980.0, 990.0),
    power_w=Pair(400.0, 180.0),
    brake_duty=Pair(0.0, 0.9),
)
HIDDEN = replace(
    SAME,
    temp_c=Pair(55.0, 38.0),
    sm_clock_mhz=Pair(1980.0, 799.0),
    power_w=Pair(400.0, 150.0),
    top_power_w=Pair(405.0, 150.0),
)
WEAK = replace(SAME, top_power_w=Pair(405.0, 330.0), power_w=Pair(400.0, 330.0))
IDLE = replace(SAME, top_util=Pair(0.95, 0.63), top_power_w=Pair(405.0, 290.0), util=Pair(0.9, 0.6))
SHARED = replace(SAME, vram_used_mib=Pair(70_000.0, 74_000.0), power_w=Pair(400.0, 420.0))
