"""What is judged of the GPUs: faults, blindness, a driver and a library that differ; and when each
is over.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.judge.gpu_faults import judge_gpus
from monitor.model import (
    DRIVER,
    Finding,
    GpuEvent,
    GpuFault,
    GpusView,
    Incident,
    Kind,
    ReadProblem,
    Severity,
)

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
A, B = "GPU-a", "GPU-b"


def later(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def view(*answering: str, known: tuple[str, ...] = (A, B), **problems: ReadProblem) -> GpusView:
    named = {
        {"a": A, "b": B, "driver": DRIVER, "gpu_0": "GPU 0"}[name]: problem
        for name, problem in problems.items()
    }
    return GpusView(frozenset(known), frozenset(answering), named)


def problem(fault: GpuFault, since: datetime = NOON) -> ReadProblem:
    return ReadProblem(fault, "the driver has lost the GPU; look for Xid 79", since)


def judged(
    seen: GpusView, *events: GpuEvent, now: datetime = NOON, before: list[Incident] | None = None
) -> list[Finding]:
    return judge_gpus("local", seen, events, before or [], now)


def opened(finding: Finding) -> Incident:
    """The incident that a finding has opened."""
    values: dict[str, Any] = {
        "severity": finding.severity,
        "summary": "",
        "evidence": finding.evidence,
    }
    return Incident(
        1, finding.kind, finding.target, finding.subject, opened_at=finding.since, **values
    )


def keys(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.subject) for finding in findings]


# ---- gpu_fault ----


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 95, 119, 120])
def test_a_fatal_xid_is_a_page_about_its_gpu(xid: int) -> None:
    (found,) = judged(view(A, B), GpuEvent(A, NOON, xid), now=later(1))
    assert (found.kind, found.subject, found.severity, found.since) == (
        Kind.GPU_FAULT,
        A,
        Severity.PAGE,
        NOON,
    )
    assert found.evidence == {
        "fault": "xid",
        "xids": [xid],
        "last_xid_at": NOON.isoformat(),
        "reason": None,
    }


@pytest.mark.parametrize("xid", [13, 31, 43, 63, 92, 1, 154])
def test_a_fault_of_a_program_and_an_unknown_number_open_nothing(xid: int) -> None:
    assert judged(view(A, B), GpuEvent(A, NOON, xid)) == []


def test_an_xid_of_a_gpu_that_the_target_does_not_use_is_not_its_incident() -> None:
    assert judged(view(A, known=(A,)), GpuEvent(B, NOON, 79)) == []


@pytest.mark.parametrize("fault", [GpuFault.LOST, GpuFault.RESET])
def test_a_gpu_that_is_lost_or_must_be_reset_is_a_page_at_once(fault: GpuFault) -> None:
    (found,) = judged(view(B, a=problem(fault)))
    assert (found.kind, found.subject, found.severity) == (Kind.GPU_FAULT, A, Severity.PAGE)
    assert found.evidence["fault"] == fault.value
    assert found.evidence["reason"] == "the driver has lost the GPU; look for Xid 79"


@pytest.mark.parametrize("fault", [GpuFault.MISSING, GpuFault.SOURCE, GpuFault.UNREADABLE])
def test_a_gpu_that_cannot_be_read_for_another_reason_is_no_fault_of_the_gpu(
    fault: GpuFault,
) -> None:
    assert judged(view(B, a=problem(fault))) == []


def test_an_xid_and_the_loss_that_follows_are_one_incident_since_the_first_of_them() -> None:
    (found,) = judged(
        view(B, a=problem(GpuFault.LOST, later(1))), GpuEvent(A, NOON, 79), now=later(1.5)
    )
    assert (found.subject, found.since, found.evidence["fault"], found.evidence["xids"]) == (
        A,
        NOON,
        "lost",
        [79],
    )


def test_two_gpus_are_two_incidents() -> None:
    assert keys(judged(view(A, b=problem(GpuFault.RESET)), GpuEvent(A, NOON, 48))) == [
        ("gpu_fault", A),
        ("gpu_fault", B),
    ]


def test_a_fatal_xid_is_over_after_half_an_hour_without_another_while_the_gpu_answers() -> None:
    events = GpuEvent(A, NOON, 48), GpuEvent(A, later(10), 48)
    (found,) = judged(view(A, B), *events, now=later(39))
    assert found.evidence["last_xid_at"] == later(10).isoformat()
    assert judged(view(A, B), *events, now=later(41), before=[opened(found)]) == []


def test_a_fatal_xid_is_not_over_while_the_gpu_does_not_answer() -> None:
    (found,) = judged(view(A, B), GpuEvent(A, NOON, 79))
    unreadable = view(B, a=problem(GpuFault.UNREADABLE, later(40)))
    assert keys(judged(unreadable, now=later(40), before=[opened(found)])) == [("gpu_fault", A)]


def test_a_lost_gpu_is_over_once_it_answers() -> None:
    (found,) = judged(view(B, a=problem(GpuFault.LOST)))
    assert judged(view(A, B), now=later(1), before=[opened(found)]) == []


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(view(known=()), id="before the first reading"),
        pytest.param(view(B, known=(B,)), id="the GPU is not listed any more"),
        pytest.param(view(driver=problem(GpuFault.SOURCE)), id="no session can be had"),
    ],
)
def test_a_restart_of_ours_does_not_close_the_incident_of_a_gpu_that_is_away(
    seen: GpusView,
) -> None:
    (found,) = judged(view(B, a=problem(GpuFault.LOST)))
    (still,) = judged(seen, now=later(0.5), before=[opened(found)])
    assert (still.key, still.evidence) == (found.key, found.evidence)


def test_a_gpu_that_cannot_be_listed_after_our_restart_is_the_known_one_and_not_a_second() -> None:
    (found,) = judged(view(B, a=problem(GpuFault.LOST)))
    nameless = view(B, known=(B,), gpu_0=problem(GpuFault.LOST))
    assert keys(judged(nameless, before=[opened(found)])) == [("gpu_fault", A)]
    assert keys(judged(nameless)) == [("gpu_fault", "GPU 0")]


def test_a_gpu_without_a_uuid_is_over_once_no_such_gpu_is_left() -> None:
    (found,) = judged(view(B, known=(B,), gpu_0=problem(GpuFault.LOST)))
    assert judged(view(A, B), before=[opened(found)]) == []
    assert judged(view(known=()), before=[opened(found)]) != []


# ---- telemetry_blind ----


def test_blindness_of_more_than_a_minute_is_a_warning_with_its_reason() -> None:
    blind = view(B, a=problem(GpuFault.UNREADABLE))
    assert judged(blind, now=later(1)) == []
    (found,) = judged(blind, now=later(1.1))
    assert (found.kind, found.subject, found.severity, found.since) == (
        Kind.TELEMETRY_BLIND,
        A,
        Severity.WARNING,
        NOON,
    )
    assert found.evidence["reason"] == "the driver has lost the GPU; look for Xid 79"


def test_a_driver_or_exporter_that_is_gone_is_one_incident_and_not_one_for_each_gpu() -> None:
    (found,) = judged(view(driver=problem(GpuFault.SOURCE)), now=later(2))
    assert (found.kind, found.subject) == (Kind.TELEMETRY_BLIND, DRIVER)


def test_nothing_is_blind_before_the_first_reading_nor_where_there_is_no_gpu() -> None:
    assert judged(view(known=()), now=later(60)) == []


def test_a_lost_gpu_is_blind_too_after_a_minute() -> None:
    assert keys(judged(view(a=problem(GpuFault.LOST)), now=later(2))) == [
        ("gpu_fault", A),
        ("telemetry_blind", A),
    ]


def test_blindness_is_over_once_the_gpu_answers_and_the_drivers_once_any_does() -> None:
    of_gpu = opened(judged(view(B, a=problem(GpuFault.UNREADABLE)), now=later(2))[0])
    of_driver = opened(judged(view(driver=problem(GpuFault.SOURCE)), now=later(2))[0])
    assert keys(judged(view(B), now=later(3), before=[of_gpu, of_driver])) == [
        ("telemetry_blind", A)
    ]
    assert judged(view(A, B), now=later(3), before=[of_gpu, of_driver]) == []


# ---- driver_mismatch ----


def test_a_driver_and_a_library_that_differ_are_a_warning_with_the_mend() -> None:
    reason = (
        "driver and library are of different versions; reboot, or reload the nvidia kernel modules"
    )
    differ = view(driver=ReadProblem(GpuFault.MISMATCH, reason, NOON))
    (found,) = judged(differ)
    assert (found.kind, found.subject, found.severity) == (
        Kind.DRIVER_MISMATCH,
        DRIVER,
        Severity.WARNING,
    )
    assert keys(judged(view(driver=problem(GpuFault.SOURCE)), before=[opened(found)])) == [
        ("driver_mismatch", DRIVER)
    ]
    assert judged(view(A), before=[opened(found)]) == []


def test_a_reason_that_counts_seconds_keeps_its_first_wording_while_the_fault_is_the_same() -> None:
    def hanging(seconds: int, fault: GpuFault = GpuFault.SOURCE) -> GpusView:
        return view(driver=ReadProblem(fault, f"no answer for {seconds} s", NOON))

    (found,) = judged(hanging(62), now=later(2))
    before = [opened(found)]
    assert judged(hanging(64), now=later(2), before=before) == [found]
    (other,) = judged(hanging(66, GpuFault.UNREADABLE), now=later(2), before=before)
    assert other.evidence["reason"] == "no answer for 66 s"


def test_findings_of_a_moment_do_not_move_while_nothing_new_happens() -> None:
    seen = view(a=problem(GpuFault.LOST), driver=problem(GpuFault.MISMATCH))
    events = [GpuEvent(A, NOON, 79)]
    assert judge_gpus("local", seen, events, [], later(2)) == judge_gpus(
        "local", seen, events, [], later(3)
    )
