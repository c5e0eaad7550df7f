"""From observations to causes: each rule of the catalogue, and what is missing if none applies."""

from __future__ import annotations

from dataclasses import replace

import pytest
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

from monitor.judge.drift.cause.attribution import NO_GPU, attribute, readings
from monitor.judge.drift.cause.catalogue import CATALOGUE
from monitor.judge.drift.evidence import GpuComparison, Observations, Pair
from monitor.model import Cause, Kind

ROWS = [
    ("heat", Cause.HEAT, Kind.THERMAL, observed(HOT)),
    ("memory heat", Cause.MEMORY_HEAT, Kind.THERMAL, observed(HOT_MEMORY)),
    ("a power limit that was lowered", Cause.POWER_CAP, Kind.POWER, observed(CAPPED)),
    (
        "a lowered limit, which changes the digest too",
        Cause.POWER_CAP,
        Kind.POWER,
        observed(CAPPED, digest_changed_us=0),
    ),
    ("a power brake", Cause.POWER_BRAKE, Kind.POWER, observed(BRAKED)),
    ("a hidden limit", Cause.HIDDEN_LIMIT, Kind.SPEED, observed(HIDDEN)),
    (
        "a queue",
        Cause.QUEUEING,
        Kind.SERVICE_LEVEL,
        observed(SAME, replace(QUIET, waiting=Pair(0.0, 20.0)), {"level": 90.0}),
    ),
    (
        "drafts that do not fit",
        Cause.SPECULATION,
        Kind.SPEED,
        observed(SAME, replace(QUIET, spec_acceptance=Pair(0.7, 0.3))),
    ),
    (
        "a lost prefix cache",
        Cause.CACHE_LOST,
        Kind.SPEED,
        observed(SAME, QUIET, {"cache": 150.0}, digest_changed_us=0),
    ),
    (
        "another process on the GPU",
        Cause.NEIGHBOUR,
        Kind.SPEED,
        observed(SHARED, QUIET, {"decode": -30.0, "ttft": 45.0}),
    ),
    ("a busy processor", Cause.HOST_BOUND, Kind.SPEED, observed(IDLE)),
    (
        "a changed configuration",
        Cause.CONFIG_CHANGE,
        Kind.CONFIG_CHANGE,
        observed(SAME, digest_changed_us=0),
    ),
    (
        "other kernels",
        Cause.KERNEL_FALLBACK,
        Kind.SPEED,
        observed(WEAK, QUIET, {"start": -11.0, "ttft": 60.0}, restarted_us=0),
    ),
    ("a process that decays", Cause.UPTIME_DECAY, Kind.SPEED, observed(SAME, slope_per_h=-0.005)),
    (
        "a start that landed slow",
        Cause.SLOW_STATE,
        Kind.SLOW_START,
        observed(SAME, QUIET, {"start": -20.0, "decode": -20.0}, restarted_us=0),
    ),
    ("nothing that is seen", Cause.UNEXPLAINED, Kind.SPEED, observed(SAME)),
]


@pytest.mark.parametrize(
    ("cause", "kind", "seen"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_cause_of_slow_decoding_is(cause: Cause, kind: Kind, seen: Observations) -> None:
    found = attribute(seen)
    assert (found.cause, found.kind) == (cause, kind)


def test_the_catalogue_has_every_cause_that_a_detector_can_name() -> None:
    elsewhere = {Cause.ANSWERS_CHANGED, Cause.SERVER_FAULT, Cause.UNEXPLAINED}
    assert {rule.cause for rule in CATALOGUE} == set(Cause) - elsewhere


def test_a_gpu_that_was_always_at_its_power_limit_is_not_capped() -> None:
    always = replace(
        SAME,
        power_duty=Pair(0.98, 0.99),
        power_w=Pair(348.0, 349.0),
        power_limit_w=Pair(350.0, 350.0),
    )
    assert attribute(observed(always)).cause is Cause.UNEXPLAINED


def test_a_gpu_that_has_nothing_to_do_is_not_throttled() -> None:
    idle = replace(
        HIDDEN, util=Pair(0.9, 0.01), sm_clock_mhz=Pair(1980.0, 345.0), top_util=Pair(0.95, None)
    )
    assert attribute(observed(idle)).cause is not Cause.HIDDEN_LIMIT


def test_a_quiet_night_is_not_host_bound() -> None:
    night = replace(SAME, top_util=Pair(0.95, None), util=Pair(0.3, 0.2))
    assert (
        attribute(observed(night, replace(QUIET, running=Pair(0.35, 0.36)))).cause
        is Cause.UNEXPLAINED
    )
    waiting = replace(SAME, top_util=Pair(0.95, None), util=Pair(0.9, 0.3))
    assert (
        attribute(observed(waiting, replace(QUIET, running=Pair(2.0, 4.0)))).cause
        is Cause.HOST_BOUND
    )


def test_a_loss_that_grows_since_the_start_is_decay_although_the_gpu_waits_too() -> None:
    assert attribute(observed(IDLE, slope_per_h=-0.005)).cause is Cause.UPTIME_DECAY


def test_a_limit_that_was_lowered_and_does_not_bind_slows_nothing() -> None:
    roomy = replace(SAME, power_limit_w=Pair(700.0, 600.0))
    assert attribute(observed(roomy)).cause is Cause.UNEXPLAINED


def test_a_neighbour_on_a_gpu_that_shows_no_memory_is_seen_while_the_server_rests() -> None:
    shared = replace(SAME, vram_used_mib=Pair(), idle_util=Pair(0.0, 0.33))
    quiet = replace(QUIET, running=Pair(0.4, 0.6))
    assert attribute(observed(shared, quiet, {"decode": -30.0})).cause is Cause.NEIGHBOUR
    crowded = replace(QUIET, running=Pair(0.4, 3.0))
    assert attribute(observed(shared, crowded, {"decode": -30.0})).cause is Cause.UNEXPLAINED


def test_memory_that_shows_no_temperature_is_hot_when_the_core_is_not() -> None:
    unseen = replace(HOT_MEMORY, mem_temp_c=Pair(), margin_c=Pair())
    assert attribute(observed(unseen)).cause is Cause.MEMORY_HEAT


def test_a_core_that_its_governor_holds_at_the_limit_is_hot_although_it_gets_no_hotter() -> None:
    held = replace(HOT, mem_temp_c=Pair(), temp_c=Pair(84.0, 85.0), residual_c=9.0)
    assert attribute(observed(held)).cause is Cause.HEAT


def test_slow_kernels_that_make_a_queue_are_the_cause_and_not_the_queue() -> None:
    flow = replace(QUIET, waiting=Pair(0.0, 5.0), queue_ms=Pair(2.0, 300.0))
    assert (
        attribute(observed(WEAK, flow, {"start": -11.0, "ttft": 60.0}, restarted_us=0)).cause
        is Cause.KERNEL_FALLBACK
    )


def test_a_slow_state_moves_prefill_and_decode_alike() -> None:
    alike = observed(SAME, QUIET, {"start": -20.0, "ttft": 24.0}, restarted_us=0)
    assert attribute(alike).cause is Cause.SLOW_STATE
    apart = observed(SAME, QUIET, {"start": -10.0, "ttft": 60.0}, restarted_us=0)
    assert attribute(apart).cause is Cause.KERNEL_FALLBACK


def test_heat_is_named_by_clock_and_temperature_where_the_counter_is_missing() -> None:
    blind = replace(HOT, thermal_duty=Pair(), power_duty=Pair(), brake_duty=Pair())
    assert attribute(observed(blind)).cause is Cause.HEAT


def test_a_gpu_that_lost_boost_bins_to_heat_is_hot_although_no_counter_ran() -> None:
    warm = replace(
        SAME, temp_c=Pair(62.0, 82.0), residual_c=18.0, sm_clock_mhz=Pair(2590.0, 2530.0)
    )
    assert attribute(observed(warm)).cause is Cause.HEAT


def test_a_heat_sink_that_is_still_warm_from_more_power_is_no_heat() -> None:
    after = replace(CAPPED, power_limit_w=Pair(), temp_c=Pair(62.0, 62.0), residual_c=6.0)
    assert attribute(observed(after)).cause is Cause.POWER_CAP


def test_more_work_that_makes_a_gpu_hotter_is_not_heat() -> None:
    worked = replace(SAME, temp_c=Pair(45.0, 60.0), residual_c=0.5, power_w=Pair(250.0, 400.0))
    assert attribute(observed(worked)).cause is Cause.UNEXPLAINED


def test_without_evidence_no_cause_is_guessed_and_the_missing_readings_are_named() -> None:
    blind = GpuComparison(
        "GPU-1",
        temp_c=Pair(55.0, 55.0),
        sm_clock_mhz=Pair(1980.0, 1700.0),
        power_w=Pair(400.0, 330.0),
    )
    found = attribute(observed(blind))
    assert found.cause is Cause.UNEXPLAINED
    assert {"power_duty", "brake_duty"} <= set(found.missing)


def test_without_any_gpu_the_readings_of_a_gpu_are_what_is_missing() -> None:
    found = attribute(observed(None))
    assert found.cause is Cause.UNEXPLAINED
    assert found.missing == (NO_GPU,)


def test_a_cause_with_evidence_has_no_missing_readings() -> None:
    assert attribute(observed(replace(HOT, power_limit_w=Pair(), brake_duty=Pair()))).missing == ()


def test_the_gpu_that_shows_it_is_named() -> None:
    two = replace(observed(), gpus=(replace(SAME, uuid="GPU-cool"), replace(HOT, uuid="GPU-hot")))
    found = attribute(two)
    assert found.gpu is not None
    assert found.gpu.uuid == "GPU-hot"


def test_a_second_cause_with_evidence_is_also_possible() -> None:
    found = attribute(observed(replace(HOT, vram_used_mib=Pair(70_000.0, 74_000.0))))
    assert found.cause is Cause.HEAT
    assert Cause.NEIGHBOUR in found.also


def test_a_queue_explains_waiting_but_no_slow_decoding() -> None:
    flow = replace(QUIET, waiting=Pair(0.0, 20.0))
    assert attribute(observed(SAME, flow, {"decode": -8.0})).cause is Cause.UNEXPLAINED


def test_only_known_readings_are_evidence() -> None:
    found = readings(observed(replace(HOT, mem_temp_c=Pair())), replace(HOT, mem_temp_c=Pair()))
    assert found["thermal_duty"] == Pair(0.0, 0.9)
    assert "mem_temp_c" not in found
