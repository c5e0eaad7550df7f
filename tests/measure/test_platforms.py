"""What each kind of GPU offers, played through the stub of NVML: what it lacks is None and never
zero, what it has has our unit.

The GPUs of captures/nvidia-smi were really asked (PROVENANCE.md there). DOCUMENTED are as people
reported them: no capture is at hand.
"""

from __future__ import annotations

import asyncio
import csv
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nvml import GPU_A, StartWatch, StubNvml

from monitor.judge.gpu_faults import judge_gpus
from monitor.measure.gpu.nvml import Nvml
from monitor.measure.gpu.session import GpusIdentity
from monitor.measure.gpu.state import Timing
from monitor.model import GpuReading, GpusView

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
CAPTURES = Path(__file__).parents[1] / "captures" / "nvidia-smi" / "field_support.csv"
Smi = Mapping[str, str]  # field -> answer, as nvidia-smi prints them

DOCUMENTED: dict[str, Smi] = {
    # DGX Spark: memory is the machine's own (leptonai/gpud#1170, XuehaiPan/nvitop#208);
    # temperature, margin and 0.90 s of throttling from ollama/ollama#13552, clock, power and
    # utilisation from djangodevreng/dgx-spark-benchmarks (CC-BY-4.0).
    "gb10": {
        "driver": "580.173.02",
        "temperature.gpu": "81",
        "temperature.gpu.tlimit": "13",
        "clocks.current.sm [MHz]": "2470 MHz",
        "clocks.current.memory [MHz]": "[N/A]",
        "clocks.max.sm [MHz]": "3003 MHz",
        "utilization.gpu [%]": "96 %",
        "utilization.memory [%]": "0 %",
        "power.draw [W]": "63.40 W",
        "enforced.power.limit [W]": "[N/A]",
        "power.limit [W]": "[N/A]",
        "memory.total [MiB]": "[Not Supported]",
        "memory.used [MiB]": "[Not Supported]",
        "clocks_event_reasons.active": "0x0000000000000000",
        "clocks_event_reasons_counters.sw_power_cap [us]": "0 us",
        "clocks_event_reasons_counters.sw_thermal_slowdown [us]": "900000 us",
        "clocks_event_reasons_counters.hw_thermal_slowdown [us]": "0 us",
        "clocks_event_reasons_counters.hw_power_brake_slowdown [us]": "0 us",
    },
    # A guest with a share of a GPU sees its memory and its use, as a rule not the sensors of the
    # host (NVIDIA vGPU software user guide).
    "vgpu-guest": {
        "driver": "550.127.05",
        "utilization.gpu [%]": "35 %",
        "utilization.memory [%]": "12 %",
        "memory.total [MiB]": "24576 MiB",
        "memory.reserved [MiB]": "0 MiB",
        "memory.free [MiB]": "4096 MiB",
        "memory.used [MiB]": "20480 MiB",
        "ecc.mode.current": "Disabled",
    },
    # WSL2: temperature, power and reasons come through; older builds tell no utilisation and no
    # processes (microsoft/WSL#7162, dask/distributed#5343).
    "wsl2": {
        "driver": "560.94",
        "temperature.gpu": "52",
        "clocks.current.sm [MHz]": "2520 MHz",
        "clocks.current.memory [MHz]": "10501 MHz",
        "clocks.max.sm [MHz]": "3120 MHz",
        "clocks.max.memory [MHz]": "10501 MHz",
        "utilization.gpu [%]": "[N/A]",
        "utilization.memory [%]": "[N/A]",
        "power.draw [W]": "180.25 W",
        "enforced.power.limit [W]": "450.00 W",
        "power.limit [W]": "450.00 W",
        "memory.total [MiB]": "24564 MiB",
        "memory.reserved [MiB]": "480 MiB",
        "memory.free [MiB]": "8084 MiB",
        "memory.used [MiB]": "16000 MiB",
        "clocks_event_reasons.active": "0x0000000000000004",
    },
}


def captured() -> dict[str, Smi]:
    with CAPTURES.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {name: {row["field"]: row[name] for row in rows} for name in rows[0] if name != "field"}


PLATFORMS = captured() | DOCUMENTED
#: nvidia-smi's field -> (the stub's key, what NVML's unit is of nvidia-smi's)
KEYS = {
    "temperature.gpu": ("temp", 1),
    "temperature.gpu.tlimit": ("margin", 1),
    "temperature.memory": ("field.82=uint", 1),
    "clocks.current.sm [MHz]": ("clock.1", 1),
    "clocks.current.memory [MHz]": ("clock.2", 1),
    "clocks.max.sm [MHz]": ("max_clock.1", 1),
    "clocks.max.memory [MHz]": ("max_clock.2", 1),
    "utilization.gpu [%]": ("util_gpu", 1),
    "utilization.memory [%]": ("util_mem", 1),
    "power.draw [W]": ("power_mw", 1000),
    "enforced.power.limit [W]": ("power_limit_mw", 1000),
    "power.limit [W]": ("power_requested_mw", 1000),
    "memory.total [MiB]": ("mem_total", 2**20),
    "memory.reserved [MiB]": ("mem_reserved", 2**20),
    "memory.free [MiB]": ("mem_free", 2**20),
    "memory.used [MiB]": ("mem_used", 2**20),
    "clocks_event_reasons.active": ("reasons", 1),
    "clocks_event_reasons_counters.sw_power_cap [us]": ("field.74=ull", 1000),
    "clocks_event_reasons_counters.sw_thermal_slowdown [us]": ("field.269=ull", 1000),
    "clocks_event_reasons_counters.hw_thermal_slowdown [us]": ("field.270=ull", 1000),
    "clocks_event_reasons_counters.hw_power_brake_slowdown [us]": ("field.271=ull", 1000),
    "ecc.mode.current": ("ecc", 1),
    "mig.mode.current": ("mig", 1),
}
MODES = {"Enabled": 1.0, "Disabled": 0.0}


def number(smi: Smi, field: str) -> float | None:
    """What nvidia-smi printed, as a number; None where it says that there is nothing."""
    text = smi.get(field, "[N/A]").split()[0]
    if text in MODES:
        return MODES[text]
    if text.startswith("0x"):
        return float(int(text, 16))
    return None if text.strip("[]") in {"N/A", "Not", "-"} else float(text)


def play(nvml: StubNvml, smi: Smi) -> None:
    """One GPU of this kind."""
    values: dict[str, object] = {
        "driver_version": smi["driver"],
        "gpu0.uuid": GPU_A,
        "gpu0.name": "a GPU",
    }
    for field, (key, unit) in KEYS.items():
        value = number(smi, field)
        if value is not None:
            name, _, kind = key.partition("=")
            values[f"gpu0.{name}"] = (
                f"{kind}:{round(value * unit)}" if kind else round(value * unit)
            )
    nvml.drop("gpu0.")
    nvml.set(values)


@pytest.fixture
def session(nvml: StubNvml, request: pytest.FixtureRequest) -> Iterator[Nvml]:
    play(nvml, PLATFORMS[request.param])
    session = Nvml()
    session.open()
    yield session
    session.close()


def look(session: Nvml) -> GpuReading:
    return session.read(GPU_A, NOON, 7)


def on(*platforms: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("session", "platform"),
        [(name, name) for name in platforms],
        indirect=["session"],
        ids=platforms,
    )


@pytest.mark.parametrize(
    ("session", "smi"),
    [(name, PLATFORMS[name]) for name in PLATFORMS],
    indirect=["session"],
    ids=list(PLATFORMS),
)
def test_a_reading_has_what_the_gpu_has_in_our_units_and_none_for_the_rest(
    session: Nvml, smi: Smi
) -> None:
    def told(field: str, unit: float = 1.0, part: float = 1.0) -> float | None:
        value = number(smi, field)
        return None if value is None else value * unit / part

    thermal = [
        told(f"clocks_event_reasons_counters.{kind}_thermal_slowdown [us]", 1000)
        for kind in ("sw", "hw")
    ]
    reading = look(session)
    for _ in range(2):  # the second time nothing that was refused is asked again
        assert reading == GpuReading(
            at=NOON,
            monotonic_ns=7,
            uuid=GPU_A,
            name="a GPU",
            temp_c=told("temperature.gpu"),
            mem_temp_c=told("temperature.memory"),
            margin_c=told("temperature.gpu.tlimit"),
            sm_clock_mhz=told("clocks.current.sm [MHz]"),
            mem_clock_mhz=told("clocks.current.memory [MHz]"),
            util=told("utilization.gpu [%]", part=100),
            power_w=told("power.draw [W]"),
            power_limit_w=told("enforced.power.limit [W]"),
            energy_j=None,  # nvidia-smi has no such field
            vram_used_mib=told("memory.used [MiB]"),
            event_reasons=told("clocks_event_reasons.active"),
            throttle_thermal_ns=None
            if None in thermal
            else sum(t for t in thermal if t is not None),
            throttle_power_ns=told("clocks_event_reasons_counters.sw_power_cap [us]", 1000),
            throttle_brake_ns=told(
                "clocks_event_reasons_counters.hw_power_brake_slowdown [us]", 1000
            ),
        )
        reading = look(session)


@pytest.mark.parametrize(
    ("session", "smi"),
    [(name, PLATFORMS[name]) for name in PLATFORMS],
    indirect=["session"],
    ids=list(PLATFORMS),
)
def test_an_identity_has_what_the_gpu_has_and_none_for_the_rest(session: Nvml, smi: Smi) -> None:
    (found,) = session.identity().gpus
    assert (found.power_limit_w, found.power_limit_requested_w) == (
        number(smi, "enforced.power.limit [W]"),
        number(smi, "power.limit [W]"),
    )
    assert (found.max_sm_clock_mhz, found.max_mem_clock_mhz) == (
        number(smi, "clocks.max.sm [MHz]"),
        number(smi, "clocks.max.memory [MHz]"),
    )
    assert (found.ecc, found.mig) == (
        number(smi, "ecc.mode.current"),
        number(smi, "mig.mode.current"),
    )
    assert found.vram_total_mib == number(smi, "memory.total [MiB]")
    assert found.processes is None  # none of the captures tells them


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_no_platform_is_blind_or_faulty_for_what_it_lacks_its_p_state_or_an_idle_power_cap(
    nvml: StubNvml, start_watch: StartWatch, platform: str
) -> None:
    play(nvml, PLATFORMS[platform])
    watch = start_watch(timing=Timing(identity_s=0.02))
    deadline = time.monotonic() + 5
    while watch.answering() != {GPU_A} and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    state, identity = watch.state(), watch.identity()
    seen = GpusView(watch.known(), watch.answering(), state.problems)
    watch.stop()
    assert (state.status, state.reason, seen.answering) == ("ok", None, {GPU_A})
    assert isinstance(identity, GpusIdentity)
    assert judge_gpus("local", seen, [], [], datetime.now(UTC)) == []


def test_the_captures_are_of_gpus_that_are_well_and_yet_not_in_p0_or_power_capped_while_idle() -> (
    None
):
    idle = PLATFORMS["rtx-2080-super idle"]
    assert (
        idle["pstate"],
        number(idle, "clocks_event_reasons.active"),
        number(idle, "power.draw [W]"),
    ) == ("P8", 0x4, 39.32)
    assert PLATFORMS["rtx-4080-super load"]["pstate"] == "P2"


@on("rtx-2080-super load", "rtx-4080-super load")
def test_a_geforce_has_no_margin_no_memory_temperature_no_ecc_and_no_mig_but_counts_throttling(
    session: Nvml, platform: str
) -> None:
    reading, (gpu,) = look(session), session.identity().gpus
    assert (reading.margin_c, reading.mem_temp_c, gpu.ecc, gpu.mig) == (None, None, None, None)
    assert None not in (
        reading.temp_c,
        reading.throttle_thermal_ns,
        reading.throttle_power_ns,
        reading.throttle_brake_ns,
    )


@on("rtx-2080-super load")
def test_a_counter_of_microseconds_in_nvidia_smi_is_one_of_nanoseconds_here(
    session: Nvml, platform: str
) -> None:
    assert (
        look(session).throttle_power_ns == 221_310_321_000
    )  # 221 s of throttling, not 221,310 s and not 0.2 s


@on("l40s load")
def test_an_l40s_has_a_margin_and_no_memory_temperature(session: Nvml, platform: str) -> None:
    assert (look(session).margin_c, look(session).mem_temp_c) == (34.0, None)


@on("h100 load", "h200 load")
def test_a_gpu_for_data_centres_has_everything(session: Nvml, platform: str) -> None:
    reading = look(session)
    assert None not in (
        reading.margin_c,
        reading.mem_temp_c,
        reading.util,
        reading.power_w,
        reading.power_limit_w,
        reading.vram_used_mib,
    )


@on("h100-mig load", "h200-mig load")
def test_a_divided_gpu_keeps_its_temperatures_power_and_clocks_and_has_no_utilisation(
    session: Nvml, platform: str
) -> None:
    reading, (gpu,) = look(session), session.identity().gpus
    assert (gpu.mig, reading.util) == (True, None)
    assert None not in (
        reading.temp_c,
        reading.mem_temp_c,
        reading.margin_c,
        reading.power_w,
        reading.sm_clock_mhz,
        reading.event_reasons,
    )


@on("gb10")
def test_a_dgx_spark_has_no_memory_of_its_own_no_memory_clock_and_no_power_limit(
    session: Nvml, platform: str
) -> None:
    reading, (gpu,) = look(session), session.identity().gpus
    assert (
        reading.vram_used_mib,
        reading.mem_clock_mhz,
        reading.power_limit_w,
        reading.mem_temp_c,
    ) == (None, None, None, None)
    assert (gpu.vram_total_mib, gpu.power_limit_w, gpu.power_limit_requested_w) == (
        None,
        None,
        None,
    )
    assert (reading.temp_c, reading.margin_c, reading.throttle_thermal_ns) == (
        81.0,
        13.0,
        900_000_000,
    )


@on("vgpu-guest")
def test_a_guest_without_any_sensor_is_read_for_what_it_has(session: Nvml, platform: str) -> None:
    reading = look(session)
    assert (reading.temp_c, reading.power_w, reading.sm_clock_mhz, reading.event_reasons) == (
        None,
        None,
        None,
        None,
    )
    assert (reading.util, reading.vram_used_mib) == (0.35, 20480.0)


@on("wsl2")
def test_under_wsl2_a_utilisation_that_is_not_told_is_unknown_and_not_an_idle_gpu(
    session: Nvml, platform: str
) -> None:
    reading, (gpu,) = look(session), session.identity().gpus
    assert (reading.util, gpu.processes, reading.temp_c, reading.power_w) == (
        None,
        None,
        52.0,
        180.25,
    )
