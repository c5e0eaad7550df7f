"""The simulated GPU against measured steady states, and the order in which a failing one shows
itself.
"""

from __future__ import annotations

import time

import pytest

from monitor.simulate.gpu.gpu import DriverReading, Gpu
from monitor.simulate.gpu.kinds import GPU_KINDS, UnknownGpuError, kind_of
from monitor.simulate.gpu.physics import (
    GPU_IDLE,
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    SW_POWER_CAP,
    SW_THERMAL,
)


def settled(
    gpu: Gpu, hours: float = 2.0, busy: float = 1.0, prefill_share: float = 0.0
) -> DriverReading:
    gpu.advance(hours * 3600, busy, prefill_share)
    return gpu.reading()


def test_a_healthy_h100_that_decodes_draws_420_watts_at_53_to_54_degrees() -> None:
    reading = settled(Gpu(kind_of("h100")))
    assert reading.power_w == pytest.approx(420, abs=1)
    assert 53 <= reading.temp_c <= 54
    assert reading.sm_clock_mhz == 1980
    assert reading.event_reasons == 0


def test_a_healthy_3090_stands_at_68_degrees_and_1839_mhz_with_its_power_cap_bit_set() -> None:
    reading = settled(Gpu(kind_of("rtx3090")))
    assert reading.temp_c == 68
    assert reading.sm_clock_mhz == pytest.approx(1839, abs=3)
    assert reading.event_reasons == SW_POWER_CAP
    assert reading.mem_temp_c is None
    assert reading.margin_c is None


def test_a_healthy_gb10_stands_at_70_to_74_degrees_and_2470_to_2496_mhz_without_a_reason() -> None:
    reading = settled(Gpu(kind_of("dgx-spark")))
    assert 70 <= reading.temp_c <= 74
    assert 2470 <= reading.sm_clock_mhz <= 2496
    assert reading.event_reasons == 0
    assert reading.power_limit_w is None
    assert reading.vram_used_mib is None


def test_a_healthy_4090_stands_at_63_degrees() -> None:
    assert settled(Gpu(kind_of("rtx4090"))).temp_c == 63


@pytest.mark.parametrize("name", GPU_KINDS)
def test_no_healthy_gpu_throttles_for_heat_or_power_whatever_it_works_on(name: str) -> None:
    gpu = Gpu(kind_of(name))
    for share in (0.0, 0.5, 1.0):
        reading = settled(gpu, prefill_share=share)
        assert reading.sw_thermal_ns == reading.hw_thermal_ns == reading.brake_ns == 0
        assert reading.event_reasons in {
            0,
            SW_POWER_CAP if gpu.kind.power_cap_bit == "always" else 0,
        }


def test_an_idle_gpu_reaches_its_idle_temperature_in_one_exact_step_of_any_length() -> None:
    whole, pieces = Gpu(kind_of("rtx3090")), Gpu(kind_of("rtx3090"))
    for gpu in (whole, pieces):
        gpu.advance(600, 1.0)
    whole.advance(5000, 0.0)
    for _ in range(500):
        pieces.advance(10, 0.0)
    assert whole.temp_c == pytest.approx(pieces.temp_c, abs=1e-9)
    assert whole.temp_c == pytest.approx(28 + 25 * 0.13, abs=0.1)
    assert whole.reading().sm_clock_mhz == 210


def test_an_idle_gpu_has_the_idle_bit_or_its_power_cap_bit_that_is_always_set() -> None:
    for name, reasons, counted in (("h100", GPU_IDLE, 0), ("rtx3090", SW_POWER_CAP, 700e9)):
        gpu = Gpu(kind_of(name))
        gpu.advance(100, 0.5)
        gpu.advance(600, 0.0)
        assert gpu.reading().event_reasons == reasons
        assert gpu.reading().sw_power_ns == pytest.approx(counted)


@pytest.mark.parametrize("name", GPU_KINDS)
def test_the_length_of_the_steps_does_not_change_the_story_of_a_busy_gpu(name: str) -> None:
    coarse, fine = Gpu(kind_of(name)), Gpu(kind_of(name))
    for gpu, step in ((coarse, 15.0), (fine, 0.05)):
        gpu.cooling = 1.4
        for _ in range(round(300 / step)):
            gpu.advance(step, 1.0)
    assert coarse.temp_c == pytest.approx(fine.temp_c, abs=0.3)
    assert coarse.reading().energy_j == pytest.approx(fine.reading().energy_j, rel=0.005)


@pytest.mark.parametrize(
    ("share", "counter_min", "prefill_min", "decode_min"),
    # at 420 W and at 606 W: minutes to the counter, to prefill -3 %, to decode -3 %
    [
        (0.0, 43, 46, 59),
        (1.0, 22, 24, 34),
    ],
)
def test_an_h100_whose_cooling_fails_within_an_hour_throttles_before_decode_suffers(
    share: float, counter_min: float, prefill_min: float, decode_min: float
) -> None:
    gpu = Gpu(kind_of("h100"))
    gpu.advance(3600, 1.0, share)
    seen: dict[str, float] = {}
    for second in range(3600):
        gpu.cooling = 1 + 3.5 * second / 3600
        gpu.advance(1, 1.0, share)
        speeds = gpu.speeds()
        happened = {
            "counter": gpu.reading().sw_thermal_ns > 0,
            "prefill": speeds.prefill < 0.97,
            "decode": speeds.decode < 0.97,
        }
        for what, is_so in happened.items():
            if is_so:
                seen.setdefault(what, second / 60)
    assert seen["counter"] == pytest.approx(counter_min, abs=1)
    assert seen["prefill"] == pytest.approx(prefill_min, abs=1)
    assert seen["decode"] == pytest.approx(decode_min, abs=1)
    assert gpu.temp_c == pytest.approx(87, abs=1)


def test_a_hot_gpu_says_thermal_and_recovers_when_it_is_cooled_again() -> None:
    gpu = Gpu(kind_of("h100"), cooling=5.0)
    hot = settled(gpu, hours=1)
    assert hot.event_reasons & SW_THERMAL
    assert hot.sm_clock_mhz < 1900
    assert hot.margin_c is not None
    assert hot.margin_c <= 1
    gpu.cooling = 1.0
    cool = settled(gpu, hours=0.5)
    assert cool.event_reasons == 0
    assert cool.sm_clock_mhz == 1980
    assert cool.sw_thermal_ns >= hot.sw_thermal_ns


def test_a_gpu_that_heats_faster_than_the_governor_acts_is_halved_by_the_hardware() -> None:
    gpu = Gpu(kind_of("h100"))
    gpu.advance(3600, 1.0, 1.0)
    gpu.cooling, gpu.inlet_c = 9.0, 55
    seen = 0
    for _ in range(200):
        gpu.advance(1, 1.0, 1.0)
        seen |= gpu.reading().event_reasons
    assert seen & HW_THERMAL
    assert seen & HW_SLOWDOWN
    assert gpu.reading().hw_thermal_ns > 0


def test_hot_memory_takes_decode_and_leaves_prefill_while_the_core_is_cool() -> None:
    gpu = Gpu(kind_of("h100"), memory_cooling=6.0)
    reading = settled(gpu)
    assert reading.event_reasons & SW_THERMAL
    assert reading.temp_c < 60
    assert reading.mem_temp_c is not None
    assert reading.mem_temp_c >= 95
    assert gpu.speeds().decode < 0.9 < gpu.speeds().prefill


def test_a_lower_power_limit_pins_the_power_there_at_a_lower_clock_and_a_lower_temperature() -> (
    None
):
    gpu = Gpu(kind_of("rtx4090"))
    free = settled(gpu)
    gpu.power_limit_w = 250
    capped = settled(gpu)
    assert capped.event_reasons == SW_POWER_CAP
    assert capped.power_w == pytest.approx(250, abs=1)
    assert capped.power_limit_w == 250
    assert capped.temp_c < free.temp_c
    assert capped.sm_clock_mhz < free.sm_clock_mhz
    assert capped.sw_power_ns == pytest.approx(7200e9, rel=0.01)


def test_the_power_brake_halves_the_clock_and_only_its_counter_runs() -> None:
    gpu = Gpu(kind_of("h100"), power_brake=True)
    reading = settled(gpu, hours=0.1)
    assert reading.sm_clock_mhz == 990
    assert reading.event_reasons == HW_SLOWDOWN | HW_POWER_BRAKE
    assert reading.brake_ns == pytest.approx(360e9)
    assert reading.sw_thermal_ns == reading.sw_power_ns == 0


def test_a_hidden_limit_shows_in_clock_and_power_alone() -> None:
    gpu = Gpu(kind_of("dgx-spark"))
    free = settled(gpu)
    gpu.hidden_limit_mhz = 799
    limited = settled(gpu)
    assert limited.sm_clock_mhz == 799
    assert limited.event_reasons == 0
    assert limited.util == free.util == 1.0
    assert limited.power_w < free.power_w / 2
    assert gpu.speeds().decode == pytest.approx(1 / (0.8 + 0.2 * 2509 / 799), rel=1e-3)


def test_a_hot_room_is_a_hotter_gpu_by_as_much() -> None:
    assert (
        settled(Gpu(kind_of("h100"), inlet_c=45)).temp_c
        == settled(Gpu(kind_of("h100"))).temp_c + 15
    )


def test_a_neighbour_takes_time_power_and_memory() -> None:
    gpu = Gpu(kind_of("rtx4090"), model_mib=16_000, neighbour=0.4, neighbour_mib=6000)
    reading = settled(gpu, busy=0.0)
    assert reading.util == pytest.approx(0.4)
    assert reading.power_w > 100
    assert reading.vram_used_mib == 22_000
    assert gpu.speeds().decode == pytest.approx(0.6, rel=0.02)


def test_clocks_are_low_for_a_moment_after_ten_idle_seconds_and_not_after_nine() -> None:
    gpu = Gpu(kind_of("h100"))
    gpu.advance(5, 1.0)
    gpu.advance(9, 0.0)
    assert gpu.speeds().decode == pytest.approx(1.0)
    gpu.advance(2, 0.0)
    assert gpu.speeds().prefill < 0.3
    gpu.advance(1, 1.0)
    assert gpu.speeds().prefill > 0.99


def test_heat_that_moves_thirty_times_faster_leaves_energy_and_counters_in_real_time() -> None:
    fast = Gpu(kind_of("h100"), thermal_speed=30, cooling=5.0)
    slow = Gpu(kind_of("h100"), cooling=5.0)
    fast.advance(60, 1.0)
    slow.advance(1800, 1.0)
    assert fast.temp_c == pytest.approx(slow.temp_c, abs=0.5)
    assert fast.reading().energy_j == pytest.approx(slow.reading().energy_j / 30, rel=0.01)
    assert 0 < fast.reading().sw_thermal_ns <= 60e9


def test_days_of_busy_hours_cost_less_than_a_second() -> None:
    gpu = Gpu(kind_of("rtx3090"))
    begin = time.process_time()
    gpu.advance(72 * 3600, 1.0)
    assert time.process_time() - begin < 1.0


def test_an_unknown_gpu_is_named_with_those_that_are_known() -> None:
    with pytest.raises(
        UnknownGpuError, match=r"no simulated GPU 'h200'; it is one of: h100, a100, rtx4090"
    ):
        kind_of("h200")
