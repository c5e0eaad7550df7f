"""Is the server there, does it move, do our canaries run, and do they find anything out?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from monitor.judge.availability import (
    judge_hung,
    judge_no_samples,
    judge_server_down,
    judge_unmeasured,
)
from monitor.model import Cause, Contact, Kind, Outcome, Phase, Sample, Severity

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def contacts(*told: tuple[float, bool]) -> list[Contact]:
    return [Contact(at(seconds), answered, "Connection refused") for seconds, answered in told]


def sample(
    outcome: Outcome, minute: int, ttft_ms: float | None = None, probe: str = "sky"
) -> Sample:
    return Sample(
        "local",
        probe,
        "chat",
        NOON + minute * MINUTE,
        Phase.WARM,
        outcome,
        ttft_ms=ttft_ms,
        e2e_ms=10_000.0,
    )


def test_two_failed_contacts_five_seconds_apart_are_an_outage_since_the_first() -> None:
    found = judge_server_down("local", contacts((0, True), (15, False), (20, False)))
    assert found is not None
    assert (found.kind, found.subject, found.severity, found.cause) == (
        Kind.SERVER_DOWN,
        "local",
        Severity.PAGE,
        Cause.SERVER_FAULT,
    )
    assert found.since == at(15)
    assert found.evidence["failed_contacts"] == 2
    assert found.evidence["last_error"] == "Connection refused"


@pytest.mark.parametrize(
    "told",
    [
        [],
        [(0, True)],
        [(0, False)],
        [(0, False), (4, False)],
        [(0, False), (60, False), (61, True)],
        [(0, False), (60, True), (61, False), (62, False)],
    ],
    ids=["none", "answered", "one failed", "two at once", "answered last", "answered between"],
)
def test_less_than_that_is_no_outage(told: list[tuple[float, bool]]) -> None:
    assert judge_server_down("local", contacts(*told)) is None


def test_an_outage_stays_the_same_incident_while_it_lasts() -> None:
    early = judge_server_down("local", contacts((0, False), (6, False)))
    late = judge_server_down("local", contacts((0, False), (6, False), (600, False)))
    assert early is not None
    assert late is not None
    assert (early.key, early.since) == (late.key, late.since)


def test_a_hung_canary_pages_at_once_and_tells_how_long_it_waited() -> None:
    found = judge_hung("local", [sample(Outcome.OK, 0, 100.0), sample(Outcome.HUNG, 1)])
    assert found is not None
    assert (found.kind, found.severity, found.since) == (Kind.HUNG, Severity.PAGE, NOON + MINUTE)
    assert found.evidence["waited_ms"] == 10_000.0


def test_a_hang_began_with_the_first_canary_that_found_it() -> None:
    found = judge_hung("local", [sample(Outcome.HUNG, minute) for minute in (1, 2, 3)])
    assert found is not None
    assert (found.since, found.evidence["hung_samples"]) == (NOON + MINUTE, 3)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.QUEUE_CAP, Outcome.REFUSED])
def test_a_hang_is_over_once_the_engine_moved_or_is_gone(outcome: Outcome) -> None:
    assert judge_hung("local", [sample(Outcome.HUNG, 1), sample(outcome, 2)]) is None


@pytest.mark.parametrize(
    "outcome", [Outcome.TRUNCATED, Outcome.STREAM_ERROR, Outcome.TIMEOUT, Outcome.MALFORMED]
)
def test_a_hang_is_over_once_a_token_came_however_that_answer_ended(outcome: Outcome) -> None:
    assert judge_hung("local", [sample(Outcome.HUNG, 1), sample(outcome, 2, ttft_ms=100.0)]) is None


def test_a_hang_is_over_once_an_answer_ended_though_it_was_empty() -> None:
    assert judge_hung("local", [sample(Outcome.HUNG, 1), sample(Outcome.EMPTY, 2)]) is None


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.REJECTED, Outcome.HTTP_ERROR])
def test_a_hang_is_not_over_because_a_later_canary_found_nothing_out(outcome: Outcome) -> None:
    assert judge_hung("local", [sample(Outcome.HUNG, 1), sample(outcome, 2)]) is not None


def test_no_canary_is_no_hang() -> None:
    assert judge_hung("local", []) is None


def silent(last: dict[str, datetime], now: datetime, every: timedelta = MINUTE) -> list[str]:
    return [
        finding.subject for finding in judge_no_samples("local", {"sky": every}, last, NOON, now)
    ]


def test_a_probe_is_silent_after_three_of_its_intervals() -> None:
    assert silent({"sky": NOON}, NOON + 3 * MINUTE) == []
    assert silent({"sky": NOON}, NOON + 3 * MINUTE + timedelta(seconds=1)) == ["sky"]


def test_a_probe_that_has_never_run_is_silent_from_when_watching_began() -> None:
    assert silent({}, NOON + 2 * MINUTE) == []
    (found,) = judge_no_samples("local", {"sky": MINUTE}, {}, NOON, NOON + 4 * MINUTE)
    assert (found.kind, found.severity, found.since) == (Kind.NO_SAMPLES, Severity.WARNING, NOON)
    assert found.evidence["last_sample_at"] is None


def test_the_time_before_the_daemon_watched_is_no_silence() -> None:
    assert silent({"sky": NOON - timedelta(days=3)}, NOON + 2 * MINUTE) == []


def test_a_quick_probe_is_given_half_a_minute() -> None:
    second = timedelta(seconds=1)
    assert silent({"sky": NOON}, NOON + 30 * second, every=second) == []
    assert silent({"sky": NOON}, NOON + 31 * second, every=second) == ["sky"]


def test_each_silent_probe_is_told_by_itself() -> None:
    intervals = {"sky": MINUTE, "sea": MINUTE, "daily": timedelta(days=1)}
    found = judge_no_samples(
        "local", intervals, {"sky": NOON + 9 * MINUTE}, NOON, NOON + 10 * MINUTE
    )
    assert [finding.subject for finding in found] == ["sea"]


def unmeasured(*samples: Sample) -> list[str]:
    return [finding.subject for finding in judge_unmeasured("local", samples, {})]


def test_three_runs_without_a_usable_answer_are_a_finding_with_the_reason() -> None:
    failed = [sample(Outcome.HTTP_ERROR, minute) for minute in (1, 2, 3)]
    (found,) = judge_unmeasured("local", failed, {"sky": "HTTP 401: Unauthorized"})
    assert (found.kind, found.subject, found.since) == (Kind.UNKNOWN_LASTING, "sky", NOON + MINUTE)
    assert found.evidence == {"outcome": "http_error", "detail": "HTTP 401: Unauthorized"}
    assert unmeasured(*failed[:2]) == []


def test_a_good_answer_ends_the_unknown_and_a_canary_that_we_cancelled_does_not() -> None:
    failed = [sample(Outcome.HTTP_ERROR, minute) for minute in (1, 2, 3)]
    assert unmeasured(*failed, sample(Outcome.OK, 4, 100.0)) == []
    assert unmeasured(*failed, sample(Outcome.CANCELLED, 4)) == ["sky"]
    assert unmeasured(*failed[:2], sample(Outcome.OK, 3, 100.0), *failed[2:]) == []


def test_the_runs_of_one_probe_do_not_count_for_another() -> None:
    failed = [
        sample(Outcome.REJECTED, minute, probe=probe)
        for minute in (1, 2)
        for probe in ("sky", "sea")
    ]
    assert unmeasured(*failed) == []
    assert unmeasured(*failed, sample(Outcome.REJECTED, 3)) == ["sky"]


def test_findings_of_one_trouble_keep_their_key_from_sample_to_sample() -> None:
    hung = [sample(Outcome.HUNG, 1), replace(sample(Outcome.HUNG, 2), probe="sea")]
    early, late = judge_hung("local", hung[:1]), judge_hung("local", hung)
    assert early is not None
    assert late is not None
    assert early.key == late.key
