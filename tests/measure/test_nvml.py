"""Nvml, through the real binding and its C calls, against the stub library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime

import pynvml
import pytest
from nvml import GPU_A, GPU_B, StubNvml, gpu

from monitor.measure.gpu.nvml import Nvml, throttle_fields
from monitor.measure.gpu.nvml_codes import QuerySupport
from monitor.measure.gpu.session import GpuLostError, GpusUnavailableError
from monitor.model import GpuReading

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture
def session(nvml: StubNvml) -> Iterator[Nvml]:
    session = Nvml()
    session.open()
    yield session
    session.close()


def look(session: Nvml, uuid: str = GPU_A) -> GpuReading:
    return session.read(uuid, NOON, 7)


def opening() -> GpusUnavailableError:
    with pytest.raises(GpusUnavailableError) as caught:
        Nvml().open()
    return caught.value


# ---- reading ----


def test_every_value_of_a_gpu_arrives_in_our_units(session: Nvml) -> None:
    assert look(session) == GpuReading(
        at=NOON,
        monotonic_ns=7,
        uuid=GPU_A,
        name="NVIDIA H100 80GB HBM3",
        temp_c=61.0,
        mem_temp_c=73.0,
        margin_c=24.0,
        sm_clock_mhz=1755.0,
        mem_clock_mhz=2619.0,
        util=0.97,
        power_w=421.5,
        power_limit_w=650.0,
        energy_j=123_456_789.012,
        vram_used_mib=70 * 1024.0,
        event_reasons=0x24,
        throttle_thermal_ns=12_300_000_000,
        throttle_power_ns=7_000_000_000,
        throttle_brake_ns=40_000_000,
    )


def test_a_value_that_a_gpu_does_not_offer_is_none_and_never_zero(
    nvml: StubNvml, session: Nvml
) -> None:
    nvml.drop("gpu0.")
    nvml.set({"gpu0.uuid": GPU_A})
    reading = look(session)
    offered = {f.name for f in fields(reading) if getattr(reading, f.name) is not None}
    assert offered == {"at", "monotonic_ns", "uuid", "name"}


@pytest.mark.parametrize("without", ["none", "nvmlDeviceGetTemperatureV"])
def test_a_temperature_below_zero_is_negative_by_either_call(
    nvml: StubNvml, session: Nvml, without: str
) -> None:
    nvml.set({"gpu0.temp": -5, f"fail.{without}": 13})
    assert look(session).temp_c == -5.0


def test_a_margin_beyond_the_threshold_is_negative(nvml: StubNvml, session: Nvml) -> None:
    nvml.set({"gpu0.margin": -3})
    assert look(session).margin_c == -3.0


@pytest.mark.parametrize(
    ("code", "support"),
    [
        (3, QuerySupport.NOT_SUPPORTED),
        (4, QuerySupport.NO_PERMISSION),
        (13, QuerySupport.FUNCTION_NOT_FOUND),
    ],
)
def test_what_is_refused_at_first_is_not_asked_again(
    nvml: StubNvml, session: Nvml, code: int, support: QuerySupport
) -> None:
    nvml.set({"fail.nvmlDeviceGetPowerUsage": code})
    assert [look(session).power_w for _ in range(3)] == [None, None, None]
    assert nvml.calls("nvmlDeviceGetPowerUsage") == 1
    assert session.support(GPU_A)["nvmlDeviceGetPowerUsage()"] is support
    assert session.support(GPU_A)["nvmlDeviceGetMarginTemperature()"] is QuerySupport.OK


def test_one_clock_that_is_not_offered_does_not_hide_the_other(
    nvml: StubNvml, session: Nvml
) -> None:
    nvml.drop("gpu0.clock.2")
    look(session)
    assert (look(session).sm_clock_mhz, look(session).mem_clock_mhz) == (1755.0, None)


@pytest.mark.parametrize("code", [3, 999])
def test_a_value_that_fails_after_it_worked_is_unknown_only_as_long_as_it_fails(
    nvml: StubNvml, session: Nvml, code: int
) -> None:
    look(session)
    nvml.set({"fail.nvmlDeviceGetPowerUsage": code})
    assert look(session).power_w is None
    nvml.drop("fail.")
    assert look(session).power_w == 421.5


def test_an_older_driver_is_read_by_the_older_functions(nvml: StubNvml, session: Nvml) -> None:
    newer = (
        "TemperatureV",
        "CurrentClocksEventReasons",
        "MemoryInfo_v2",
        "ComputeRunningProcesses_v2",
    )
    nvml.set({f"fail.nvmlDeviceGet{name}": 13 for name in newer})
    reading = look(session)
    assert (reading.temp_c, reading.event_reasons) == (61.0, 0x24)
    assert (
        reading.vram_used_mib == 70 * 1024 + 512
    )  # the first version counts what is reserved as used
    assert session.identity().gpus[0].processes == ((4242, 60 * 1024.0), (4300, None))


def test_an_older_binding_without_the_newer_functions_is_enough(
    session: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMarginTemperature")
    assert (look(session).temp_c, look(session).margin_c) == (61.0, None)


# ---- field values ----


@pytest.mark.parametrize("code", [3, 999])
def test_a_memory_temperature_that_failed_is_none_and_not_zero_degrees(
    nvml: StubNvml, session: Nvml, code: int
) -> None:
    nvml.set({"gpu0.field.82": f"err:{code}"})
    assert look(session).mem_temp_c is None


@pytest.mark.parametrize(
    ("driver", "thermal", "brake"),
    [
        ("535.161.07", (75,), ()),
        ("570.86.15", (75,), ()),
        ("575.51.03", (251, 252), (253,)),
        ("580.65.06", (251, 252), (253,)),
        ("580.82.07", (269, 270), (271,)),
        ("580.126.09", (269, 270), (271,)),
        ("610.1", (269, 270), (271,)),
        (None, (75,), ()),
    ],
)
def test_the_counters_of_throttling_are_chosen_by_the_version_of_the_driver(
    driver: str | None, thermal: tuple[int, ...], brake: tuple[int, ...]
) -> None:
    chosen = throttle_fields(driver)
    assert (chosen.thermal, chosen.brake) == (thermal, brake)


@pytest.mark.parametrize(
    ("driver", "thermal_ns", "brake_ns"),
    [("570.86.15", 75, None), ("575.51.03", 251 + 252, 253), ("580.126.09", 269 + 270, 271)],
)
def test_each_driver_is_read_by_its_own_counters_though_it_offers_foreign_ones(
    nvml: StubNvml, driver: str, thermal_ns: int, brake_ns: int | None
) -> None:
    every = {f"gpu0.field.{i}": f"ull:{i}" for i in (75, 251, 252, 253, 269, 270, 271)}
    nvml.set({"driver_version": driver}, every)
    session = Nvml()
    session.open()
    reading = look(session)
    session.close()
    assert (reading.throttle_thermal_ns, reading.throttle_brake_ns) == (thermal_ns, brake_ns)


def test_a_counter_beyond_32_bits_is_whole(nvml: StubNvml, session: Nvml) -> None:
    nvml.set({"gpu0.field.74": f"ull:{2**63 + 1}", "gpu0.energy_mj": 2**40 * 1000})
    reading = look(session)
    assert (reading.throttle_power_ns, reading.energy_j) == (2**63 + 1, float(2**40))


@pytest.mark.parametrize(
    ("value", "degrees"),
    [
        ("double:73.5", 73.5),
        ("int:-4", -4.0),
        ("ushort:73", 73.0),
        ("sll:-4", -4.0),
        ("ulong:73", 73.0),
    ],
)
def test_a_field_is_decoded_by_the_type_that_the_driver_names(
    nvml: StubNvml, session: Nvml, value: str, degrees: float
) -> None:
    nvml.set({"gpu0.field.82": value})
    assert look(session).mem_temp_c == degrees


def test_of_two_thermal_counters_the_one_that_is_there_counts(
    nvml: StubNvml, session: Nvml
) -> None:
    nvml.drop("gpu0.field.270")
    assert look(session).throttle_thermal_ns == 12_000_000_000
    assert look(session).throttle_thermal_ns == 12_000_000_000


def test_without_any_thermal_counter_the_time_is_unknown(nvml: StubNvml, session: Nvml) -> None:
    nvml.drop("gpu0.field.269", "gpu0.field.270")
    assert look(session).throttle_thermal_ns is None


def test_a_thermal_counter_that_fails_for_once_makes_the_sum_unknown_and_not_smaller(
    nvml: StubNvml, session: Nvml
) -> None:
    look(session)
    nvml.set({"gpu0.field.270": "err:999"})
    assert look(session).throttle_thermal_ns is None
    nvml.set({"gpu0.field.270": "ull:400000000"})
    assert look(session).throttle_thermal_ns == 12_400_000_000


# ---- loss, absence ----


@pytest.mark.parametrize("code", [1, 15, 16, 18])
@pytest.mark.parametrize(
    "fault", ["gpu0.fail.*", "gpu0.fail.nvmlDeviceGetPowerUsage", "gpu0.field.82"]
)
def test_a_gpu_whose_handle_is_dead_is_lost_and_not_unknown(
    nvml: StubNvml, session: Nvml, code: int, fault: str
) -> None:
    look(session)
    nvml.set({fault: f"err:{code}" if "field" in fault else code})
    with pytest.raises(GpuLostError) as caught:
        look(session)
    assert caught.value.uuid == GPU_A
    assert len(caught.value.reason) > 20


def test_a_gpu_that_is_not_listed_is_lost(session: Nvml) -> None:
    with pytest.raises(GpuLostError, match="nvidia-smi -L"):
        look(session, GPU_B)


def test_gpus_are_known_by_uuid_wherever_they_are_listed(nvml: StubNvml, session: Nvml) -> None:
    nvml.set({"device_count": 2}, gpu(0, GPU_B), gpu(1, GPU_A), {"gpu0.temp": 40, "gpu1.temp": 80})
    session.close()
    session.open()
    assert set(session.uuids) == {GPU_A, GPU_B}
    assert (look(session, GPU_A).temp_c, look(session, GPU_B).temp_c) == (80.0, 40.0)


def test_a_gpu_that_is_lost_when_the_session_opens_is_named_and_the_others_are_read(
    nvml: StubNvml,
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B), {"gpu0.lost": 1})
    session = Nvml()
    session.open()
    assert session.uuids == (GPU_B,)
    assert "Xid" in session.unreadable["GPU 0"].reason
    session.close()


def test_a_gpu_of_somebody_else_is_no_fault(nvml: StubNvml) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B), {"gpu1.fail.nvmlDeviceGetUUID": 4})
    session = Nvml()
    session.open()
    assert (session.uuids, session.unreadable) == ((GPU_A,), {})
    session.close()


def test_a_machine_without_the_library_has_no_gpu(no_nvml: None) -> None:
    assert opening().kind == "absent"
    assert "libnvidia-ml.so.1" in opening().reason


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"fail.nvmlInitWithFlags": 12}, "absent", "install the NVIDIA driver"),
        ({"fail.nvmlInitWithFlags": 9}, "absent", "modprobe nvidia"),
        ({"device_count": 0}, "absent", "lists no GPU"),
        (
            {"fail.nvmlInitWithFlags": 18},
            "mismatch",
            "kernel driver and its library have different versions",
        ),
        ({"fail.nvmlInitWithFlags": 999}, "error", "nvidia-smi"),
        ({"fail.nvmlDeviceGetCount_v2": 999}, "error", "nvidia-smi"),
        (
            {"gpu0.lost": 1},
            "error",
            "1 GPUs and none of them can be read: GPU 0: the driver has lost the GPU",
        ),
        ({"fail.nvmlDeviceGetHandleByIndex_v2": 4}, "error", "/dev/nvidia"),
    ],
)
def test_a_session_that_cannot_be_had_says_why_and_can_be_tried_again(
    nvml: StubNvml, values: dict[str, object], kind: str, words: str
) -> None:
    healthy = dict(nvml.values)
    nvml.set(values)
    refusal = opening()
    assert refusal.kind == kind
    assert words in refusal.reason
    nvml.drop("fail.", "gpu0.lost")
    nvml.set(healthy)
    session = Nvml()
    session.open()
    assert look(session).temp_c == 61.0
    session.close()


@pytest.mark.parametrize("fault", ["device_count", "fail.nvmlDeviceGetCount_v2"])
def test_a_session_that_failed_to_open_is_not_left_half_open(nvml: StubNvml, fault: str) -> None:
    nvml.set({fault: 0 if fault == "device_count" else 999})
    opening()
    nvml.drop(fault)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_closing_is_quiet_whatever_the_driver_says(nvml: StubNvml, session: Nvml) -> None:
    nvml.set({"fail.nvmlShutdown": 999})
    session.close()
    session.close()


# ---- identity ----


def test_the_identity_has_versions_limits_modes_and_processes(session: Nvml) -> None:
    identity = session.identity()
    (found,) = identity.gpus
    assert (identity.driver_version, identity.cuda_driver_version) == ("580.126.09", "13.0")
    assert (found.uuid, found.name) == (GPU_A, "NVIDIA H100 80GB HBM3")
    assert (found.power_limit_w, found.power_limit_requested_w) == (650.0, 700.0)
    assert (found.max_sm_clock_mhz, found.max_mem_clock_mhz) == (1980, 2619)
    assert (found.ecc, found.mig, found.vram_total_mib) == (True, False, 80 * 1024.0)
    assert found.processes == ((4242, 60 * 1024.0), (4300, None))


def test_what_a_gaming_gpu_does_not_have_is_none_in_its_identity(
    nvml: StubNvml, session: Nvml
) -> None:
    nvml.drop(
        "gpu0.ecc",
        "gpu0.mig",
        "gpu0.procs",
        "gpu0.mem_",
        "gpu0.power_",
        "gpu0.max_clock",
        "cuda_version",
    )
    identity = session.identity()
    (found,) = identity.gpus
    assert (identity.cuda_driver_version, found.ecc, found.mig, found.processes) == (
        None,
        None,
        None,
        None,
    )
    assert (found.vram_total_mib, found.power_limit_w, found.max_sm_clock_mhz) == (None, None, None)


@pytest.mark.parametrize(("number", "text"), [(12080, "12.8"), (13010, "13.1"), (11000, "11.0")])
def test_the_version_of_cuda_reads_as_people_write_it(
    nvml: StubNvml, session: Nvml, number: int, text: str
) -> None:
    nvml.set({"cuda_version": number})
    assert session.identity().cuda_driver_version == text


def test_a_gpu_without_processes_has_none_running_and_not_unknown(
    nvml: StubNvml, session: Nvml
) -> None:
    nvml.set({"gpu0.procs": ""})
    assert session.identity().gpus[0].processes == ()


def test_the_long_process_entries_of_the_first_535_drivers_are_not_read_as_false_pids(
    nvml: StubNvml, session: Nvml
) -> None:
    nvml.set(
        {
            "driver_version": "535.54.03",
            "proc_stride": 32,
            "gpu0.procs": "11:1048576,22:2097152,33:na",
        }
    )
    assert session.identity().gpus[0].processes == ((11, 1.0), (22, 2.0), (33, None))


def test_text_that_is_no_utf8_is_unknown(nvml: StubNvml) -> None:
    nvml.set({"gpu0.name": b"NVIDIA \xff\xfe", "driver_version": b"580.\xff"})
    session = Nvml()
    session.open()
    assert look(session).name is None
    assert session.identity().driver_version is None
    session.close()


def test_a_lost_gpu_is_left_out_of_the_identity(nvml: StubNvml) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    session = Nvml()
    session.open()
    nvml.set({"gpu0.lost": 1})
    assert [found.uuid for found in session.identity().gpus] == [GPU_B]
    session.close()
