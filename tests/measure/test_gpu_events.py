"""Faults that the driver reports: through NVML's event set, and through an exporter's gauge."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import httpx
import pytest
from nvml import GPU_A, GPU_B, StartWatch, StubNvml, gpu

from monitor.measure.gpu.dcgm import DcgmSession
from monitor.measure.gpu.nvml import Nvml
from monitor.measure.gpu.session import GpuLostError
from monitor.measure.gpu.state import Timing
from monitor.measure.gpu.watch import GpuWatch
from monitor.model import GpuEvent, GpuFault

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
QUICK = Timing(hang_s=0.25, retry_first_s=0.02, retry_last_s=0.05, absent_s=0.02, identity_s=10)


def opened() -> Nvml:
    session = Nvml()
    session.open()
    return session


@pytest.fixture
def session(nvml: StubNvml) -> Iterator[Nvml]:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    made = opened()
    yield made
    made.close()


# ---- NVML ----


def test_each_event_arrives_once_in_order_with_its_gpu(nvml: StubNvml, session: Nvml) -> None:
    assert session.events(NOON) == []
    nvml.report(1, 79)
    nvml.report(0, 31)
    nvml.report(0, 31)  # the same once more is one more
    assert session.events(NOON) == [
        GpuEvent(GPU_B, NOON, 79),
        GpuEvent(GPU_A, NOON, 31),
        GpuEvent(GPU_A, NOON, 31),
    ]
    assert session.events(NOON) == []


def test_what_happened_before_the_session_opened_is_not_told_as_new(nvml: StubNvml) -> None:
    nvml.report(0, 79)
    session = opened()
    assert session.events(NOON) == []
    session.close()


def test_asking_for_events_does_not_wait_for_one(session: Nvml) -> None:
    began = time.monotonic()
    session.events(NOON)
    assert time.monotonic() - began < 0.2


def test_a_gpu_that_offers_no_events_is_read_all_the_same(nvml: StubNvml) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B), {"gpu0.event_types": 0})
    session = opened()
    nvml.report(0, 79)
    nvml.report(1, 48)
    assert session.events(NOON) == [GpuEvent(GPU_B, NOON, 48)]
    assert session.read(GPU_A, NOON, 7).temp_c == 61.0
    assert (session.support(GPU_A)["events"], session.support(GPU_B)["events"]) == (
        "NotSupported",
        "ok",
    )
    session.close()


@pytest.mark.parametrize("code", [1, 3, 4, 13, 15, 999])
@pytest.mark.parametrize(
    "function",
    [
        "nvmlEventSetCreate",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetWait_v2",
        "nvmlEventSetFree",
    ],
)
def test_whatever_fails_about_events_costs_nothing_but_the_events(
    nvml: StubNvml, function: str, code: int
) -> None:
    nvml.set({f"fail.{function}": code, "fail.nvmlEventSetWait": code})
    session = opened()
    nvml.report(0, 79)
    assert session.events(NOON) == (
        [GpuEvent(GPU_A, NOON, 79)] if function == "nvmlEventSetFree" else []
    )
    assert session.read(GPU_A, NOON, 7).temp_c == 61.0
    session.close()


def test_an_older_driver_is_asked_by_the_first_version_of_the_call(
    nvml: StubNvml, session: Nvml
) -> None:
    nvml.set({"fail.nvmlEventSetWait_v2": 13})
    nvml.report(1, 79)
    assert session.events(NOON) == [GpuEvent(GPU_B, NOON, 79)]


def test_a_driver_without_either_version_has_no_events(nvml: StubNvml, session: Nvml) -> None:
    nvml.set({"fail.nvmlEventSetWait_v2": 13, "fail.nvmlEventSetWait": 13})
    nvml.report(1, 79)
    assert session.events(NOON) == []


def test_the_set_is_given_back_when_the_session_closes(nvml: StubNvml) -> None:
    for _ in range(20):  # the stub has eight
        session = opened()
        assert session.support(GPU_A)["events"] == "ok"
        session.close()


# ---- the watch ----


async def until(what: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


@pytest.fixture
def told() -> list[GpuEvent]:
    return []


@pytest.fixture
def watch(nvml: StubNvml, told: list[GpuEvent], start_watch: StartWatch) -> GpuWatch:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    return start_watch([GPU_A], on_event=told.append, timing=QUICK)


async def test_an_event_of_a_watched_gpu_is_handed_on(
    nvml: StubNvml, watch: GpuWatch, told: list[GpuEvent]
) -> None:
    await until(lambda: watch.state().status == "ok")
    before = datetime.now(UTC)
    nvml.report(1, 48)  # of a GPU that is not watched
    nvml.report(0, 79)
    await until(lambda: told)
    assert [(event.uuid, event.xid) for event in told] == [(GPU_A, 79)]
    assert before <= told[0].at <= datetime.now(UTC)


async def test_the_fault_that_took_the_gpu_down_is_not_lost_with_it(
    nvml: StubNvml, watch: GpuWatch, told: list[GpuEvent]
) -> None:
    await until(lambda: watch.state().status == "ok")
    nvml.set({"gpu0.lost": 1, "events": "0:79"})
    await until(lambda: watch.state().status == "blind")
    await until(lambda: told)
    assert told[0].xid == 79


async def test_a_store_that_refuses_an_event_does_not_end_the_watch(
    nvml: StubNvml, caplog: pytest.LogCaptureFixture, start_watch: StartWatch
) -> None:
    refused: list[int] = []

    def refuse(event: GpuEvent) -> None:
        refused.append(event.xid)
        raise OSError("disk full")

    watch = start_watch(on_event=refuse, timing=QUICK)
    with caplog.at_level(logging.ERROR):
        await until(lambda: watch.state().status == "ok")
        nvml.report(0, 31)
        await until(lambda: refused)
        nvml.report(0, 43)
        await until(lambda: len(refused) == 2)
    watch.stop()
    assert "disk full" in caplog.text


# ---- what is blind ----


async def test_the_state_names_each_gpu_that_is_lost_with_the_fault(
    nvml: StubNvml, watch: GpuWatch
) -> None:
    await until(lambda: watch.state().status == "ok")
    assert (watch.state().problems, watch.answering()) == ({}, {GPU_A})
    nvml.set({"gpu0.fail.*": 16})
    await until(lambda: watch.state().problems)
    assert watch.state().problems[GPU_A].fault is GpuFault.RESET
    assert watch.answering() == frozenset()


async def test_the_only_gpu_that_is_lost_stays_lost_though_no_session_can_be_had(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    watch = start_watch(timing=QUICK)
    await until(lambda: watch.state().status == "ok")
    nvml.set({"gpu0.lost": 1})
    await until(lambda: "none of them can be read" in (watch.state().reason or ""))
    assert {gpu: problem.fault for gpu, problem in watch.state().problems.items()} == {
        GPU_A: GpuFault.LOST
    }
    since = watch.state().problems[GPU_A].since
    nvml.set({"fail.nvmlInitWithFlags": 9})  # somebody unloads the driver to mend it
    await until(lambda: "modprobe" in (watch.state().reason or ""))
    assert watch.state().problems[GPU_A].fault is GpuFault.LOST
    assert watch.state().problems[GPU_A].since == since
    nvml.drop("fail.", "gpu0.lost")
    await until(lambda: watch.state().status == "ok")
    assert (watch.state().problems, watch.answering()) == ({}, {GPU_A})


async def test_a_gpu_that_is_shown_no_more_is_lost_and_one_that_never_was_there_is_missing(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B))
    watch = start_watch([GPU_A, GPU_B, "GPU-typo"], timing=QUICK)
    await until(lambda: watch.answering() == {GPU_A, GPU_B})
    nvml.set({"device_count": 1})
    nvml.set({"gpu0.fail.*": 1})  # so that the GPUs are listed anew
    await until(lambda: GPU_A in (watch.state().reason or ""))
    nvml.drop("gpu0.fail")

    def faults() -> dict[str, GpuFault]:
        return {gpu: problem.fault for gpu, problem in watch.state().problems.items()}

    # the readings and the state are published one after the other: wait for both
    expected = {GPU_B: GpuFault.LOST, "GPU-typo": GpuFault.MISSING}
    await until(lambda: watch.answering() == {GPU_A} and faults() == expected)


async def test_a_gpu_that_is_lost_before_the_watch_begins_has_no_uuid_and_is_named_by_its_place(
    nvml: StubNvml, start_watch: StartWatch
) -> None:
    nvml.set({"device_count": 2}, gpu(1, GPU_B), {"gpu0.lost": 1})
    watch = start_watch(timing=QUICK)
    await until(lambda: watch.answering() == {GPU_B})
    assert {gpu: problem.fault for gpu, problem in watch.state().problems.items()} == {
        "GPU 0": GpuFault.LOST
    }


async def test_before_the_first_reading_nothing_is_blind_yet_and_nothing_answers(
    nvml: StubNvml,
) -> None:
    watch = GpuWatch("auto", timing=QUICK)
    assert (watch.state().status, watch.state().problems, watch.answering()) == (
        "blind",
        {},
        frozenset(),
    )


@pytest.mark.parametrize(("code", "fault"), [(18, GpuFault.MISMATCH), (999, GpuFault.SOURCE)])
async def test_without_a_session_it_is_the_driver_that_is_blind(
    nvml: StubNvml, code: int, fault: GpuFault, start_watch: StartWatch
) -> None:
    nvml.set({"fail.nvmlInitWithFlags": code})
    watch = start_watch(timing=QUICK)
    await until(lambda: watch.state().problems)
    assert {subject: problem.fault for subject, problem in watch.state().problems.items()} == {
        "driver": fault
    }


async def test_a_machine_without_a_driver_has_no_problem(
    no_nvml: None, start_watch: StartWatch
) -> None:
    watch = start_watch(timing=QUICK)
    await until(lambda: watch.state().status == "absent")
    assert watch.state().problems == {}


async def test_while_a_call_hangs_no_gpu_answers(nvml: StubNvml, watch: GpuWatch) -> None:
    await until(lambda: watch.state().status == "ok")
    nvml.set({"hang.nvmlDeviceGetPowerUsage": 30})
    await until(lambda: watch.state().problems)
    assert (watch.state().problems["driver"].fault, watch.answering()) == (
        GpuFault.SOURCE,
        frozenset(),
    )
    nvml.drop("hang.")


# ---- DCGM ----


class Page:
    """An exporter's page that shows the last XID of its GPUs; a session made anew knows what the
    last one saw.
    """

    def __init__(self) -> None:
        self.xids: dict[str, int | None] = {GPU_A: 0}
        self.known: dict[str, int] = {}
        self.now_s = 0.0
        self.session = self.anew()

    def anew(self) -> DcgmSession:
        transport = httpx.MockTransport(lambda _request: httpx.Response(200, text=self.text()))
        session = DcgmSession(
            "http://gpu-1:9400/metrics",
            httpx.Client(transport=transport),
            lambda: self.now_s,
            xids=self.known,
        )
        session.open()
        return session

    def text(self) -> str:
        lines = [
            "# TYPE DCGM_FI_DEV_GPU_TEMP gauge",
            *(f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid}"}} 54' for uuid in self.xids),
        ]
        lines.append("# TYPE DCGM_FI_DEV_XID_ERRORS gauge")
        lines += [
            f'DCGM_FI_DEV_XID_ERRORS{{UUID="{u}",err_code="{x}"}} {x}'
            for u, x in self.xids.items()
            if x is not None
        ]
        return "\n".join(lines) + "\n"

    def look(self, xid: int | None) -> list[int]:
        self.xids[GPU_A] = xid
        self.now_s += 30
        self.session.read(GPU_A, NOON, int(self.now_s * 1e9))
        return [event.xid for event in self.session.events(NOON)]


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_gauge_that_moves_to_another_code_is_an_event_and_one_that_stands_is_none(
    page: Page,
) -> None:
    assert [page.look(x) for x in (0, 79, 79, 31, 0, 31)] == [[], [79], [], [31], [], [31]]


def test_a_code_that_stands_when_the_watch_begins_is_of_an_unknown_time_and_no_event(
    page: Page,
) -> None:
    page.xids[GPU_A] = 79
    page.known.clear()
    page.session = page.anew()
    assert page.session.events(NOON) == []
    assert page.look(79) == []
    assert page.look(48) == [48]


def test_a_code_that_came_while_the_exporter_was_away_is_an_event(page: Page) -> None:
    page.look(0)
    page.xids[GPU_A] = 79
    page.session = page.anew()
    assert [event.xid for event in page.session.events(NOON)] == [79]


@pytest.mark.parametrize("blank", [None, 0x7FFFFFF0])
def test_an_exporter_that_does_not_tell_a_code_has_no_events(page: Page, blank: int | None) -> None:
    assert page.look(blank) == []
    assert page.look(blank) == []


def test_a_page_that_cannot_be_had_is_blind_as_a_whole(page: Page) -> None:
    page.session.http = httpx.Client(
        transport=httpx.MockTransport(lambda _request: httpx.Response(503))
    )
    page.now_s += 30
    with pytest.raises(GpuLostError) as caught:
        page.session.read(GPU_A, NOON, 7)
    assert caught.value.fault is GpuFault.SOURCE
