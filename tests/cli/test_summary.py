"""`summary`: percentiles by class and phase, and what is known where no first token came."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from histories import History, a_sample

from monitor.model import Outcome, Phase, Sample, Verdict

from .conftest import Command


def recent(count: int, **changes: object) -> list[Sample]:
    """So many samples of the last hour."""
    return [
        a_sample(**{"started_at": datetime.now(UTC) - timedelta(minutes=30), **changes})
        for _ in range(count)
    ]


def test_classes_and_phases_and_targets_are_never_mixed(cli: Command, history: History) -> None:
    history.samples(recent(3, ttft_ms=40.0))
    history.samples(recent(2, ttft_ms=900.0, phase=Phase.IDLE))
    history.samples(recent(1, ttft_ms=9000.0, phase=Phase.COLD))
    history.samples(recent(4, ttft_ms=70.0, traffic_class="batch", probe="rain"))
    history.samples(recent(1, ttft_ms=1.0, target="remote"))
    found = cli("summary", "--db", history.database, "--json").json["summaries"]
    assert [
        (s["target"], s["class"], s["phase"], s["count"], s["ttft_ms"]["p50"]["value"])
        for s in found
    ] == [
        ("local", "batch", "warm", 4, 70.0),
        ("local", "chat", "cold", 1, 9000.0),
        ("local", "chat", "idle", 2, 900.0),
        ("local", "chat", "warm", 3, 40.0),
        ("remote", "chat", "warm", 1, 1.0),
    ]


def test_json_has_the_documented_names(cli: Command, history: History) -> None:
    history.samples(recent(2))
    found = cli("summary", "--db", history.database, "--json").json
    assert list(found) == ["summaries"]
    [one] = found["summaries"]
    assert list(one)[:6] == ["target", "class", "phase", "count", "censored", "unavailable"]
    assert set(one["ttft_ms"]) == {"p50", "p95"}
    assert set(one["ttft_ms"]["p95"]) == {"value", "low", "high", "at_least"}


def test_the_upper_end_of_a_p95_needs_59_samples(cli: Command, history: History) -> None:
    history.samples(recent(58))
    one = cli("summary", "--db", history.database, "--json").json["summaries"][0]
    assert one["ttft_ms"]["p95"]["high"] is None
    history.samples(recent(1))
    one = cli("summary", "--db", history.database, "--json").json["summaries"][0]
    assert one["ttft_ms"]["p95"]["high"] is not None


def test_a_p95_among_those_that_waited_in_vain_is_more_than_the_smallest_wait(
    cli: Command, history: History
) -> None:
    history.samples(recent(18, ttft_ms=40.0))
    history.samples(recent(1, ttft_ms=None, outcome=Outcome.QUEUE_CAP, e2e_ms=2000.0))
    history.samples(recent(1, ttft_ms=None, outcome=Outcome.TIMEOUT, e2e_ms=9000.0))
    assert "> 2,000" in cli("summary", "--db", history.database).out
    [one] = cli("summary", "--db", history.database, "--json").json["summaries"]
    assert one["ttft_ms"]["p95"] == {"value": None, "low": 40.0, "high": None, "at_least": 2000.0}
    assert (one["count"], one["censored"], one["unavailable"]) == (20, 2, 0)


def test_where_nobody_waited_a_known_time_it_is_no_answer(cli: Command, history: History) -> None:
    history.samples(recent(3, ttft_ms=None, e2e_ms=None, outcome=Outcome.REFUSED))
    assert "no answer" in cli("summary", "--db", history.database).out
    [one] = cli("summary", "--db", history.database, "--json").json["summaries"]
    assert (one["censored"], one["unavailable"], one["ttft_ms"]["p50"]["value"]) == (0, 3, None)


def test_what_we_cancelled_ourselves_counts_for_nothing(cli: Command, history: History) -> None:
    history.samples(recent(2))
    history.samples(recent(5, outcome=Outcome.CANCELLED, ttft_ms=None))
    assert cli("summary", "--db", history.database, "--json").json["summaries"][0]["count"] == 2


def test_the_last_day_is_summed_unless_told_otherwise(cli: Command, history: History) -> None:
    history.samples(recent(1, started_at=datetime.now(UTC) - timedelta(hours=25)))
    history.samples(recent(1))

    def counts(*words: str) -> int:
        return sum(
            s["count"]
            for s in cli("summary", "--db", history.database, "--json", *words).json["summaries"]
        )

    assert (counts(), counts("--since", "2d"), counts("--since", "1m")) == (1, 2, 0)


def test_nothing_to_sum_is_said_and_good(cli: Command, history: History) -> None:
    ran = cli("summary", "--db", history.database)
    assert (ran.code, ran.out) == (0, "no samples since 24h\n")


def test_the_retry_or_abstain_rate_stands_beside_the_time_before(
    cli: Command, history: History
) -> None:
    sorry = "I'm sorry, but I can't help with that."
    history.samples(recent(90) + recent(10, output=sorry) + recent(10, verdict=Verdict.FAIL))
    history.samples(recent(110, started_at=datetime.now(UTC) - timedelta(hours=30)))
    [one] = cli("summary", "--db", history.database, "--json").json["summaries"]
    told = {
        "count": 110,
        "abstained": 10,
        "retried": 10,
        "rate": 20 / 110,
        "before": 0.0,
        "rising": True,
    }
    assert one["retry_or_abstain"] == told
    assert "20 of 110 (18.2%, before 0.0%) rising" in cli("summary", "--db", history.database).out
    [whole] = cli("summary", "--since", "40h", "--db", history.database, "--json").json["summaries"]
    assert (whole["retry_or_abstain"]["count"], whole["retry_or_abstain"]["before"]) == (220, None)


def test_what_people_said_is_counted_with_the_minutes_it_took(
    cli: Command, history: History
) -> None:
    first, second, _ = history.samples(recent(3))
    for number, verdict, minutes in ((first, "right", "1"), (second, "corrected", "3.5")):
        cli(
            "review",
            str(number),
            "--verdict",
            verdict,
            "--minutes",
            minutes,
            "--db",
            history.database,
        )
    [one] = cli("summary", "--db", history.database, "--json").json["summaries"]
    assert one["reviews"] == {"right": 1, "wrong": 0, "corrected": 1, "minutes": 4.5}
