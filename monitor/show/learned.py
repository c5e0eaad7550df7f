"""The learned model of a target: how speed depends on load and clock, and how the temperature of a
GPU depends on its power.
"""

from __future__ import annotations

import math
from typing import Any

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.elasticity import ElasticityEstimate
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.drift.speed.channel import SpeedBaseline
from monitor.judge.drift.speed.load import UNKNOWN_BIN
from monitor.judge.drift.speed.track import MetricTrack
from monitor.show.terminal import console, number
from monitor.text import printable

THERMAL_UNIT_W = 100.0


def learned_record(detector: Detector, settings: DriftSettings) -> dict[str, Any]:
    """Returns the learned model as JSON values. What is not known yet is null; `missing` says what
    is still needed.
    """
    baseline = detector.speed.baselines[-1] if detector.speed.baselines else None
    return {
        "load": None
        if baseline is None
        else {name: _curve(baseline, getattr(baseline, name), sign) for name, sign in _METRICS},
        "clock": {
            "decode": _slope(detector.elasticity.decode()),
            "prefill": _slope(detector.elasticity.prefill()),
        },
        "gpus": [_gpu(gpu) for _, gpu in sorted(detector.gpus.items())],
        "missing": [
            f"{part.what}: {part.detail}" for part in detector.armed(settings) if not part.armed
        ],
    }


# lower is worse in the model, so times have their sign inverted
_METRICS = (("decode", 1.0), ("ttft", -1.0))


def _curve(baseline: SpeedBaseline, track: MetricTrack, sign: float) -> dict[str, Any] | None:
    """Returns the speed of each probe at the lightest load, and its change with concurrent
    requests; each with the number of canaries.
    """
    curve = track.model.curve
    if curve is None:
        return None
    names = {str(key): name for name, key in baseline.keys.items()}
    known = str(UNKNOWN_BIN) not in curve.peers
    nodes = sorted(curve.peers.values(), key=lambda node: node.at) if known else []
    # the zero of the curve is arbitrary: changes are shown relative to the lightest load
    least = nodes[0].height if nodes else 0.0
    alone = {
        names.get(key, key): math.exp(sign * (level + least))
        for key, level in sorted(curve.levels.items())
    }
    loads = [
        {
            "others": math.expm1(node.at),
            "change_pct": 100 * math.expm1(sign * (node.height - least)),
            "canaries": node.canaries,
        }
        for node in nodes
    ]
    return {
        "usual": alone,
        "loads": loads,
        "canaries": track.model.canaries,
        "outside": track.model.outside,
    }


def _slope(slope: ElasticityEstimate) -> dict[str, Any]:
    """Returns the per cent of speed for one per cent of clock; without own samples, a published
    value.
    """
    return {"value": slope.value, "low": slope.low, "high": slope.high, "samples": slope.samples}


def _gpu(gpu: GpuChannel) -> dict[str, Any]:
    thermal, clock = gpu.baseline.thermal, gpu.baseline.clock
    rise = sum(thermal.core.slopes[1:]) if thermal.armed else None
    return {
        "uuid": gpu.uuid,
        "heat_minutes": thermal.core.count,
        "c_per_100_w": None if rise is None else rise * THERMAL_UNIT_W,
        "heat_sd_c": thermal.core.sd if thermal.armed else None,
        "clock_minutes": clock.minutes,
        "top_clock_mhz": clock.top_mhz if clock.armed else None,
        "missing": list(gpu.missing()),
    }


def print_learned(target: str, learned: dict[str, Any]) -> None:
    """Prints the learned model."""
    out = console()
    out.print(printable(target), style="bold")
    for name, what, unit in (
        ("decode", "decode rate", "tokens/s"),
        ("ttft", "time to first token", "ms"),
    ):
        _print_curve(out, what, unit, None if learned["load"] is None else learned["load"][name])
    for name, what in (("decode", "decode"), ("prefill", "prefill")):
        slope = learned["clock"][name]
        own = f"from {slope['samples']} samples at other clocks"
        source = own if slope["samples"] else "a published value: the clock has not varied yet"
        bounds = f"{slope['low']:.2f} to {slope['high']:.2f}"
        out.print(
            f"  clock: 1 % of SM clock changes {what} speed by {slope['value']:.2f} % ({bounds}), "
            f"{source}"
        )
    for gpu in learned["gpus"]:
        rise, sd = number(gpu["c_per_100_w"], 1, " °C"), number(gpu["heat_sd_c"], 1, " °C")
        heat = (
            f"+{rise} per 100 W, ±{sd}"
            if (gpu["c_per_100_w"] or 0.0) > 0
            else "temperature model not known yet"
        )
        out.print(f"  GPU {printable(gpu['uuid'])}: {heat}, from {gpu['heat_minutes']} minutes")
        out.print(
            f"    highest clock under load {number(gpu['top_clock_mhz'], 0, ' MHz')}, from "
            f"{gpu['clock_minutes']} busy minutes"
        )
    for missing in learned["missing"]:
        out.print(f"  not learned yet: {printable(missing)}", style="yellow")


def _print_curve(out: Any, what: str, unit: str, curve: dict[str, Any] | None) -> None:
    if curve is None:
        out.print(f"  {what}: dependence on load not known yet")
        return
    alone = ", ".join(
        f"{printable(name or 'all')} {number(value, 1)}" for name, value in curve["usual"].items()
    )
    out.print(
        f"  {what} without other requests, {unit}: {alone} (from {curve['canaries']} canaries)"
    )
    for load in curve["loads"][1:]:
        out.print(
            f"    with {load['others']:.1f} other requests {load['change_pct']:+.1f} % (from "
            f"{load['canaries']} canaries)"
        )
