"""GPUs of another machine, through a DCGM exporter's page."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from monitor.measure.gpu.dcgm import DcgmSession, missing_evidence, parse_dcgm
from monitor.measure.gpu.session import GpuLostError, GpusUnavailableError
from monitor.model import GpuReading

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
LABELS = (
    'gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB '
    'HBM3",Hostname="node",DCGM_FI_DRIVER_VERSION="580.126.09"'
)


def page(**values: float) -> str:
    lines = [
        f"# HELP {name} x\n# TYPE {name} gauge\n{name}{{{LABELS}}} {value}"
        for name, value in values.items()
    ]
    return "\n".join(lines) + "\n"


CLASSIC = {
    "DCGM_FI_DEV_SM_CLOCK": 1830,
    "DCGM_FI_DEV_MEM_CLOCK": 2619,
    "DCGM_FI_DEV_GPU_TEMP": 54,
    "DCGM_FI_DEV_MEMORY_TEMP": 61,
    "DCGM_FI_DEV_POWER_USAGE": 420.5,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_000,
    "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_FB_USED": 70_000,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x20,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 5_000_000_000,
    "DCGM_FI_DEV_POWER_VIOLATION": 7,
}


class Exporter:
    """An exporter whose page can be changed, behind httpx's own mock transport."""

    def __init__(self, text: str, status: int = 200) -> None:
        self.text, self.status, self.now_s = text, status, 0.0
        transport = httpx.MockTransport(
            lambda _request: httpx.Response(self.status, text=self.text)
        )
        self.session = DcgmSession(
            "http://gpu-1:9400/metrics", httpx.Client(transport=transport), lambda: self.now_s
        )

    def read(self, second: int) -> GpuReading:
        self.now_s = float(second)
        return self.session.read("GPU-a", AT.replace(second=second), second * 10**9)


def test_the_classic_names_come_in_our_units() -> None:
    gpu = parse_dcgm(page(**CLASSIC))["GPU-a"]
    assert gpu.values["sm_clock_mhz"] == 1830
    assert gpu.values["util"] == 0.97
    assert gpu.values["energy_j"] == 123_456
    assert gpu.values["event_reasons"] == 0x20
    assert gpu.values["throttle_thermal_ns"] == 5_000_000_000
    assert (gpu.name, gpu.driver_version) == ("NVIDIA H100 80GB HBM3", "580.126.09")


def test_the_new_names_with_their_new_units_come_in_our_units_too() -> None:
    new = {
        "DCGM_FI_DEV_SM_CLOCK_HERTZ": 1.83e9,
        "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.97,
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 123_456,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": 4_000_000_000,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": 1_000_000_000,
    }
    values = parse_dcgm(page(**new))["GPU-a"].values
    assert values["sm_clock_mhz"] == pytest.approx(1830)
    assert (values["util"], values["energy_j"]) == (0.97, 123_456)
    assert values["throttle_thermal_ns"] == 5_000_000_000


def test_what_a_gpu_does_not_offer_is_unknown_and_not_dcgms_huge_number() -> None:
    text = page(
        DCGM_FI_DEV_GPU_TEMP=54,
        DCGM_FI_DEV_MEMORY_TEMP=0x7FFFFFF0,
        DCGM_FI_DEV_POWER_USAGE=float("nan"),
    )
    values = parse_dcgm(text)["GPU-a"].values
    assert (values["temp_c"], values["mem_temp_c"], values["power_w"], values["margin_c"]) == (
        54,
        None,
        None,
        None,
    )


def test_a_page_that_has_not_moved_on_is_the_same_look_with_its_age() -> None:
    exporter = Exporter(page(**CLASSIC))
    exporter.session.open()
    first = exporter.read(10)
    assert exporter.read(20).monotonic_ns == first.monotonic_ns
    exporter.text = page(**{**CLASSIC, "DCGM_FI_DEV_GPU_TEMP": 55})
    moved = exporter.read(30)
    assert (moved.temp_c, moved.monotonic_ns, moved.at) == (55, 30 * 10**9, AT.replace(second=30))


def test_an_exporter_that_does_not_answer_is_said_with_its_address() -> None:
    with pytest.raises(GpusUnavailableError, match=r"http://gpu-1:9400/metrics answers HTTP 503"):
        Exporter("", status=503).session.open()


def test_a_gpu_has_the_index_that_the_exporter_counts_it_by() -> None:
    labels = 'gpu="3",UUID="GPU-x",modelName="NVIDIA H100 80GB HBM3"'
    page = f"# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{{{labels}}} 41\n"
    assert parse_dcgm(page)["GPU-x"].index == 3


def test_a_login_page_is_no_reading_of_a_gpu() -> None:
    with pytest.raises(GpusUnavailableError, match="cannot be read"):
        Exporter("<html>log in</html>").session.open()


def test_a_gpu_that_vanished_from_the_page_is_lost() -> None:
    exporter = Exporter(page(**CLASSIC))
    exporter.session.open()
    exporter.text = page(**CLASSIC).replace("GPU-a", "GPU-b")
    with pytest.raises(GpuLostError, match="no longer lists this GPU"):
        exporter.read(10)


def test_an_exporter_with_its_default_counters_is_told_what_to_enable_to_prove_heat() -> None:
    exporter = Exporter(page(DCGM_FI_DEV_GPU_TEMP=54, DCGM_FI_DEV_SM_CLOCK=1830))
    exporter.session.open()
    assert missing_evidence(exporter.read(10)) == (
        "effects cannot be attributed to heat: enable DCGM_FI_DEV_CLOCKS_EVENT_REASONS, "
        "DCGM_FI_DEV_THERMAL_VIOLATION, "
        "DCGM_FI_DEV_POWER_VIOLATION in the DCGM exporter's list of counters"
    )
    whole = Exporter(page(**CLASSIC))
    whole.session.open()
    assert missing_evidence(whole.read(10)) is None


def test_instances_of_a_divided_gpu_do_not_become_gpus_of_their_own() -> None:
    parts = "\n".join(
        f'DCGM_FI_DEV_GPU_TEMP{{{LABELS},GPU_I_ID="{i}",GPU_I_PROFILE="1g.10gb"}} 54'
        for i in (1, 2)
    )
    assert list(parse_dcgm(f"# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n{parts}\n")) == ["GPU-a"]
