"""What a GPU's signs say to a person: what is seen, what it predicts, and what to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from monitor.judge.drift.evidence import GpuWarning
from monitor.judge.drift.gpu.elasticity import Elasticity, Predicted
from monitor.judge.drift.gpu.forecast import minutes_to_limit
from monitor.judge.drift.gpu.history import GpuHistory
from monitor.judge.drift.gpu.readings import Stretch, merged
from monitor.judge.drift.gpu.rules import (
    EXPLAINING,
    MEMORY_FROM_C,
    Normal,
    little_room,
    residual_limit_c,
    room,
)
from monitor.judge.drift.settings import DriftSettings
from monitor.model import Cause, Severity

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW_MIN = 5
LOUDNESS = (Severity.PAGE, Severity.WARNING, Severity.INFO)
HELD_BACK_BITS = (
    0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80
)  # nvml.h: every reason that explains a low clock
LOW_POWER_SHARE = 0.85  # of the usual busy power
HIDDEN_SHARE = 0.10  # a hidden limit takes more clock than this
COOL_C = 3.0  # a core whose residual is below is as cool as ever
MEMORY_OVER_C, MEMORY_HOT_C = (
    12.0,
    85.0,
)  # V100: 78 °C beside a core of 62 °C is on the way, 85 °C is where it throttles
BINDING_SHARE = 0.97  # of a limit: power that comes so close is held back by it
WORTH_SAYING_SHARE = 0.005  # of the clock


class Scene(NamedTuple):
    """What a text is made of."""

    uuid: str
    history: GpuHistory
    usual: Stretch  # before it began
    normal: Normal
    elasticity: Elasticity
    settings: DriftSettings
    away_us: int | None = None  # when it was last seen, where that is long ago


class Told(NamedTuple):
    """One sign in words."""

    cause: Cause
    severity: Severity
    what: str
    look_at: str
    evidence: Mapping[str, Any]


def warned_of(signs: Mapping[str, int], scene: Scene) -> list[GpuWarning]:
    """Every open sign (name -> since) as a warning."""
    names = dict(signs)
    falls = [names.pop(name) for name in ("clock_deficit", "clock_fall") if name in names]
    if falls and not _is_explained(names, scene):
        names[_kind_of_deficit(_now(min(falls), scene), scene)] = min(falls)
    found = [
        _warned(name, since_us, _now(since_us, scene), scene) for name, since_us in names.items()
    ]
    return sorted(found, key=lambda w: (LOUDNESS.index(w.severity), w.since_us))


def _is_explained(names: Mapping[str, int], scene: Scene) -> bool:
    """Whether a low clock is the consequence of what is told anyway."""
    if any(name in names for name in (*EXPLAINING, "margin", "memory_residual")):
        return True
    since_us = names.get("thermal_residual")
    return since_us is not None and little_room(_now(since_us, scene), scene.normal, scene.settings)


def _now(since_us: int, scene: Scene) -> Stretch:
    """The newest busy minutes of those since it began."""
    minutes = scene.history.last(NOW_MIN)
    recent = [
        minute for minute in scene.history.last(NOW_MIN, busy=True) if minute.at_us >= since_us
    ] or minutes[-1:]
    return merged(recent) if recent else Stretch(since_us)


def _warned(name: str, since_us: int, now: Stretch, scene: Scene) -> GpuWarning:
    told = TELLERS[name](now, scene)
    usual_mhz = scene.usual.sm_clock_mhz
    costs, evidence = "", {"cause": told.cause.value, **told.evidence}
    if usual_mhz is not None and now.sm_clock_mhz is not None:
        evidence |= {"sm_clock_mhz": now.sm_clock_mhz, "usual_clock_mhz": usual_mhz}
        if now.sm_clock_mhz < usual_mhz * (1.0 - WORTH_SAYING_SHARE):
            predicted = scene.elasticity.predict(usual_mhz, now.sm_clock_mhz)
            costs = (
                f" At {now.sm_clock_mhz:.0f} instead of {usual_mhz:.0f} MHz {_expect(predicted)}."
            )
            evidence |= {"expected": dict(predicted._asdict())}
    away = ""
    if scene.away_us is not None:
        evidence["not_seen_since"] = (
            f"{_EPOCH + timedelta(microseconds=scene.away_us):%Y-%m-%d %H:%M} UTC"
        )
        away = f" (not seen since {evidence['not_seen_since']})"
    summary = f"GPU {scene.uuid}{away} {told.what}.{costs} Look at {told.look_at}."
    return GpuWarning(name, scene.uuid, told.severity, since_us, evidence, summary)


def _expect(p: Predicted) -> str:
    return (
        f"expect decode {p.decode_pct:+.0f} % ({p.decode_low_pct:+.0f} to "
        f"{p.decode_high_pct:+.0f}) and time to first token "
        f"{p.ttft_pct:+.0f} % ({p.ttft_low_pct:+.0f} to {p.ttft_high_pct:+.0f})"
    )


def _kind_of_deficit(now: Stretch, scene: Scene) -> str:
    """Held back by something that sets no reason bit: much less clock and less power than usual,
    and cool. Else just a low clock.
    """
    explained = (
        now.reasons is None or now.reasons & HELD_BACK_BITS or (now.thermal_duty or 0.0) > 0.0
    )
    usual_mhz, usual_w = now.usual_clock_mhz, scene.usual.power_w
    if (
        explained
        or now.sm_clock_mhz is None
        or usual_mhz is None
        or now.power_w is None
        or usual_w is None
    ):
        return "clock_deficit"
    slow, weak = (
        now.sm_clock_mhz < usual_mhz * (1.0 - HIDDEN_SHARE),
        now.power_w < usual_w * LOW_POWER_SHARE,
    )
    return "hidden_limit" if slow and weak and not _is_hot(now, scene) else "clock_deficit"


def _is_hot(now: Stretch, scene: Scene) -> bool:
    """Hotter than its power explains, and with little room."""
    return (now.residual_c or 0.0) > residual_limit_c(scene.normal, scene.settings) and little_room(
        now, scene.normal, scene.settings
    )


# -- one sentence a sign
# ----------------------------------------------------------------------------------------------


def _thermal_duty(now: Stretch, scene: Scene) -> Told:
    usual, cause = scene.normal.usual_thermal(), heat_cause(now, scene)
    if now.thermal_duty is not None:
        what = (
            f"is held back for heat {_share(now.thermal_duty)} of the time, usually at most "
            f"{_share(usual)}"
        )
        evidence: dict[str, Any] = {"thermal_duty": now.thermal_duty, "usual_thermal_duty": usual}
    else:
        what = (
            f"said that heat holds it back in {_share(now.thermal_bits or 0.0)} of the "
            "looks (its counter cannot be read)"
        )
        evidence = {"thermal_bits": now.thermal_bits}
    return Told(
        cause,
        Severity.WARNING,
        f"{what}: {_temperatures(now)}",
        _cooling(cause),
        evidence | _heat(now),
    )


def _hw_thermal(now: Stretch, scene: Scene) -> Told:
    cause = heat_cause(now, scene)
    what = f"cuts its clock in half or more, because it is too hot: {_temperatures(now)}"
    return Told(
        cause,
        Severity.PAGE,
        what,
        f"{_cooling(cause)}; take load off it until it is cool",
        _heat(now),
    )


def _brake(now: Stretch, scene: Scene) -> Told:  # noqa: ARG001 - one shape for all
    what = (
        "is braked from outside (HwPowerBrake): its clock is cut in half or more by the "
        "power supply or the rack"
    )
    return Told(
        Cause.POWER_BRAKE,
        Severity.PAGE,
        what,
        "the power supplies, their cables and the rack's power budget",
        _powers(now),
    )


def _margin(now: Stretch, scene: Scene) -> Told:
    cause = heat_cause(now, scene)
    what = (
        f"works {room(now, scene.settings) or 0:.0f} °C from where it slows itself down: "
        f"{_temperatures(now)}"
    )
    return Told(cause, Severity.WARNING, what, _cooling(cause), _heat(now))


def _hotter(residual_c: float | None) -> str:
    """By how much, where that is known at the power it draws now."""
    return "hotter" if residual_c is None or residual_c < 1.0 else f"{residual_c:.0f} °C hotter"


def _thermal_residual(now: Stretch, scene: Scene) -> Told:
    what = f"is {_hotter(now.residual_c)} than what it draws explains: {_temperatures(now)}"
    severity = Severity.WARNING if little_room(now, scene.normal, scene.settings) else Severity.INFO
    rooms = [
        left
        for minute in scene.history.last(NOW_MIN, busy=True)
        if (left := room(minute, scene.settings)) is not None
    ]
    left_min = minutes_to_limit(
        scene.history.minutes, min(rooms, default=None)
    )  # the hottest minute: bursts get there first
    pace = (
        ""
        if left_min is None
        else f"; at this pace it slows itself down in about {left_min:.0f} min"
    )
    evidence = _heat(now) | ({} if left_min is None else {"minutes_to_limit": round(left_min, 1)})
    return Told(Cause.HEAT, severity, what + pace, _cooling(Cause.HEAT), evidence)


def _memory_residual(now: Stretch, scene: Scene) -> Told:  # noqa: ARG001
    what = (
        f"has memory {_hotter(now.mem_residual_c)} than what it draws explains: "
        f"{_temperatures(now)}"
    )
    return Told(Cause.MEMORY_HEAT, Severity.WARNING, what, _cooling(Cause.MEMORY_HEAT), _heat(now))


def _clock_deficit(now: Stretch, scene: Scene) -> Told:
    cause = Cause.HEAT if _is_hot(now, scene) else Cause.UNEXPLAINED
    what = (
        f"runs slower than it does at this temperature and power: {_clock(now)}, "
        f"{_temperatures(now)}"
    )
    return Told(
        cause,
        Severity.WARNING,
        what,
        "locked clocks (nvidia-smi -q -d CLOCK) and the reasons it gives",
        _heat(now) | _powers(now),
    )


def _hidden_limit(now: Stretch, scene: Scene) -> Told:  # noqa: ARG001
    watts = "" if now.power_w is None else f" and draws only {now.power_w:.0f} W"
    what = f"is held back and does not say by what: {_clock(now)}, busy{watts}, cool, no reason bit"
    look_at = (
        "locked clocks (nvidia-smi -rgc lifts them) and the power supply: on a DGX Spark "
        "take it off the mains for a minute"
    )
    return Told(Cause.HIDDEN_LIMIT, Severity.WARNING, what, look_at, _heat(now) | _powers(now))


def _power_limit(now: Stretch, scene: Scene) -> Told:
    usual_w, limit_w = scene.normal.power_limit_w or 0.0, now.power_limit_w or 0.0
    binding = (
        now.power_w is None
        or now.power_w >= BINDING_SHARE * limit_w
        or (now.power_duty or 0.0) > 0.0
    )
    felt = "" if binding else "; it does not draw so much now"
    what = f"may draw {limit_w:.0f} W, and could draw {usual_w:.0f} W before{felt}"
    severity = Severity.WARNING if binding else Severity.INFO
    evidence = _powers(now) | {"usual_power_limit_w": usual_w, "binding": binding}
    return Told(
        Cause.POWER_CAP,
        severity,
        what,
        "who set the limit (nvidia-smi -q -d POWER; nvidia-smi -pl sets it)",
        evidence,
    )


def _power_duty(now: Stretch, scene: Scene) -> Told:
    usual = scene.normal.usual_power() or 0.0
    what = (
        f"is at its power cap {_share(now.power_duty or 0.0)} of the time, usually at most "
        f"{_share(usual)}"
    )
    evidence = _powers(now) | {"usual_power_duty": usual}
    return Told(
        Cause.POWER_CAP,
        Severity.WARNING,
        what,
        "the power limit (nvidia-smi -q -d POWER) and a changed workload",
        evidence,
    )


TELLERS: Mapping[str, Callable[[Stretch, Scene], Told]] = {
    "thermal_duty": _thermal_duty,
    "hw_thermal": _hw_thermal,
    "brake": _brake,
    "margin": _margin,
    "clock_deficit": _clock_deficit,
    "hidden_limit": _hidden_limit,
    "power_limit": _power_limit,
    "power_duty": _power_duty,
    "thermal_residual": _thermal_residual,
    "memory_residual": _memory_residual,
}


def _core_is_cool(now: Stretch, normal: Normal) -> bool:
    """No hotter than its power explains; where that is not learnt, clearly cooler than it was when
    nothing was wrong.
    """
    if now.residual_c is not None:
        return now.residual_c < COOL_C
    return (
        now.temp_c is not None
        and normal.hottest_c is not None
        and now.temp_c <= normal.hottest_c - COOL_C
    )


def heat_cause(now: Stretch, scene: Scene) -> Cause:
    """Core or memory: memory where it is hot, or hotter than its power explains, and the core is as
    cool as ever.

    A GPU that does not tell its memory's temperature slows down for core or memory (NVML,
    SwThermalSlowdown): when the core is no hotter than its power explains, it is the memory.
    """
    normal, max_c = scene.normal, scene.settings.memory_max_c
    if now.mem_temp_c is None:
        return Cause.MEMORY_HEAT if _core_is_cool(now, normal) else Cause.HEAT
    if now.temp_c is None or now.mem_temp_c < MEMORY_FROM_C:
        return Cause.HEAT
    near = max_c is not None and max_c - now.mem_temp_c < scene.settings.margin_c
    hot = (now.mem_residual_c or 0.0) > COOL_C or now.mem_temp_c >= MEMORY_HOT_C or near
    known_cool = now.residual_c is not None and now.residual_c < COOL_C
    cool = (
        known_cool
        or (normal.hottest_c is not None and now.temp_c <= normal.hottest_c)
        or now.mem_temp_c - now.temp_c >= MEMORY_OVER_C
    )
    return Cause.MEMORY_HEAT if hot and cool else Cause.HEAT


def _heat(now: Stretch) -> dict[str, Any]:
    names = (
        "temp_c",
        "mem_temp_c",
        "margin_c",
        "residual_c",
        "mem_residual_c",
        "thermal_duty",
        "util",
    )
    return {name: value for name in names if (value := getattr(now, name)) is not None}


def _powers(now: Stretch) -> dict[str, Any]:
    names = ("power_w", "power_limit_w", "power_duty", "brake_duty", "util")
    return {name: value for name in names if (value := getattr(now, name)) is not None}


def _share(duty: float) -> str:
    return f"{100.0 * duty:.0f} %"


def _clock(now: Stretch) -> str:
    usual = "" if now.usual_clock_mhz is None else f" instead of {now.usual_clock_mhz:.0f}"
    return f"{'an unknown clock' if now.sm_clock_mhz is None else f'{now.sm_clock_mhz:.0f}{usual} MHz'}"


def _temperatures(now: Stretch) -> str:
    parts = [] if now.temp_c is None else [f"{now.temp_c:.0f} °C"]
    parts += [] if now.mem_temp_c is None else [f"memory {now.mem_temp_c:.0f} °C"]
    parts += [] if now.margin_c is None else [f"{now.margin_c:.0f} °C left"]
    return ", ".join(parts) or "temperature unknown"


def _cooling(cause: Cause) -> str:
    if cause is Cause.MEMORY_HEAT:
        return "the memory's cooling (pads, backplate, airflow) and the memory clock"
    return "fans, dust, the air that comes in, and what else got hot beside it"
