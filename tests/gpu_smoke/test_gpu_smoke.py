"""Tests on a real GPU with its real driver, in under four minutes: make test-gpu. Skipped with the
reason where there is none.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from monitor.judge.gpu_faults import FATAL_XIDS, judge_gpus
from monitor.measure.gpu.nvml import Nvml
from monitor.measure.gpu.session import GpusUnavailableError
from monitor.measure.gpu.watch import LABELS, GpuWatch
from monitor.model import GpuReading, GpusView

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

WATCHED_S = 20
COUNTERS = ("energy_j", "throttle_thermal_ns", "throttle_power_ns", "throttle_brake_ns")
#: The range of every working GPU, in our units; a unit wrong by a factor of 1000 is outside.
PLAUSIBLE = {
    "temp_c": (-10, 120),
    "mem_temp_c": (1, 130),
    "margin_c": (-30, 130),
    "sm_clock_mhz": (50, 5000),
    "mem_clock_mhz": (50, 20_000),
    "util": (0, 1),
    "power_w": (0.5, 2500),
    "power_limit_w": (5, 2500),
    "energy_j": (1, 1e12),
    "vram_used_mib": (0, 1_000_000),
    "event_reasons": (0, 0xFFFF),
    "throttle_thermal_ns": (0, 2e17),  # two counters of up to three years each
    "throttle_power_ns": (0, 1e17),
    "throttle_brake_ns": (0, 1e17),
}


@pytest.fixture(scope="module")
def session() -> Iterator[Nvml]:
    session = Nvml()
    try:
        session.open()
    except GpusUnavailableError as error:
        pytest.skip(f"no GPU to test on: {error.reason}")
    yield session
    session.close()


def read(session: Nvml, uuid: str) -> GpuReading:
    return session.read(uuid, datetime.now(UTC), time.monotonic_ns())


def shown(reading: GpuReading) -> str:
    return ", ".join(
        f"{f.name} {getattr(reading, f.name)}" for f in fields(reading) if f.name not in LABELS
    )


def test_every_value_that_a_gpu_reports_is_plausible_in_our_units(session: Nvml) -> None:
    for uuid in session.uuids:
        assert uuid.startswith("GPU-"), "a GPU is identified by the UUID of the whole GPU"
        reading = read(session, uuid)
        print(f"\n{reading.name}: {shown(reading)}")
        values = {name: getattr(reading, name) for name in PLAUSIBLE}
        outside = {
            n: v
            for n, v in values.items()
            if v is not None and not PLAUSIBLE[n][0] <= v <= PLAUSIBLE[n][1]
        }
        assert outside == {}
        assert sum(value is not None for value in values.values()) >= 3, (
            "this GPU reports almost nothing"
        )


def test_a_value_that_was_readable_at_first_stays_readable(session: Nvml) -> None:
    for uuid in session.uuids:
        first, second = read(session, uuid), read(session, uuid)
        lost = [
            f.name
            for f in fields(first)
            if getattr(first, f.name) is not None and getattr(second, f.name) is None
        ]
        assert lost == []


def test_counters_never_decrease_nor_rise_faster_than_the_clock(session: Nvml) -> None:
    readings: dict[str, list[GpuReading]] = {uuid: [] for uuid in session.uuids}
    for _ in range(WATCHED_S):
        for uuid, seen in readings.items():
            seen.append(read(session, uuid))
        reported = session.events(datetime.now(UTC))
        assert [event for event in reported if event.xid in FATAL_XIDS] == [], (
            "the GPU failed during the test"
        )
        time.sleep(1.0)
    for seen in readings.values():
        for first, last in pairwise(seen):
            passed_ns = last.monotonic_ns - first.monotonic_ns
            for name in COUNTERS:
                start, end = getattr(first, name), getattr(last, name)
                assert start is None or end is None or end >= start, (
                    f"{name} decreased: {start} -> {end}"
                )
            for name, most in (
                ("throttle_thermal_ns", 2),
                ("throttle_power_ns", 1),
                ("throttle_brake_ns", 1),
            ):
                start, end = getattr(first, name), getattr(last, name)
                # a driver counts in its own ticks, so one second may have a little more
                assert start is None or end is None or end - start <= most * (passed_ns + 5e8), (
                    f"{name} is not in ns"
                )
        first, last = seen[0], seen[-1]
        if first.energy_j is not None and last.energy_j is not None and first.power_w is not None:
            mean_w = (last.energy_j - first.energy_j) / (
                (last.monotonic_ns - first.monotonic_ns) / 1e9
            )
            powers = [reading.power_w for reading in seen if reading.power_w is not None]
            assert 0.3 * min(powers) < mean_w < 3 * max(powers), (
                "energy and power do not match: one of them has another unit"
            )


def test_the_identity_has_the_versions_and_the_limits(session: Nvml) -> None:
    identity = session.identity()
    print(f"\n{identity}")
    assert re.fullmatch(r"\d{3}\.\d+(\.\d+)*", identity.driver_version or "")
    assert re.fullmatch(r"\d{2}\.\d", identity.cuda_driver_version or "")
    assert {gpu.uuid for gpu in identity.gpus} == set(session.uuids)
    for gpu in identity.gpus:
        assert gpu.name
        assert gpu.max_sm_clock_mhz is None or 300 < gpu.max_sm_clock_mhz < 5000
        assert gpu.vram_total_mib is None or 500 < gpu.vram_total_mib < 1_000_000
        assert gpu.power_limit_w is None or 5 < gpu.power_limit_w < 2500


def test_events_of_a_gpu_can_be_registered_and_read_without_blocking(session: Nvml) -> None:
    for uuid in session.uuids:
        print(f"\nXID events: {session.support(uuid)['events']}")
    began = time.monotonic()
    session.events(datetime.now(UTC))
    assert time.monotonic() - began < 0.1, "reading events blocks"


async def test_a_watch_sees_the_gpus_and_gives_a_reading_after_a_moment_within_half_a_second(
    session: Nvml,
) -> None:
    watch = GpuWatch("auto")
    watch.start()
    deadline = time.monotonic() + 20
    while watch.answering() != set(session.uuids) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    try:
        assert watch.state().status == "ok", watch.state().reason
        for _ in range(5):
            called = time.monotonic_ns()
            found = await watch.after(called, timeout_s=0.5)
            took_ms = (time.monotonic_ns() - called) / 1e6
            print(f"\nafter() took {took_ms:.0f} ms")
            assert set(found) == set(session.uuids), f"no reading within {took_ms:.0f} ms"
            assert all(reading.monotonic_ns > called for reading in found.values())
            await asyncio.sleep(0.3)
        seen = GpusView(watch.known(), watch.answering(), watch.state().problems)
        assert judge_gpus("local", seen, [], [], datetime.now(UTC)) == []
    finally:
        watch.stop()


def test_the_report_is_written_and_does_not_identify_the_machine(
    session: Nvml, tmp_path: Path
) -> None:
    file = tmp_path / "gpu-report.json"
    command = [sys.executable, "-m", "monitor.cli", "check", "--gpu-report", str(file)]
    subprocess.run(command, check=True, timeout=90, capture_output=True)
    text = file.read_text(encoding="utf-8")
    print(f"\n{text}")
    report = json.loads(text)
    assert report["error"] is None
    assert len(report["gpus"]) == len(session.uuids)
    assert all(uuid not in text and uuid.removeprefix("GPU-") not in text for uuid in session.uuids)
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
