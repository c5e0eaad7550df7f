"""One finding of each kind and cause that drift detection reports, as its detector makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from findings_examples import UUID
from observations import (
    BRAKED,
    CAPPED,
    HIDDEN,
    HOT,
    HOT_MEMORY,
    IDLE,
    QUIET,
    SAME,
    SHARED,
    WEAK,
    observed,
)

from monitor.judge.drift.evidence import Effect, GpuComparison, Observations, Pair, Shift
from monitor.judge.drift.problem.findings import finding_of
from monitor.judge.drift.problem.problem import Observed, Problem
from monitor.judge.drift.problem.problems import judge
from monitor.judge.drift.settings import MINUTE_US
from monitor.model import Cause, Finding, GpuFigures, GpuWarning, Predicted, Severity
from monitor.show.findings.texts import GpuName, GpuNames

ONSET_US = 1_700_000_000_000_000
SECOND = UUID[:-2] + "02"
NAMES = GpuNames({UUID[:-2] + f"0{n + 1}": GpuName(n, "H100") for n in range(4)})
METRICS = {"start": "decode_tok_s", "decode": "decode_tok_s", "steps": "engine_steps_s"}
HEAT = GpuFigures(
    temp_c=86.0,
    mem_temp_c=94.0,
    margin_c=1.6,
    thermal_duty=0.96,
    usual_thermal_duty=0.004,
    sm_clock_mhz=1700.0,
    usual_clock_mhz=1980.0,
)
POWER = GpuFigures(
    power_w=298.0,
    power_limit_w=300.0,
    usual_power_limit_w=700.0,
    binding=True,
    power_duty=0.95,
    util=0.96,
    sm_clock_mhz=1640.0,
    usual_clock_mhz=1980.0,
)
SLOWER = Predicted(-4.2, -6.1, -2.0, 13.0, 9.4, 16.2)


def effect(channel: str, change_pct: float) -> Effect:
    """A change of one channel since the onset; of a level the share of late canaries."""
    metric = METRICS.get(channel, "over_level" if channel == "level" else "ttft_ms")
    shift = Shift(metric, change_pct, change_pct - 1.1, change_pct + 0.9)
    level = {"over": 9, "of": 10, "waited_ms": 2040.0} if channel == "level" else {}
    return Effect(channel, shift, ONSET_US, Severity.WARNING, level)


def felt(
    seen: Observations, levels: Sequence[str] = (), warned: Sequence[GpuWarning] = ()
) -> Observed:
    """What the detector observes after the effects of an observation."""
    moved = {c: effect(c, e.shift.change_pct) for c, e in seen.effects.items() if c != "level"}
    gpus = tuple(replace(gpu, uuid=UUID) for gpu in seen.gpus)
    return Observed(
        effects=moved,
        levels={name: effect("level", 90.0) for name in levels},
        warned=warned,
        observations=replace(seen, effects=moved, gpus=gpus, since_us=ONSET_US),
    )


def warning(
    condition: str,
    cause: Cause,
    figures: GpuFigures = HEAT,
    severity: Severity = Severity.WARNING,
    uuid: str = UUID,
    expected: Predicted | None = SLOWER,
) -> GpuWarning:
    """A GPU that warns since a minute before the onset."""
    since_us = ONSET_US - MINUTE_US
    return GpuWarning(condition, uuid, severity, since_us, cause, figures, expected)


def early(*warnings: GpuWarning, calm: Sequence[str] = ("decode", "ttft")) -> Observed:
    """Warnings before any effect is measured."""
    return Observed({}, {}, warnings, Observations({}, tuple(calm)))


def finding(seen: Observed, minutes: float = 10.0) -> Finding:
    """The first finding after some minutes."""
    held: Mapping[str, Problem] = {}
    return finding_of(judge(seen, held, ONSET_US + round(minutes * MINUTE_US))[0], "local")


def each_gpu(condition: str, cause: Cause, count: int) -> list[GpuWarning]:
    """The same warning of several GPUs."""
    return [warning(condition, cause, uuid=UUID[:-2] + f"0{n + 1}") for n in reversed(range(count))]


HELD = warning("thermal_duty", Cause.HEAT)
QUEUE = replace(
    QUIET, waiting=Pair(0.0, 20.0), queue_ms=Pair(2.0, 20_000.0), kv_usage=Pair(0.1, 0.97)
)
BLIND = GpuComparison(UUID, temp_c=Pair(55.0, 55.0), sm_clock_mhz=Pair(1980.0, 1700.0))
LOW = {"decode": -12.3, "ttft": 14.8, "steps": -12.6}
APART = {"start": -11.0, "ttft": 60.0}

SEEN: Mapping[str, Observed] = {
    # measured effects, explained by comparing before and now
    "thermal-heat": felt(observed(HOT, felt=LOW)),
    "thermal-heat-no_counter": felt(
        observed(replace(HOT, thermal_duty=Pair(), power_duty=Pair(), brake_duty=Pair()), felt=LOW)
    ),
    "thermal-memory_heat": felt(observed(HOT_MEMORY, felt=LOW)),
    "power-power_cap": felt(observed(CAPPED, felt=LOW)),
    "power-power_brake": felt(observed(BRAKED, felt=LOW)),
    "speed-hidden_limit": felt(observed(HIDDEN, felt=LOW)),
    "service_level-queueing-no_level": felt(observed(SAME, QUEUE, {"ttft": 60.0})),
    "speed-speculation": felt(observed(SAME, replace(QUIET, spec_acceptance=Pair(0.7, 0.3)))),
    "speed-cache_lost": felt(
        observed(SAME, replace(QUIET, cached_share=Pair(0.96, 0.0)), {"cache": 150.0})
    ),
    "speed-neighbour": felt(observed(SHARED, QUIET, {"decode": -30.0, "ttft": 45.0})),
    "speed-host_bound": felt(observed(IDLE)),
    "speed-kernel_fallback": felt(observed(WEAK, QUIET, APART, restarted_us=0)),
    "speed-uptime_decay": felt(observed(SAME, slope_per_h=-0.005)),
    "speed-unexplained": felt(observed(SAME)),
    "speed-unexplained-missing_readings": felt(observed(BLIND)),
    "speed-unexplained-no_gpu": felt(observed(None)),
    "slow_start-slow_state": felt(observed(SAME, felt={"start": -20.0}, restarted_us=0)),
    "config_change-config_change": felt(observed(SAME, felt=LOW, digest_changed_us=0)),
    "config_change-config_change-compared": replace(
        early(), changed_us=ONSET_US, comparisons={"decode": "not enough yet", "ttft": "same"}
    ),
    "workload_shift": replace(early(), workload=(ONSET_US, 1012.4, 4048.8)),
    # service levels
    "service_level-queueing": felt(observed(SAME, QUEUE, {"ttft": 60.0}), ["chat"]),
    "service_level-queueing-two_classes": felt(observed(SAME, QUEUE, {}), ["batch", "chat"]),
    "service_level-unexplained": felt(observed(SAME, felt={}), ["chat"]),
    "service_level-config_change": felt(observed(SAME, felt={}, digest_changed_us=0), ["chat"]),
    # measured effects that GPUs warn of
    "thermal-heat-warned": felt(observed(HOT, felt=LOW), warned=[HELD]),
    "thermal-heat-warned_two_gpus": felt(
        observed(HOT, felt=LOW), warned=each_gpu("thermal_duty", Cause.HEAT, 2)
    ),
    "thermal-heat-warned_late_canaries": felt(
        observed(HOT, felt=LOW), ["chat"], [HELD, warning("margin", Cause.HEAT)]
    ),
    "speed-hidden_limit-warned": felt(
        observed(HIDDEN, felt=LOW),
        warned=[
            warning(
                "hidden_limit",
                Cause.HIDDEN_LIMIT,
                replace(POWER, temp_c=38.0, power_w=150.0, sm_clock_mhz=799.0),
            )
        ],
    ),
    # early warnings
    "thermal-heat-early": early(HELD),
    "thermal-heat-early_effect_not_known": early(HELD, calm=()),
    "thermal-heat-early_no_counter": early(
        replace(HELD, figures=GpuFigures(temp_c=86.0, thermal_bits=0.8), expected=None)
    ),
    "thermal-heat-early_not_seen": early(replace(HELD, not_seen_since_us=ONSET_US + 3 * MINUTE_US)),
    "thermal-heat-early_four_gpus": early(*each_gpu("thermal_duty", Cause.HEAT, 4)),
    "thermal-heat-early_page": early(
        replace(HELD, uuid=SECOND), warning("hw_thermal", Cause.HEAT, severity=Severity.PAGE)
    ),
    "thermal-heat-early_margin": early(
        warning("margin", Cause.HEAT, replace(HEAT, least_margin_c=1.6), expected=None)
    ),
    "thermal-heat-early_residual": early(
        warning(
            "thermal_residual",
            Cause.HEAT,
            replace(HEAT, thermal_duty=0.0, residual_c=13.6, margin_c=8.0, minutes_to_limit=11.6),
            expected=None,
        )
    ),
    "thermal-memory_heat-early_margin": early(
        warning(
            "margin",
            Cause.MEMORY_HEAT,
            GpuFigures(temp_c=70.0, mem_temp_c=83.0, least_margin_c=2.0),
            expected=None,
        )
    ),
    "thermal-memory_heat-early": early(
        warning("thermal_duty", Cause.MEMORY_HEAT, replace(HEAT, temp_c=52.0))
    ),
    "thermal-memory_heat-early_residual": early(
        warning(
            "memory_residual",
            Cause.MEMORY_HEAT,
            replace(HEAT, temp_c=50.0, mem_residual_c=29.4, margin_c=None),
            expected=None,
        )
    ),
    "thermal-heat-early_low_clock": early(warning("clock_deficit", Cause.HEAT)),
    "power-power_cap-early_limit": early(warning("power_limit", Cause.POWER_CAP, POWER)),
    "power-power_cap-early_limit_not_binding": early(
        warning(
            "power_limit",
            Cause.POWER_CAP,
            replace(POWER, power_limit_w=600.0, power_w=400.0, power_duty=0.0, binding=False),
            Severity.INFO,
            expected=None,
        )
    ),
    "power-power_cap-early_duty": early(
        warning("power_duty", Cause.POWER_CAP, replace(POWER, usual_power_duty=0.2))
    ),
    "power-power_brake-early": early(
        warning(
            "brake",
            Cause.POWER_BRAKE,
            replace(POWER, power_w=180.0, sm_clock_mhz=990.0),
            Severity.PAGE,
        )
    ),
    "speed-hidden_limit-early": early(
        warning(
            "hidden_limit",
            Cause.HIDDEN_LIMIT,
            replace(POWER, temp_c=38.0, power_w=150.0, sm_clock_mhz=799.0),
        )
    ),
    "speed-unexplained-early_low_clock": early(
        warning("clock_deficit", Cause.UNEXPLAINED, replace(POWER, temp_c=62.0))
    ),
}
EXAMPLES: Mapping[str, Finding] = {name: finding(seen) for name, seen in SEEN.items()}
