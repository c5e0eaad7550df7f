"""GpuWatch, its thread and all, against the stub library; and the arithmetic of a sample's GPU."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nvml import GPU_A, GPU_B, StartWatch, StubNvml, gpu

from monitor.measure.gpu.figures import GpuWindow, sample_fields, summarise
from monitor.measure.gpu.nvml import Nvml
from monitor.measure.gpu.session import GpusUnavailableError
from monitor.measure.gpu.state import Timing
from monitor.measure.gpu.watch import GpuWatch
from monitor.model import GpuReading, Sample

QUICK = Timing(hang_s=0.25, retry_first_s=0.02, retry_last_s=0.05, absent_s=0.02, identity_s=0.02)
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
SECOND = 10**9


async def until(what: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Waits for something to become true."""
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


async def well(watch: GpuWatch) -> None:
    await until(lambda: watch.state().status == "ok")


async def blind(watch: GpuWatch) -> None:
    await until(
        lambda: (
            watch.state().status == "blind"
            and "not been read yet" not in (watch.state().reason or "")
        )
    )


def latest(watch: GpuWatch) -> dict[str, GpuReading]:
    return watch.before(time.monotonic_ns())


# ---- seeing ----


async def test_every_gpu_is_read(nvml: StubNvml, start_watch: StartWatch) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B), {"gpu1.temp": 75})
    watch = start_watch()
    await well(watch)
    assert {uuid: reading.temp_c for uuid, reading in latest(watch).items()} == {
        GPU_A: 61.0,
        GPU_B: 75.0,
    }
    assert watch.state().reason is None


async def test_only_the_chosen_gpus_are_read(nvml: StubNvml, start_watch: StartWatch) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    watch = start_watch([GPU_B])
    await well(watch)
    assert set(latest(watch)) == {GPU_B}
    identity = watch.identity()
    assert identity is not None
    assert [found.uuid for found in identity.gpus] == [GPU_B]


async def test_a_watch_that_is_not_wanted_touches_no_library(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch("none")
    await asyncio.sleep(0.05)
    assert watch.state().status == "off"
    assert (latest(watch), await watch.after(0), watch.identity()) == ({}, {}, None)
    assert nvml.calls("nvmlInitWithFlags") == 0


async def test_before_gives_the_last_reading_of_that_moment(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await well(watch)
    moment = time.monotonic_ns()
    nvml.set({"gpu0.temp": 80})
    await until(lambda: latest(watch)[GPU_A].temp_c == 80.0)
    reading = watch.before(moment)[GPU_A]
    assert reading.temp_c == 61.0
    assert 0 <= moment - reading.monotonic_ns < SECOND
    assert watch.before(moment - 60 * SECOND) == {}


async def test_a_reading_is_forgotten_after_two_minutes(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await well(watch)
    watch.stop()
    assert watch.before(time.monotonic_ns() + 119 * SECOND)
    assert watch.before(time.monotonic_ns() + 121 * SECOND) == {}


async def test_after_asks_for_a_reading_at_once_and_does_not_wait_for_the_next_turn(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch(interval_s=30)
    await well(watch)
    asked = time.monotonic_ns()
    reading = (await watch.after(asked, timeout_s=5))[GPU_A]
    assert asked < reading.monotonic_ns <= time.monotonic_ns()
    assert await watch.after(asked) == {GPU_A: reading}


# ---- not seeing ----


async def test_a_machine_without_the_library_is_absent_and_not_blind(
    no_nvml: None, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await until(lambda: watch.state().status == "absent")
    since = watch.state().since
    await asyncio.sleep(0.1)  # several tries later
    assert watch.state().since == since
    assert "libnvidia-ml.so.1" in (watch.state().reason or "")
    assert (watch.identity(), latest(watch), await watch.after(0)) == (None, {}, {})


async def test_a_driver_that_is_loaded_later_is_found(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"fail.nvmlInitWithFlags": 9})
    watch = start_watch()
    await until(lambda: watch.state().status == "absent")
    nvml.drop("fail.")
    await well(watch)
    assert watch.identity() is not None


async def test_a_driver_and_a_library_that_differ_are_blind_with_the_mend(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"fail.nvmlInitWithFlags": 18})
    watch = start_watch()
    await blind(watch)
    reason = watch.state().reason or ""
    assert "kernel driver and its library have different versions" in reason
    assert "reboot" in reason
    assert watch.identity() is None


async def test_a_mismatch_after_it_worked_is_blind_until_it_ends_and_the_new_driver_is_seen(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await well(watch)
    nvml.set({"fail.*": 18})
    await blind(watch)
    await until(lambda: watch.identity() is None)
    assert "LibRmVersionMismatch" in (watch.state().reason or "")
    nvml.set({"driver_version": "590.44.01"})
    nvml.drop("fail.")
    await well(watch)
    identity = watch.identity()
    assert identity is not None
    assert identity.driver_version == "590.44.01"


async def test_a_library_that_vanishes_after_it_worked_is_blind_and_not_absent(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await well(watch)
    nvml.set({"fail.nvmlInitWithFlags": 12, "gpu0.lost": 1})
    await until(lambda: "libnvidia-ml.so.1" in (watch.state().reason or ""))
    assert watch.state().status == "blind"


async def test_a_lost_gpu_is_blind_then_found_by_its_uuid_at_another_index(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    watch = start_watch()
    await well(watch)
    nvml.set({"gpu0.lost": 1})
    await blind(watch)
    assert GPU_A in (watch.state().reason or "")
    assert "Xid" in (watch.state().reason or "")
    lost_at = time.monotonic_ns()
    await until(lambda: latest(watch)[GPU_B].monotonic_ns > lost_at)  # the other GPU is read on
    assert set(await watch.after(lost_at, timeout_s=0.1)) == {GPU_B}

    nvml.drop("gpu")
    nvml.set(gpu(0, GPU_B), gpu(1, GPU_A), {"gpu1.temp": 33})
    await well(watch)
    assert latest(watch)[GPU_A].temp_c == 33.0


async def test_a_gpu_that_vanished_from_the_list_is_blind(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    watch = start_watch()
    await well(watch)
    nvml.set({"device_count": 1})
    await blind(watch)
    assert GPU_B in (watch.state().reason or "")


async def test_a_gpu_of_which_nothing_can_be_read_is_blind_and_not_well(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.drop("gpu0.")
    nvml.set({"gpu0.uuid": GPU_A})
    watch = start_watch()
    await blind(watch)
    assert "answers no query" in (watch.state().reason or "")
    assert latest(watch) == {}


async def test_a_gpu_that_is_lost_before_the_watch_begins_is_blind(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B), {"gpu0.lost": 1})
    watch = start_watch()
    await blind(watch)
    assert "GPU 0: the driver has lost the GPU" in (watch.state().reason or "")
    assert set(latest(watch)) == {GPU_B}


async def test_a_chosen_gpu_that_is_not_there_is_blind(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch([GPU_A, GPU_B])
    await blind(watch)
    assert f"{GPU_B}: the driver does not list this GPU" in (watch.state().reason or "")
    assert set(latest(watch)) == {GPU_A}


async def test_a_call_that_hangs_leaves_the_loop_alive_and_the_state_turns_blind(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await well(watch)
    nvml.set({"hang.nvmlDeviceGetPowerUsage": 30})
    longest, last = 0.0, time.monotonic()
    while watch.state().status != "blind":
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    assert "has not answered" in (watch.state().reason or "")
    assert longest < 1.0  # a call that kept the loop would keep it for 30 s
    asked = time.monotonic()
    assert await watch.after(time.monotonic_ns(), timeout_s=0.05) == {}
    watch.stop(timeout_s=0.05)
    assert time.monotonic() - asked < 1.0
    nvml.drop("hang.")


LEAVE_WHILE_NVML_HANGS = """
import time
from monitor.measure.gpu.watch import GpuWatch
from monitor.measure.gpu.state import Timing
watch = GpuWatch("auto", timing=Timing(hang_s=0.1))
watch.start()
while "has not answered" not in watch.state().reason:
    time.sleep(0.01)
watch.stop(timeout_s=0.1)
"""


def test_a_process_ends_at_once_though_a_call_hangs(nvml_library: Path, nvml: StubNvml) -> None:
    nvml.set({"hang.nvmlInitWithFlags": 30})
    child = [sys.executable, "-c", LEAVE_WHILE_NVML_HANGS]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(nvml_library.parent)}
    subprocess.run(child, env=environment, timeout=20, check=True)


async def test_a_reading_that_took_too_long_is_not_kept_and_the_watch_goes_on(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await well(watch)
    # the first question of a reading: the others come after the hang
    nvml.set({"hang.nvmlDeviceGetFieldValues": 30})
    await blind(watch)
    hung_at = time.monotonic_ns()
    nvml.set({"gpu0.temp": 80})
    nvml.drop("hang.")
    await well(watch)
    await until(lambda: latest(watch)[GPU_A].temp_c == 80.0)
    assert watch.before(hung_at)[GPU_A].temp_c == 61.0


async def test_the_pauses_between_tries_grow_to_a_limit_and_begin_anew_once_it_worked(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    tries: list[float] = []

    def open_session() -> Nvml:
        tries.append(time.monotonic())
        session = Nvml()
        session.open()
        return session

    nvml.set({"fail.nvmlInitWithFlags": 999})
    pauses = Timing(retry_first_s=0.05, retry_last_s=0.4)
    watch = start_watch(open_session=open_session, timing=pauses, interval_s=0.002)
    await until(lambda: len(tries) >= 6)
    del tries[6:]
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert all(gap >= pause for gap, pause in zip(gaps, [0.05, 0.1, 0.2, 0.4, 0.4], strict=True))
    assert gaps[4] < 0.8  # what it would be, had it doubled once more
    nvml.drop("fail.")
    await well(watch)
    worked = len(tries)
    nvml.set({"gpu0.lost": 1, "fail.nvmlInitWithFlags": 999})
    await until(lambda: len(tries) > worked + 1)
    assert tries[worked + 1] - tries[worked] < 0.4


async def test_an_error_that_nobody_foresaw_does_not_leave_the_watch_for_dead(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    faults = [TypeError("a bug in the binding")]

    def open_session() -> Nvml:
        if faults:
            raise faults.pop()
        session = Nvml()
        session.open()
        return session

    watch = start_watch(open_session=open_session, timing=Timing(retry_first_s=0.1))
    await blind(watch)
    assert "a bug in the binding" in (watch.state().reason or "")
    await well(watch)


async def test_a_session_refused_is_told_in_its_own_words(start_watch: StartWatch) -> None:
    def open_session() -> Nvml:
        raise GpusUnavailableError("the GPU is on holiday", "error")

    watch = start_watch(open_session=open_session)
    await blind(watch)
    assert watch.state().reason == "the GPU is on holiday"


# ---- identity ----


async def test_another_driver_version_shows_in_the_identity(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch()
    await well(watch)

    def version() -> str | None:
        identity = watch.identity()
        return identity.driver_version if identity else None

    assert version() == "580.126.09"
    nvml.set({"driver_version": "590.44.01"})
    await until(lambda: version() == "590.44.01")


async def test_a_lost_gpu_keeps_its_last_identity_so_that_a_fault_is_no_change(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    watch = start_watch()
    await well(watch)
    nvml.set({"gpu1.lost": 1, "driver_version": "590.44.01"})
    await blind(watch)

    def seen_anew() -> bool:
        identity = watch.identity()
        return identity is not None and identity.driver_version == "590.44.01"

    await until(seen_anew)
    identity = watch.identity()
    assert identity is not None
    kept = {found.uuid: found for found in identity.gpus}[GPU_B]
    assert (kept.power_limit_w, kept.max_sm_clock_mhz, kept.processes) == (650.0, 1980, None)


async def test_a_gpu_that_is_lost_while_we_start_is_hidden_and_not_taken_out(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B), {"gpu1.lost": 1})
    chosen, every = start_watch([GPU_A, GPU_B]), start_watch("auto")

    def hidden(watch: GpuWatch) -> tuple[str, ...] | None:
        identity = watch.identity()
        return None if identity is None else identity.hidden

    await until(lambda: (hidden(chosen), hidden(every)) == ((GPU_B,), ("GPU 1",)))
    nvml.drop("gpu1.lost")
    await until(lambda: (hidden(chosen), hidden(every)) == ((), ()))
    nvml.set({"gpu1.lost": 1})  # now we know it, and it keeps what was known of it
    await blind(every)
    await asyncio.sleep(0.2)
    assert (hidden(chosen), hidden(every)) == ((), ())


# ---- windows ----


async def test_windows_of_every_gpu_are_handed_over(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    windows: list[GpuWindow] = []
    watch = start_watch(window_s=0.1, on_window=windows.append)
    await until(lambda: len(windows) >= 4)
    watch.stop()
    assert {window.uuid for window in windows} == {GPU_A, GPU_B}
    assert all(window.count >= 1 and window.temp_c_median == 61.0 for window in windows)
    of_one = [window.at for window in windows if window.uuid == GPU_A]
    assert of_one == sorted(set(of_one))


async def test_a_store_that_refuses_a_window_does_not_end_the_watch(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    refused: list[GpuWindow] = []

    def refuse(window: GpuWindow) -> None:
        refused.append(window)
        raise OSError("disk full")

    watch = start_watch(window_s=0.03, on_window=refuse)
    await until(lambda: len(refused) >= 3)
    assert watch.state().status == "ok"


def reading(second: float = 0.0, uuid: str = GPU_A, **values: Any) -> GpuReading:
    return GpuReading(
        at=NOON + timedelta(seconds=second), monotonic_ns=int(second * SECOND), uuid=uuid, **values
    )


def test_a_window_has_the_spread_of_its_readings_and_the_last_of_its_counters() -> None:
    window = summarise(
        [
            reading(
                0,
                temp_c=60.0,
                util=0.1,
                margin_c=30.0,
                event_reasons=0x4,
                energy_j=100.0,
                throttle_power_ns=5,
            ),
            reading(1, temp_c=70.0, util=None, margin_c=10.0, event_reasons=0x20, energy_j=400.0),
            reading(
                2,
                temp_c=62.0,
                util=0.9,
                margin_c=28.0,
                event_reasons=0x4,
                energy_j=700.0,
                throttle_power_ns=9,
            ),
        ]
    )
    assert (window.uuid, window.at, window.count) == (GPU_A, NOON + timedelta(seconds=2), 3)
    assert (window.temp_c_min, window.temp_c_median, window.temp_c_max) == (60.0, 62.0, 70.0)
    assert (window.util_min, window.util_median, window.util_max) == (0.1, 0.5, 0.9)
    assert (window.margin_c, window.event_reasons) == (28.0, 0x24)
    assert (window.energy_j, window.throttle_power_ns) == (700.0, 9)


def test_what_no_reading_of_a_window_has_is_none_in_it() -> None:
    window = summarise([reading(0), reading(1)])
    assert {f.name for f in fields(window) if getattr(window, f.name) is not None} == {
        "uuid",
        "at",
        "count",
    }


# ---- a sample's GPU ----


def joined(
    first: GpuReading | None, last: GpuReading | None, sent_s: float = 1.0, done_s: float = 3.0
) -> dict[str, Any]:
    before = {first.uuid: first} if first else {}
    after = {last.uuid: last} if last else {}
    return sample_fields(before, after, int(sent_s * SECOND), int(done_s * SECOND))


def test_a_sample_without_gpus_has_no_gpu_fields() -> None:
    assert joined(None, None) == {}


def test_a_sample_has_exactly_the_gpu_fields_of_its_model() -> None:
    names = [f.name for f in fields(Sample)]
    of_gpu = names[names.index("gpu_uuid") : names.index("gpu_age_ms") + 1]
    assert list(joined(reading(0), reading(4))) == of_gpu


def test_counters_are_deltas_and_instant_values_are_of_the_reading_after() -> None:
    first = reading(
        0.5,
        temp_c=60.0,
        power_w=400.0,
        energy_j=1000.0,
        throttle_thermal_ns=9 * SECOND,
        throttle_power_ns=SECOND,
        throttle_brake_ns=5,
    )
    last = reading(
        3.25,
        temp_c=66.0,
        mem_temp_c=80.0,
        margin_c=12.0,
        sm_clock_mhz=1500.0,
        mem_clock_mhz=2619.0,
        util=0.9,
        power_w=500.0,
        power_limit_w=650.0,
        energy_j=2200.0,
        vram_used_mib=70000.0,
        throttle_thermal_ns=9 * SECOND + 250_000_000,
        throttle_power_ns=3 * SECOND,
        throttle_brake_ns=5,
    )
    assert joined(first, last) == {
        "gpu_uuid": GPU_A,
        "gpu_temp_c": 66.0,
        "gpu_mem_temp_c": 80.0,
        "gpu_margin_c": 12.0,
        "sm_clock_mhz": 1500.0,
        "mem_clock_mhz": 2619.0,
        "gpu_util": 0.9,
        "power_w": 500.0,
        "power_limit_w": 650.0,
        "energy_j": 1200.0,
        "vram_used_mib": 70000.0,
        "throttle_thermal_ms": 250.0,
        "throttle_power_ms": 2000.0,
        "throttle_brake_ms": 0.0,
        "gpu_age_ms": 250.0,
    }


def test_without_a_reading_after_the_one_before_is_shown_with_its_age_and_no_deltas() -> None:
    gpu_fields = joined(reading(0.5, temp_c=60.0, energy_j=1000.0, throttle_power_ns=7), None)
    assert (gpu_fields["gpu_temp_c"], gpu_fields["gpu_age_ms"]) == (60.0, 2500.0)
    assert (gpu_fields["energy_j"], gpu_fields["throttle_power_ms"]) == (None, None)


def test_a_counter_that_only_one_reading_has_is_unknown_and_not_the_whole_of_it() -> None:
    assert joined(reading(0.5), reading(3.5, energy_j=1000.0))["energy_j"] is None
    assert joined(None, reading(3.5, energy_j=1000.0))["energy_j"] is None


@pytest.mark.parametrize(
    "counter", ["energy_j", "throttle_thermal_ns", "throttle_power_ns", "throttle_brake_ns"]
)
def test_a_counter_that_ran_backwards_is_unknown(counter: str) -> None:
    gpu_fields = joined(reading(0.5, **{counter: 900}), reading(3.5, **{counter: 100}))
    assert gpu_fields[counter.replace("_ns", "_ms")] is None


@pytest.mark.parametrize(
    ("counter", "growth_s"), [("thermal", 7.0), ("power", 3.5), ("brake", 3.5)]
)
def test_throttle_time_that_grows_faster_than_the_clock_is_unknown(
    counter: str, growth_s: float
) -> None:
    name = f"throttle_{counter}_ns"
    first, last = reading(0.5, **{name: 0}), reading(3.5, **{name: int(growth_s * SECOND)})
    assert joined(first, last)[f"throttle_{counter}_ms"] is None


def test_a_gpu_that_throttles_all_the_time_is_known_though_the_clocks_differ_a_little() -> None:
    first, last = (
        reading(0.5, throttle_power_ns=0),
        reading(3.5, throttle_power_ns=int(3.05 * SECOND)),
    )
    assert joined(first, last)["throttle_power_ms"] == 3000.0


def test_throttling_by_software_and_hardware_at_once_is_at_most_the_time_that_passed() -> None:
    first, last = reading(0.5, throttle_thermal_ns=0), reading(3.5, throttle_thermal_ns=6 * SECOND)
    assert joined(first, last)["throttle_thermal_ms"] == 3000.0


def test_readings_from_long_before_a_sample_give_no_deltas_for_it() -> None:
    first, last = (
        reading(0, energy_j=0.0, throttle_power_ns=0),
        reading(63.2, energy_j=9e3, throttle_power_ns=SECOND),
    )
    gpu_fields = joined(first, last, sent_s=61.0, done_s=63.0)
    assert (gpu_fields["energy_j"], gpu_fields["throttle_power_ms"]) == (None, None)


def worst(a: dict[str, Any], b: dict[str, Any]) -> str:
    """The GPU that a sample names, of two that differ so at the end."""
    before = {uuid: reading(0.5, uuid, throttle_thermal_ns=0) for uuid in (GPU_A, GPU_B)}
    after = {GPU_A: reading(3.5, GPU_A, **a), GPU_B: reading(3.5, GPU_B, **b)}
    return str(sample_fields(before, after, SECOND, 3 * SECOND)["gpu_uuid"])


def test_the_worst_gpu_is_the_one_throttled_most_then_nearest_its_limit_then_hottest() -> None:
    cool = {"throttle_thermal_ns": 0, "margin_c": 30.0, "temp_c": 50.0}
    assert (
        worst(cool, {**cool, "throttle_thermal_ns": 1, "margin_c": 60.0, "temp_c": 20.0}) == GPU_B
    )
    assert worst(cool, {**cool, "margin_c": 29.0, "temp_c": 20.0}) == GPU_B
    assert worst(cool, {**cool, "temp_c": 51.0}) == GPU_B
    assert worst({**cool, "temp_c": 51.0}, cool) == GPU_A
    assert worst(cool, cool) == GPU_A


def test_what_is_unknown_of_a_gpu_does_not_make_it_the_worst() -> None:
    cool = {"throttle_thermal_ns": 0, "margin_c": 30.0, "temp_c": 50.0}
    assert worst({"temp_c": 90.0}, cool) == GPU_B  # no margin known, no throttling known
    assert worst({"temp_c": 90.0}, {"temp_c": 80.0}) == GPU_A
    assert worst({}, {"temp_c": 20.0}) == GPU_B
