"""What is wrong with a GPU, as text: one entry per condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monitor.model import Cause, GpuFigures, GpuWarning
from monitor.model.times import from_us
from monitor.show.findings.causes import ACTIONS
from monitor.show.findings.fitting import begun
from monitor.show.findings.phrases import utc
from monitor.show.findings.readings import BeforeAndNow, change, margin, phrase, share
from monitor.show.findings.texts import GpuNames

LOCKED_CLOCKS = "Check locked clocks (nvidia-smi -q -d CLOCK) and the clocks event reasons."


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as text.

    `what` follows the name of the GPU: after "is" if it is an adjective, after a colon if not.
    """

    short: str
    what: Callable[[GpuFigures], str]
    readings: tuple[str, ...]
    adjective: bool = True


def _thermal_duty(figures: GpuFigures) -> str:
    if figures.thermal_duty is None:
        counted = share(figures.thermal_bits or 0.0)
        return f"thermally throttled in {counted} of readings (its counter cannot be read)"
    baseline = share(figures.usual_thermal_duty or 0.0)
    return f"thermally throttled {share(figures.thermal_duty)} of the time (baseline {baseline})"


def _power_duty(figures: GpuFigures) -> str:
    now, baseline = share(figures.power_duty or 0.0), share(figures.usual_power_duty or 0.0)
    return f"power-throttled {now} of the time (baseline {baseline})"


def _margin(figures: GpuFigures) -> str:
    if figures.least_margin_c is None:
        return "near its slowdown threshold"
    return margin(figures.least_margin_c, "its")


def _hotter(residual_c: float | None) -> str:
    """The residual, where it is known at the present power."""
    degrees = "" if residual_c is None or residual_c < 1.0 else f"{residual_c:.0f} °C "
    return f"{degrees}hotter than its power explains"


def _power_limit(figures: GpuFigures) -> str:
    before_w, now_w = figures.usual_power_limit_w or 0.0, figures.power_limit_w or 0.0
    return f"power limit lowered from {before_w:.0f} to {now_w:.0f} W"


def _clock(figures: GpuFigures) -> str:
    """The clock with its baseline, as far as they are known."""
    now, before = figures.sm_clock_mhz, figures.usual_clock_mhz
    if now is None:
        return "unknown"
    return f"{now:.0f} MHz" + ("" if before is None else f" (baseline {before:.0f} MHz)")


HEAT_READINGS = ("temp_c", "mem_temp_c", "margin_c")
CONDITIONS: Mapping[str, Condition] = {
    "brake": Condition(
        short="slowed by the external power brake",
        what=lambda figures: f"slowed by the external power brake to {_clock(figures)}",
        readings=("power_w",),
    ),
    "hw_thermal": Condition(
        short="in hardware thermal slowdown",
        what=lambda _figures: "in hardware thermal slowdown (clock cut to half or less)",
        readings=HEAT_READINGS,
    ),
    "thermal_duty": Condition("thermally throttled", _thermal_duty, HEAT_READINGS),
    "power_limit": Condition(
        "power limit lowered", _power_limit, ("power_w", "power_duty"), adjective=False
    ),
    "power_duty": Condition("power-throttled", _power_duty, ("power_w", "power_limit_w")),
    "hidden_limit": Condition(
        short="clock capped without a driver-reported reason",
        what=lambda figures: f"clock capped at {_clock(figures)} without a driver-reported reason",
        readings=("power_w", "util", "temp_c"),
        adjective=False,
    ),
    "margin": Condition("near its slowdown threshold", _margin, ("temp_c", "mem_temp_c")),
    "memory_residual": Condition(
        short="memory hotter than its power explains",
        what=lambda figures: f"memory {_hotter(figures.mem_residual_c)}",
        readings=HEAT_READINGS,
        adjective=False,
    ),
    "clock_deficit": Condition(
        short="SM clock below its baseline",
        what=lambda figures: f"SM clock {_clock(figures)}",
        readings=("temp_c", "power_w"),
        adjective=False,
    ),
    "thermal_residual": Condition(
        "hotter than its power explains",
        lambda figures: _hotter(figures.residual_c),
        HEAT_READINGS,
    ),
}
ORDER = tuple(CONDITIONS)


def in_order(warnings: Sequence[GpuWarning], subject: str) -> list[GpuWarning]:
    """Returns the warnings as they are reported: the most severe first, then those of the GPU that
    the incident is named after, then what the driver counts before what follows from it.
    """
    return sorted(
        warnings,
        key=lambda w: (
            -w.severity.rank,
            w.uuid != subject,
            ORDER.index(w.condition),
            w.uuid,
        ),
    )


def gpu_with(warning: GpuWarning, names: GpuNames) -> str:
    """Returns the name of the GPU and when it was last seen, if that is long ago."""
    name, gone = names.of(warning.uuid), warning.not_seen_since_us
    return name if gone is None else f"{name}, last seen at {utc(from_us(gone))},"


def state(warning: GpuWarning) -> str:
    """Returns the condition with its figures, to follow the name of the GPU."""
    return CONDITIONS[warning.condition].what(warning.figures)


def is_adjective(warning: GpuWarning) -> bool:
    """Returns whether the condition follows "is"."""
    return CONDITIONS[warning.condition].adjective


def readings_of(warning: GpuWarning) -> list[str]:
    """Returns the readings that show the condition: "core 86 °C", "memory 94 °C"."""
    figures, names = warning.figures, CONDITIONS[warning.condition].readings
    if warning.cause is Cause.MEMORY_HEAT:
        names = tuple(sorted(names, key=lambda name: name != "mem_temp_c"))
    known = {name: getattr(figures, name) for name in names}
    shown = [
        phrase(name, BeforeAndNow(None, value))
        for name, value in known.items()
        if value is not None and not (name == "power_duty" and value == 0)
    ]
    if figures.minutes_to_limit is not None:
        shown.append(f"which it will reach in about {figures.minutes_to_limit:.0f} min")
    return shown


def expectation(warning: GpuWarning) -> str:
    """Returns the expected effect: "decode −4 %, time to first token +13 % at 1691 MHz"."""
    expected, clock_mhz = warning.expected, warning.figures.sm_clock_mhz
    if expected is None or clock_mhz is None:
        return ""
    decode, ttft = change(expected.decode_pct, 0), change(expected.ttft_pct, 0)
    return f"decode {decode}, time to first token {ttft} at {clock_mhz:.0f} MHz"


def action(warning: GpuWarning) -> str:
    """Returns what to do."""
    if warning.cause is Cause.UNEXPLAINED:
        return LOCKED_CLOCKS
    first = "Reduce its load. " if warning.condition == "hw_thermal" else ""
    return f"{first}{ACTIONS[warning.cause]}"


def also_affected(warnings: Sequence[GpuWarning], names: GpuNames) -> str:
    """Returns the other GPUs of a list of warnings as a sentence, at most two by name."""
    others = list(dict.fromkeys(w.uuid for w in warnings if w.uuid != warnings[0].uuid))
    if not others:
        return ""
    named = [names.of(uuid) for uuid in others[:2]]
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return begun(f"also affected: {', '.join(named)}{more}.")
