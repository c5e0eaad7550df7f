"""From signs to causes: each row of the attribution table, and what is said when a proof cannot be
seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from monitor.judge.drift.cause.attribution import attribute, figures
from monitor.judge.drift.cause.catalogue import CATALOGUE
from monitor.judge.drift.evidence import (
    Effect,
    GpuComparison,
    Observations,
    Pair,
    ServerComparison,
    Shift,
)
from monitor.model import Cause, Kind, Severity

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
    metric = {"decode": "decode_tok_s", "ttft": "ttft_ms", "start": "decode_tok_s"}.get(
        channel, channel
    )
    return Effect(
        channel, Shift(metric, change_pct, change_pct - 1.0, change_pct + 1.0), 0, Severity.WARNING
    )


def signs(
    gpu: GpuComparison | None = SAME,
    flow: ServerComparison = QUIET,
    felt: Mapping[str, float] | None = None,
    **more: Any,
) -> Observations:
    felt = {"decode": -8.0} if felt is None else felt
    effects = {channel: effect(channel, change) for channel, change in felt.items()}
    return Observations(effects, calm=(), gpus=() if gpu is None else (gpu,), flow=flow, **more)


HOT = replace(
    SAME, temp_c=Pair(55.0, 86.0), margin_c=Pair(32.0, 1.0), residual_c=30.0, sm_clock_mhz=Pair(1980.0, 1700.0),
    thermal_duty=Pair(0.0, 0.9), power_w=Pair(400.0, 320.0), top_power_w=Pair(405.0, 320.0),
)  # fmt: skip
HOT_MEMORY = replace(
    SAME, mem_temp_c=Pair(65.0, 97.0), margin_c=Pair(32.0, 1.0), sm_clock_mhz=Pair(1980.0, 1900.0), mem_clock_mhz=Pair(2619.0, 2200.0),
    thermal_duty=Pair(0.0, 0.9), power_w=Pair(400.0, 380.0),
)  # fmt: skip
CAPPED = replace(
    SAME, temp_c=Pair(55.0, 47.0), sm_clock_mhz=Pair(1980.0, 1640.0), power_w=Pair(400.0, 300.0), power_limit_w=Pair(700.0, 300.0),
    power_duty=Pair(0.0, 0.95), top_power_w=Pair(405.0, 300.0),
)  # fmt: skip
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

ROWS = [
    ("heat", Cause.HEAT, Kind.THERMAL, signs(HOT)),
    ("memory heat", Cause.MEMORY_HEAT, Kind.THERMAL, signs(HOT_MEMORY)),
    ("a power limit that was lowered", Cause.POWER_CAP, Kind.POWER, signs(CAPPED)),
    (
        "a lowered limit, which changes the digest too",
        Cause.POWER_CAP,
        Kind.POWER,
        signs(CAPPED, digest_changed_us=0),
    ),
    ("a power brake", Cause.POWER_BRAKE, Kind.POWER, signs(BRAKED)),
    ("a hidden limit", Cause.HIDDEN_LIMIT, Kind.SPEED, signs(HIDDEN)),
    (
        "a queue",
        Cause.QUEUEING,
        Kind.SERVICE_LEVEL,
        signs(SAME, replace(QUIET, waiting=Pair(0.0, 20.0)), {"level": 90.0}),
    ),
    (
        "drafts that do not fit",
        Cause.SPECULATION,
        Kind.SPEED,
        signs(SAME, replace(QUIET, spec_acceptance=Pair(0.7, 0.3))),
    ),
    (
        "a lost prefix cache",
        Cause.CACHE_LOST,
        Kind.SPEED,
        signs(SAME, QUIET, {"cache": 150.0}, digest_changed_us=0),
    ),
    (
        "another process on the GPU",
        Cause.NEIGHBOUR,
        Kind.SPEED,
        signs(SHARED, QUIET, {"decode": -30.0, "ttft": 45.0}),
    ),
    ("a busy processor", Cause.HOST_BOUND, Kind.SPEED, signs(IDLE)),
    (
        "a changed configuration",
        Cause.CONFIG_CHANGE,
        Kind.CONFIG_CHANGE,
        signs(SAME, digest_changed_us=0),
    ),
    (
        "other kernels",
        Cause.KERNEL_FALLBACK,
        Kind.SPEED,
        signs(WEAK, QUIET, {"start": -11.0, "ttft": 60.0}, restarted_us=0),
    ),
    ("a process that decays", Cause.UPTIME_DECAY, Kind.SPEED, signs(SAME, slope_per_h=-0.005)),
    (
        "a start that landed slow",
        Cause.SLOW_STATE,
        Kind.SLOW_START,
        signs(SAME, QUIET, {"start": -20.0, "decode": -20.0}, restarted_us=0),
    ),
    ("nothing that is seen", Cause.UNEXPLAINED, Kind.SPEED, signs(SAME)),
]


@pytest.mark.parametrize(
    ("cause", "kind", "seen"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_cause_of_slow_decoding_is(cause: Cause, kind: Kind, seen: Observations) -> None:
    found = attribute(seen)
    assert (found.cause, found.kind) == (cause, kind)


def test_the_table_has_every_cause_that_a_detector_can_name() -> None:
    elsewhere = {Cause.ANSWERS_CHANGED, Cause.SERVER_FAULT, Cause.UNEXPLAINED}
    assert {profile.cause for profile in CATALOGUE} == set(Cause) - elsewhere


def test_a_gpu_that_was_always_at_its_power_limit_is_not_capped() -> None:
    always = replace(
        SAME,
        power_duty=Pair(0.98, 0.99),
        power_w=Pair(348.0, 349.0),
        power_limit_w=Pair(350.0, 350.0),
    )
    assert attribute(signs(always)).cause is Cause.UNEXPLAINED


def test_a_gpu_that_has_nothing_to_do_is_not_held_back() -> None:
    idle = replace(
        HIDDEN, util=Pair(0.9, 0.01), sm_clock_mhz=Pair(1980.0, 345.0), top_util=Pair(0.95, None)
    )
    assert attribute(signs(idle)).cause is not Cause.HIDDEN_LIMIT


def test_a_quiet_night_is_no_busy_processor() -> None:
    night = replace(SAME, top_util=Pair(0.95, None), util=Pair(0.3, 0.2))
    assert (
        attribute(signs(night, replace(QUIET, running=Pair(0.35, 0.36)))).cause is Cause.UNEXPLAINED
    )
    waiting = replace(SAME, top_util=Pair(0.95, None), util=Pair(0.9, 0.3))
    assert (
        attribute(signs(waiting, replace(QUIET, running=Pair(2.0, 4.0)))).cause is Cause.HOST_BOUND
    )


def test_a_loss_that_grows_since_the_start_is_decay_although_the_gpu_waits_too() -> None:
    assert attribute(signs(IDLE, slope_per_h=-0.005)).cause is Cause.UPTIME_DECAY


def test_a_limit_that_was_lowered_and_does_not_bind_slows_nothing() -> None:
    roomy = replace(SAME, power_limit_w=Pair(700.0, 600.0))
    assert attribute(signs(roomy)).cause is Cause.UNEXPLAINED


def test_a_neighbour_on_a_gpu_that_shows_no_memory_is_seen_while_the_server_rests() -> None:
    shared = replace(SAME, vram_used_mib=Pair(), idle_util=Pair(0.0, 0.33))
    quiet = replace(QUIET, running=Pair(0.4, 0.6))
    assert attribute(signs(shared, quiet, {"decode": -30.0})).cause is Cause.NEIGHBOUR
    crowded = replace(QUIET, running=Pair(0.4, 3.0))
    assert attribute(signs(shared, crowded, {"decode": -30.0})).cause is Cause.UNEXPLAINED


def test_memory_that_shows_no_temperature_is_hot_when_the_core_is_not() -> None:
    unseen = replace(HOT_MEMORY, mem_temp_c=Pair(), margin_c=Pair())
    assert attribute(signs(unseen)).cause is Cause.MEMORY_HEAT


def test_a_core_that_its_governor_holds_at_the_limit_is_hot_although_it_gets_no_hotter() -> None:
    held = replace(HOT, mem_temp_c=Pair(), temp_c=Pair(84.0, 85.0), residual_c=9.0)
    assert attribute(signs(held)).cause is Cause.HEAT


def test_slow_kernels_that_make_a_queue_are_the_cause_and_not_the_queue() -> None:
    flow = replace(QUIET, waiting=Pair(0.0, 5.0), queue_ms=Pair(2.0, 300.0))
    assert (
        attribute(signs(WEAK, flow, {"start": -11.0, "ttft": 60.0}, restarted_us=0)).cause
        is Cause.KERNEL_FALLBACK
    )


def test_a_slow_state_moves_prefill_and_decode_alike() -> None:
    alike = signs(SAME, QUIET, {"start": -20.0, "ttft": 24.0}, restarted_us=0)
    assert attribute(alike).cause is Cause.SLOW_STATE
    apart = signs(SAME, QUIET, {"start": -10.0, "ttft": 60.0}, restarted_us=0)
    assert attribute(apart).cause is Cause.KERNEL_FALLBACK


def test_heat_is_named_by_clock_and_temperature_where_the_counter_is_missing() -> None:
    blind = replace(HOT, thermal_duty=Pair(), power_duty=Pair(), brake_duty=Pair())
    assert attribute(signs(blind)).cause is Cause.HEAT


def test_a_gpu_that_lost_boost_bins_to_heat_is_hot_although_no_counter_ran() -> None:
    warm = replace(
        SAME, temp_c=Pair(62.0, 82.0), residual_c=18.0, sm_clock_mhz=Pair(2590.0, 2530.0)
    )
    assert attribute(signs(warm)).cause is Cause.HEAT


def test_a_heat_sink_that_is_still_warm_from_more_power_is_no_heat() -> None:
    after = replace(CAPPED, power_limit_w=Pair(), temp_c=Pair(62.0, 62.0), residual_c=6.0)
    assert attribute(signs(after)).cause is Cause.POWER_CAP


def test_more_work_that_makes_a_gpu_hotter_is_not_heat() -> None:
    worked = replace(SAME, temp_c=Pair(45.0, 60.0), residual_c=0.5, power_w=Pair(250.0, 400.0))
    assert attribute(signs(worked)).cause is Cause.UNEXPLAINED


def test_what_cannot_be_proven_is_not_guessed_and_the_missing_reading_is_named() -> None:
    blind = GpuComparison(
        "GPU-1",
        temp_c=Pair(55.0, 55.0),
        sm_clock_mhz=Pair(1980.0, 1700.0),
        power_w=Pair(400.0, 330.0),
    )
    found = attribute(signs(blind))
    assert found.cause is Cause.UNEXPLAINED
    assert any("DCGM_FI_DEV_POWER_VIOLATION" in text for text in found.missing)
    assert any("DCGM_FI_DEV_CLOCKS_EVENT_REASONS" in text for text in found.missing)


def test_without_any_gpu_the_readings_of_a_gpu_are_what_is_missing() -> None:
    found = attribute(signs(None))
    assert found.cause is Cause.UNEXPLAINED
    assert "none is watched" in found.missing[0]


def test_a_proven_cause_needs_no_list_of_missing_readings() -> None:
    assert attribute(signs(replace(HOT, power_limit_w=Pair(), brake_duty=Pair()))).missing == ()


def test_the_gpu_that_shows_it_is_named() -> None:
    two = replace(signs(), gpus=(replace(SAME, uuid="GPU-cool"), replace(HOT, uuid="GPU-hot")))
    found = attribute(two)
    assert found.gpu is not None
    assert found.gpu.uuid == "GPU-hot"


def test_a_second_cause_that_is_proven_as_well_is_told_beside_the_first() -> None:
    found = attribute(signs(replace(HOT, vram_used_mib=Pair(70_000.0, 74_000.0))))
    assert found.cause is Cause.HEAT
    assert Cause.NEIGHBOUR in found.also


def test_a_queue_explains_waiting_but_no_slow_decoding() -> None:
    flow = replace(QUIET, waiting=Pair(0.0, 20.0))
    assert attribute(signs(SAME, flow, {"decode": -8.0})).cause is Cause.UNEXPLAINED


def test_readings_travel_as_evidence_only_where_they_are_known() -> None:
    found = figures(signs(replace(HOT, mem_temp_c=Pair())), replace(HOT, mem_temp_c=Pair()))
    assert found["thermal_duty"] == {"before": 0.0, "now": 0.9}
    assert "mem_temp_c" not in found
