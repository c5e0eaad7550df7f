"""The stub of NVML under the real binding, in this process."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pynvml
import pytest
from nvml import StartWatch, StubNvml, build

from monitor.measure.gpu.state import Timing
from monitor.measure.gpu.watch import GpuWatch

QUICK = Timing(hang_s=0.25, retry_first_s=0.02, retry_last_s=0.05, absent_s=0.02, identity_s=0.02)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled stub."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed; it builds the stub of libnvidia-ml.so.1")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubNvml:
    """What NVML sees in this test."""
    # A copy for each test: loaded under another path it is another library, with no session open.
    library = ctypes.CDLL(shutil.copy(nvml_library, tmp_path))
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    # else the functions of the last library stay
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    stub = StubNvml(tmp_path)
    monkeypatch.setenv("NVMLSTUB_STATE", str(stub.state))
    return stub


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without libnvidia-ml.so.1, whatever this one has."""

    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", refuse)


@pytest.fixture
def start_watch() -> Iterator[StartWatch]:
    """Starts a watch with short times. Every one is stopped at the end, also of a test that failed:
    it would read on in the next.
    """
    watches: list[GpuWatch] = []

    def start(gpus: Literal["auto", "none"] | Sequence[str] = "auto", **settings: Any) -> GpuWatch:
        watches.append(GpuWatch(gpus, **{"interval_s": 0.01, "timing": QUICK, **settings}))
        watches[-1].start()
        return watches[-1]

    yield start
    for watch in watches:
        watch.stop()
