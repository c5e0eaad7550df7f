"""The simulated DCGM exporter: names, units and labels of the real one."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.simulate.api.dcgm import DEFAULT, page
from monitor.simulate.gpu.gpu import Gpu
from monitor.simulate.gpu.kinds import kind_of
from monitor.simulate.gpu.physics import SW_THERMAL


def values(text: str) -> dict[tuple[str, str], float]:
    """(metric, gpu) -> value."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, sample.labels["gpu"]): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def gpus() -> list[Gpu]:
    made = [Gpu(kind_of("h100"), model_mib=70_000), Gpu(kind_of("rtx4090"), 1)]
    for gpu in made:
        gpu.advance(3600, 1.0)
    return made


def test_figures_come_in_the_units_of_the_classic_names(gpus: list[Gpu]) -> None:
    shown = values(page(gpus))
    assert shown["DCGM_FI_DEV_SM_CLOCK", "0"] == 1980
    assert shown["DCGM_FI_DEV_MEM_CLOCK", "1"] == 10501
    assert shown["DCGM_FI_DEV_GPU_TEMP", "0"] == 53
    assert shown["DCGM_FI_DEV_MEMORY_TEMP", "0"] == 63
    assert shown["DCGM_FI_DEV_POWER_USAGE", "0"] == pytest.approx(420, abs=0.5)
    assert shown["DCGM_FI_DEV_GPU_UTIL", "0"] == 100
    assert shown["DCGM_FI_DEV_FB_USED", "0"] == 70_000
    assert shown["DCGM_FI_DEV_FB_FREE", "0"] == 81_559 - 70_000
    assert shown["DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "0"] == 700
    assert shown["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total", "0"] == pytest.approx(
        420 * 3600 * 1000, rel=0.01
    )


def test_what_a_gpu_does_not_have_is_left_out_for_that_gpu_only(gpus: list[Gpu]) -> None:
    shown = values(page(gpus))
    assert ("DCGM_FI_DEV_MEMORY_TEMP", "1") not in shown
    assert ("DCGM_FI_DEV_GPU_TEMP", "1") in shown


def test_each_series_carries_the_labels_of_the_exporter(gpus: list[Gpu]) -> None:
    line = next(
        line
        for line in page(gpus, "node7").splitlines()
        if line.startswith("DCGM_FI_DEV_GPU_TEMP{")
    )
    assert line == (
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a100c0de-0000-4000-8000-000000000001",pci_bus_id="00000000:01:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",Hostname="node7",DCGM_FI_DRIVER_VERSION="580.95.05"} 53'
    )


def test_throttle_time_is_in_nanoseconds_and_the_reasons_are_a_bit_mask() -> None:
    gpu = Gpu(kind_of("h100"), cooling=5.0)
    gpu.advance(3600, 1.0)
    before = values(page([gpu]))
    gpu.advance(10, 1.0)
    after = values(page([gpu]))
    name = ("DCGM_FI_DEV_THERMAL_VIOLATION_total", "0")
    assert after[name] - before[name] == pytest.approx(10e9, rel=0.01)
    assert int(after["DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "0"]) & SW_THERMAL


def test_the_exporters_default_configuration_has_no_throttle_fields(gpus: list[Gpu]) -> None:
    names = {name for name, _ in values(page(gpus, names=DEFAULT))}
    assert "DCGM_FI_DEV_GPU_TEMP" in names
    assert not any("VIOLATION" in name or "REASON" in name for name in names)
