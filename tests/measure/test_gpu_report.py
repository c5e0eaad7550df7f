"""The report that a user can send about GPUs that we have never seen."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import pytest
from nvml import GPU_A, GPU_B, StubNvml, gpu

from monitor.cli import main
from monitor.errors import UNMEASURED, USAGE
from monitor.measure.gpu import report as gpureport
from monitor.measure.gpu.report import gpu_report, short_uuid


def test_every_question_is_there_with_its_support_and_its_value_as_nvml_gives_it(
    nvml: StubNvml,
) -> None:
    nvml.drop("gpu0.margin")
    nvml.set({"fail.nvmlDeviceGetEccMode": 4, "fail.nvmlDeviceGetMigMode": 999})
    report = gpu_report()
    (found,) = report["gpus"]
    questions = found["questions"]
    assert (report["error"], report["driver"], report["cuda"], found["name"]) == (
        None,
        "580.126.09",
        "13.0",
        "NVIDIA H100 80GB HBM3",
    )
    assert questions["nvmlDeviceGetPowerUsage()"] == {"support": "ok", "value": 421_500}
    assert questions["nvmlDeviceGetUtilizationRates()"] == {
        "support": "ok",
        "value": {"gpu": 97, "memory": 40},
    }
    assert questions["field 269"] == {"support": "ok", "value": 12_000_000_000}
    assert questions["nvmlDeviceGetMarginTemperature()"] == {
        "support": "NotSupported",
        "value": None,
    }
    assert questions["nvmlDeviceGetEccMode()"]["support"] == "NoPermission"
    assert questions["nvmlDeviceGetMigMode()"]["support"] == "failed"
    assert (
        questions["nvmlDeviceGetPerformanceState()"]["support"] == "FunctionNotFound"
    )  # the stub has no such function
    assert questions["field 251"]["support"] == "NotSupported"
    assert questions["events"]["support"] == "ok"
    assert (found["reading"]["power_w"], found["reading"]["margin_c"]) == (421.5, None)


def test_the_counters_that_were_chosen_are_named_beside_those_of_the_binding(
    nvml: StubNvml,
) -> None:
    nvml.set({"driver_version": "575.51.03"})
    report = gpu_report()
    assert report["throttle_fields"] == {"thermal": (251, 252), "brake": (253,), "power": (74,)}
    assert "sw_therm_slowdown" in report["throttle_fields_of_the_binding"]
    assert report["binding"].startswith("nvidia-ml-py ")


def test_nothing_in_it_tells_whose_machine_it_is(nvml: StubNvml) -> None:
    text = json.dumps(gpu_report())
    assert GPU_A not in text and GPU_A.removeprefix("GPU-") not in text
    assert short_uuid(GPU_A) in text
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert "4242" not in text  # a process of the GPU
    assert json.loads(text)["gpus"][0]["identity"]["processes"] == 2


def test_a_lost_gpu_is_told_beside_the_others(nvml: StubNvml) -> None:
    nvml.set(
        {"device_count": 3},
        gpu(1, GPU_B),
        gpu(2, "GPU-c"),
        {"gpu0.lost": 1, "gpu1.fail.nvmlDeviceGetPowerUsage": 16},
    )
    report = gpu_report()
    assert "Xid 79" in report["unreadable"]["GPU 0"]
    assert ["must be reset" in (one["error"] or "") for one in report["gpus"]] == [True, False]


def test_a_driver_that_hangs_is_given_up_and_told(
    nvml: StubNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpureport, "HANG_S", 0.2)
    nvml.set({"hang.nvmlDeviceGetPowerUsage": 30})
    began = time.monotonic()
    report = gpu_report()
    assert time.monotonic() - began < 5
    assert (report["gpus"], report["driver"]) == ([], "580.126.09")
    assert "has not answered" in report["error"]
    nvml.drop("hang.")
    time.sleep(0.2)  # the thread that was left behind lets go of the stub


def test_check_writes_it_without_any_configuration(
    nvml: StubNvml,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--gpu-report", "report.json"]) == 0
    assert "report.json written, 1 GPUs; no host" in " ".join(capsys.readouterr().out.split())
    assert json.loads((tmp_path / "report.json").read_text())["driver"] == "580.126.09"


def test_a_machine_without_a_gpu_has_a_report_that_says_so(
    no_nvml: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--gpu-report", str(tmp_path / "report.json"), "--json"]) == UNMEASURED
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert (
        check["state"] == "unknown" and "libnvidia-ml.so.1 is not on this machine" in check["mend"]
    )
    assert json.loads((tmp_path / "report.json").read_text())["gpus"] == []


def test_a_report_that_cannot_be_written_is_a_sentence(
    nvml: StubNvml, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--gpu-report", str(tmp_path / "no" / "report.json")]) == USAGE
    assert "report.json cannot be written: No such file or directory" in capsys.readouterr().err
