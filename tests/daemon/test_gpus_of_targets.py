"""From a fault of a GPU to the incident of each target that uses it, through the history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from histories import NOON, History
from sqlalchemy import Connection

from monitor.alert.incidents import IncidentLog
from monitor.daemon.gpus import TargetGpus
from monitor.daemon.judging import assess_gpus
from monitor.measure.gpu.state import GpuState
from monitor.model import GpuEvent, GpuFault, ReadProblem
from monitor.store import queries, record

A, B = "GPU-a", "GPU-b"


class Watch:
    """GPUs as a test wants them."""

    def __init__(self) -> None:
        self.known_now, self.answering_now = frozenset({A, B}), frozenset({A, B})
        self.troubles: dict[str, ReadProblem] = {}

    def state(self) -> GpuState:
        return GpuState("blind" if self.troubles else "ok", None, NOON, self.troubles)

    def known(self) -> frozenset[str]:
        return self.known_now

    def answering(self) -> frozenset[str]:
        return self.answering_now


def judge(
    history: History, watch: Any, gpus: Any = "auto", target: str = "local", minutes: float = 0.0
) -> list[str]:
    """Judges a target's GPUs; what is open on it then."""
    seen = SimpleNamespace(settings=SimpleNamespace(name=target), gpus=TargetGpus(watch, gpus))

    def work(connection: Connection) -> list[str]:
        log = IncidentLog(connection, NOON + timedelta(minutes=minutes), target=target)
        for assessment in assess_gpus(log, seen):  # type: ignore[arg-type]
            log.reconcile(assessment)
        return [f"{i.kind.value} {i.subject}" for i in log.open()]

    return history.do(work)


def report(history: History, *events: GpuEvent) -> None:
    history.do(lambda c: [record.insert_gpu_event(c, event) for event in events])


def closed(history: History) -> Sequence[str]:
    return [
        row["close_reason"]
        for row in history.rows("SELECT close_reason FROM incident WHERE closed_at_us IS NOT NULL")
    ]


def test_events_are_kept_one_by_one_and_found_by_gpu_and_time(history: History) -> None:
    early, twice, other = (
        GpuEvent(A, NOON - timedelta(hours=1), 31),
        GpuEvent(A, NOON, 31),
        GpuEvent(B, NOON, 79),
    )
    report(history, early, twice, twice, other)
    assert history.do(lambda c: queries.gpu_events(c, {A}, NOON)) == [twice, twice]
    assert history.do(lambda c: queries.gpu_events(c, [], NOON)) == []


def test_a_fatal_xid_opens_an_incident_on_every_target_that_uses_the_gpu_and_on_no_other(
    history: History,
) -> None:
    report(history, GpuEvent(A, NOON, 79))
    assert judge(history, Watch(), "auto", "one") == ["gpu_fault GPU-a"]
    assert judge(history, Watch(), [A], "two") == ["gpu_fault GPU-a"]
    assert judge(history, Watch(), [B], "three") == []
    assert judge(history, Watch(), "none", "four") == []


def test_it_closes_half_an_hour_later_with_a_true_reason(history: History) -> None:
    report(history, GpuEvent(A, NOON, 79))
    judge(history, Watch())
    assert judge(history, Watch(), minutes=29) == ["gpu_fault GPU-a"]
    assert judge(history, Watch(), minutes=31) == []
    assert closed(history) == ["the GPU responds and has reported no recent fault"]


def test_a_lost_gpu_of_another_target_leaves_this_one_alone(history: History) -> None:
    watch = Watch()
    watch.troubles = {A: ReadProblem(GpuFault.LOST, "the driver has lost the GPU", NOON)}
    watch.answering_now = frozenset({B})
    assert judge(history, watch, [B], minutes=2) == []
    assert judge(history, watch, [A], minutes=2) == ["gpu_fault GPU-a", "telemetry_blind GPU-a"]


def test_a_gpu_taken_out_of_the_configuration_closes_its_incident_with_that_reason(
    history: History,
) -> None:
    watch = Watch()
    watch.troubles = {A: ReadProblem(GpuFault.LOST, "the driver has lost the GPU", NOON)}
    watch.answering_now = frozenset({B})
    assert judge(history, watch, [A, B]) == ["gpu_fault GPU-a"]
    assert judge(history, watch, [B]) == []
    assert closed(history) == ["the configuration no longer assigns the GPU to this target"]


def test_a_judge_that_comes_again_says_nothing_twice(history: History) -> None:
    watch = Watch()
    watch.troubles = {A: ReadProblem(GpuFault.LOST, "the driver has lost the GPU", NOON)}
    for minutes in (0.0, 0.5, 0.9):
        judge(history, watch, minutes=minutes)
    assert [
        row["event"] for row in history.rows("SELECT event FROM incident_event ORDER BY id")
    ] == ["opened"]
