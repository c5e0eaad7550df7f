"""What a detector has learnt of its target, in figures for people: how speed depends on load, what
a clock costs, what a GPU's heat is.
"""

from __future__ import annotations

import math
from typing import Any

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.gpu.elasticity import Slope
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.drift.speed.channel import Reference
from monitor.judge.drift.speed.load import UNKNOWN_BIN
from monitor.judge.drift.speed.track import Track
from monitor.show.terminal import console, number
from monitor.text import printable

THERMAL_UNIT_W = 100.0


def learnt_record(detector: Detector, settings: DriftSettings) -> dict[str, Any]:
    """As JSON. What is not known yet is null, and `missing` says what it still needs."""
    reference = detector.speed.references[-1] if detector.speed.references else None
    return {
        "load": None
        if reference is None
        else {name: _curve(reference, getattr(reference, name), sign) for name, sign in _METRICS},
        "clock": {
            "decode": _slope(detector.elasticity.decode()),
            "prefill": _slope(detector.elasticity.prefill()),
        },
        "gpus": [_gpu(gpu) for _, gpu in sorted(detector.gpus.items())],
        "missing": [
            f"{part.what}: {part.detail}" for part in detector.armed(settings) if not part.armed
        ],
    }


_METRICS = (
    ("decode", 1.0),
    ("ttft", -1.0),
)  # inside, lower is worse: a time stands there with its sign turned


def _curve(reference: Reference, track: Track, sign: float) -> dict[str, Any] | None:
    """What each probe shows alone, and by how much that changes beside others; from how many
    canaries.
    """
    curve = track.curve
    if curve is None:
        return None
    names = {str(key): name for name, key in reference.keys.items()}
    known = str(UNKNOWN_BIN) not in curve.mates
    nodes = sorted(curve.mates.values(), key=lambda node: node.at) if known else []
    least = (
        nodes[0].height if nodes else 0.0
    )  # the curve's own zero is anywhere; people count from the lightest load
    usual = {
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
    return {"usual": usual, "loads": loads, "canaries": track.canaries, "outside": track.outside}


def _slope(slope: Slope) -> dict[str, Any]:
    """Per cent of speed for one per cent of clock. Without samples of its own it is what others
    measured.
    """
    return {"value": slope.value, "low": slope.low, "high": slope.high, "samples": slope.samples}


def _gpu(gpu: GpuChannel) -> dict[str, Any]:
    thermal, clock = gpu.normal.thermal, gpu.normal.clock
    rise = sum(thermal.core.slopes[1:]) if thermal.armed else None
    return {
        "uuid": gpu.uuid,
        "heat_minutes": thermal.core.seen,
        "c_per_100_w": None if rise is None else rise * THERMAL_UNIT_W,
        "heat_sd_c": thermal.core.sd if thermal.armed else None,
        "clock_minutes": clock.minutes,
        "top_clock_mhz": clock.top_mhz if clock.armed else None,
        "missing": list(gpu.missing()),
    }


def print_learnt(target: str, learnt: dict[str, Any]) -> None:
    """For people."""
    out = console()
    out.print(printable(target), style="bold")
    for name, what, unit in (
        ("decode", "decode rate", "tokens/s"),
        ("ttft", "time to first token", "ms"),
    ):
        _print_curve(out, what, unit, None if learnt["load"] is None else learnt["load"][name])
    for name, what in (("decode", "decode"), ("prefill", "prefill")):
        slope = learnt["clock"][name]
        own = f"from {slope['samples']} samples at other clocks"
        source = own if slope["samples"] else "as others measured it: its clock has not varied yet"
        bounds = f"{slope['low']:.2f} to {slope['high']:.2f}"
        out.print(
            f"  clock: 1 % of SM clock is {slope['value']:.2f} % of {what} speed ({bounds}), "
            f"{source}"
        )
    for gpu in learnt["gpus"]:
        rise, sd = number(gpu["c_per_100_w"], 1, " °C"), number(gpu["heat_sd_c"], 1, " °C")
        heat = (
            f"{rise} hotter for 100 W, ±{sd}"
            if (gpu["c_per_100_w"] or 0.0) > 0
            else "its power does not explain its heat yet"
        )
        out.print(f"  GPU {printable(gpu['uuid'])}: {heat}, from {gpu['heat_minutes']} minutes")
        out.print(
            f"    clock at work at most {number(gpu['top_clock_mhz'], 0, ' MHz')}, from "
            f"{gpu['clock_minutes']} busy minutes"
        )
    for missing in learnt["missing"]:
        out.print(f"  not enough yet: {printable(missing)}", style="yellow")


def _print_curve(out: Any, what: str, unit: str, curve: dict[str, Any] | None) -> None:
    if curve is None:
        out.print(f"  {what}: nothing is known yet of how it depends on load")
        return
    usual = ", ".join(
        f"{printable(name or 'all')} {number(value, 1)}" for name, value in curve["usual"].items()
    )
    out.print(f"  {what} alone, {unit}: {usual} (from {curve['canaries']} canaries)")
    for load in curve["loads"][1:]:
        out.print(
            f"    beside {load['others']:.1f} others {load['change_pct']:+.1f} % (from "
            f"{load['canaries']} canaries)"
        )
