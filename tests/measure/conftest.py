"""The stub of NVML under the real binding, in this process."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pynvml
import pytest
from nvml import StubNvml, build


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
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})  # else the functions of the last library stay
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
