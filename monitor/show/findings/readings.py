"""Readings, changes and shares as text: words, units, before and now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Unit(NamedTuple):
    """How a reading is shown."""

    words: str
    unit: str
    scale: float = 1.0
    digits: int = 0


#: Readings in the evidence of drift, by their names there.
READINGS: Mapping[str, Unit] = {
    "thermal_duty": Unit("thermally throttled", "% of the time", 100.0),
    "power_duty": Unit("power-throttled", "% of the time", 100.0),
    "brake_duty": Unit("external power brake", "% of the time", 100.0),
    "thermal_bits": Unit("thermally throttled", "% of readings", 100.0),
    "temp_c": Unit("core", "°C"),
    "mem_temp_c": Unit("memory", "°C"),
    "margin_c": Unit("margin to slowdown", "°C"),
    "thermal_residual_c": Unit("hotter than its power explains", "°C"),
    "residual_c": Unit("core hotter than its power explains", "°C"),
    "mem_residual_c": Unit("memory hotter than its power explains", "°C"),
    "sm_clock_mhz": Unit("SM clock", "MHz"),
    "mem_clock_mhz": Unit("memory clock", "MHz"),
    "power_w": Unit("power", "W"),
    "top_power_w": Unit("peak power", "W"),
    "power_limit_w": Unit("power limit", "W"),
    "vram_used_mib": Unit("memory in use", "MiB"),
    "util": Unit("utilisation", "%", 100.0),
    "top_util": Unit("peak utilisation", "%", 100.0),
    "idle_util": Unit("idle utilisation", "%", 100.0),
    "running": Unit("running", "requests", digits=1),
    "waiting": Unit("waiting", "requests", digits=1),
    "kv_usage": Unit("KV cache usage", "%", 100.0),
    "queue_ms": Unit("queue time", "ms"),
    "prefill_ms": Unit("prefill time", "ms"),
    "preemptions": Unit("preemptions", "per hour", digits=1),
    "steps_s": Unit("engine steps", "per second", digits=1),
    "spec_acceptance": Unit("accepted", "% of drafted tokens", 100.0),
    "prompt_len": Unit("prompt length", "tokens"),
    "cached_share": Unit("cached share of a repeated prompt", "%", 100.0),
}
LONG_MS = 10_000.0


class BeforeAndNow(NamedTuple):
    """One reading in its reference period and now, in its own unit."""

    before: float | None
    now: float


def figure(name: str, value: float | None) -> str:
    """Returns a value without its unit, "–" if it is unknown."""
    known = READINGS[name]
    return "–" if value is None else minus(f"{value * known.scale:.{known.digits}f}")


def phrase(name: str, reading: BeforeAndNow) -> str:
    """Returns "core 55 → 86 °C", "SM clock 1980 MHz (unchanged)" or "power 400 W"."""
    if name == "margin_c":
        return margin(reading.now)
    known = READINGS[name]
    if known.unit == "ms" and max(reading.now, reading.before or 0.0) >= LONG_MS:
        known = known._replace(unit="s", scale=0.001)
    shown = [
        minus(f"{value * known.scale:.{known.digits}f}") for value in reading if value is not None
    ]
    text = f"{known.words} {' → '.join(dict.fromkeys(shown))} {known.unit}"
    return f"{text} (unchanged)" if len(shown) == 2 and shown[0] == shown[1] else text


def margin(margin_c: float, whose: str = "the") -> str:
    """Returns "2 °C below the slowdown threshold"."""
    degrees = round(margin_c)
    if degrees == 0:
        return f"at {whose} slowdown threshold"
    return f"{abs(degrees)} °C {'below' if degrees > 0 else 'above'} {whose} slowdown threshold"


def share(value: float) -> str:
    """Returns a share of 0..1 as "90 %"."""
    return f"{100.0 * value:.0f} %"


def change(pct: float, digits: int = 1) -> str:
    """Returns a change with its sign: "−12.3 %"."""
    return f"{signed(pct, digits)} %"


def signed(value: float, digits: int = 1) -> str:
    """Returns a number with its sign, "0.0" without one."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else minus(text)


def minus(text: str) -> str:
    """Returns a number with the minus sign of printed text."""
    return text.replace("-", "−")
