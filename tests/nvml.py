"""A libnvidia-ml.so.1 for tests: the stub of tests/nvml_stub under the real binding, controlled by
a file of values.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from monitor.measure.gpu.watch import GpuWatch

STUB = Path(__file__).parent / "nvml_stub"
Values = Mapping[str, object]
StartWatch = Callable[..., GpuWatch]  # the fixture `start_watch`

GPU_A = "GPU-aaaaaaaa-0000-0000-0000-000000000001"
GPU_B = "GPU-bbbbbbbb-0000-0000-0000-000000000002"


def build(folder: Path, *without: str) -> Path:
    """Compiles the stub without the functions named in `without`, as in an older driver. Needs
    gcc.
    """
    subprocess.run(["sh", str(STUB / "build.sh"), str(folder), *without], check=True)
    return folder / "libnvidia-ml.so.1"


def gpu(index: int, uuid: str) -> dict[str, object]:
    """A warm H100 under load, in NVML's units, with the counters of a driver from 580.82 on."""
    values = {
        "uuid": uuid,
        "name": "NVIDIA H100 80GB HBM3",
        "temp": 61,
        "margin": 24,
        "clock.1": 1755,
        "clock.2": 2619,
        "max_clock.1": 1980,
        "max_clock.2": 2619,
        "power_mw": 421_500,
        "power_limit_mw": 650_000,
        "power_requested_mw": 700_000,
        "energy_mj": 123_456_789_012,
        "mem_total": 80 * 2**30,
        "mem_reserved": 512 * 2**20,
        "mem_free": 9 * 2**30,
        "mem_used": 70 * 2**30,
        "util_gpu": 97,
        "util_mem": 40,
        "reasons": "0x24",
        "ecc": 1,
        "mig": 0,
        "event_types": 8,
        "procs": f"4242:{60 * 2**30},4300:na",
        "field.82": "uint:73",
        "field.74": "ull:7000000000",
        "field.269": "ull:12000000000",
        "field.270": "ull:300000000",
        "field.271": "ull:40000000",
    }
    return {f"gpu{index}.{key}": value for key, value in values.items()}


class StubNvml:
    """The values that NVML reports, by key (nvmlstub.c lists them); at first one warm H100."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "nvml-state"
        self.trace = folder / "nvml-trace"
        self.values: dict[str, object] = {
            "device_count": 1,
            "driver_version": "580.126.09",
            "cuda_version": 13000,
            "trace": self.trace,
            **gpu(0, GPU_A),
        }
        self._write()

    def set(self, *changes: Values) -> None:
        """Changes values, all at one instant."""
        for change in changes:
            self.values.update(change)
        self._write()

    def drop(self, *prefixes: str) -> None:
        """Removes the values whose keys begin so: not supported, or a fault that has ended."""
        self.values = {
            key: value for key, value in self.values.items() if not key.startswith(prefixes)
        }
        self._write()

    def report(self, index: int, xid: int) -> None:
        """Adds an XID event of a GPU."""
        before = self.values.get("events")
        self.set({"events": f"{before},{index}:{xid}" if before else f"{index}:{xid}"})

    def calls(self, function: str) -> int:
        """The number of calls of a function of the library."""
        return self.trace.read_text().split().count(function) if self.trace.exists() else 0

    def _write(self) -> None:
        fresh = self.state.with_suffix(".new")
        fresh.write_bytes(
            b"".join(
                key.encode()
                + b"="
                + (value if isinstance(value, bytes) else str(value).encode())
                + b"\n"
                for key, value in self.values.items()
            )
        )
        fresh.replace(self.state)  # a rename, so that a call never reads a partial file
