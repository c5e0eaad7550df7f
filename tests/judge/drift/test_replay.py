"""A replay opens, updates and closes what the daemon would have, and changes nothing by being
split.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from drifting import MINUTE_US, START_US, Tally, a_canary, a_gpu_reading, a_reading
from histories import NOON, a_probe

from monitor.daemon.driftstate import codec
from monitor.judge.drift.settings import DriftSettings
from monitor.judge.evaluator.assessment import Rules
from monitor.judge.evaluator.drift import Drift
from monitor.judge.quality.answers import LastAnswers
from monitor.judge.quality.flips import SEVERAL
from monitor.model import CanaryPoint, Kind, Pin, PinnedOutput, Point, Severity, known_us
from monitor.replay.incidents import ReplayedIncident
from monitor.replay.replay import Replay, in_order


def replayed(
    points: list[Point], rules: Rules | None = None, **changes: Any
) -> list[ReplayedIncident]:
    """The incidents of a replay."""
    replay = Replay(Drift("local", Tally(), DriftSettings()), rules or Rules(), **changes)
    replay.run(sorted(points, key=known_us))
    return replay.finish().all


def story(entries: list[ReplayedIncident]) -> list[tuple[str, float, float | None]]:
    """Kind, and the minutes at which each opened and closed."""

    def minute(us: int) -> float:
        return round((us - START_US) / MINUTE_US, 1)

    return [
        (
            e.finding.kind.value,
            minute(e.opened_us),
            None if e.closed_us is None else minute(e.closed_us),
        )
        for e in entries
    ]


def test_a_finding_opens_one_incident_that_closes_when_it_is_over() -> None:
    rates = [100, 100, 80, 40, 80, 100]
    entries = replayed([a_canary(n, decode_tok_s=float(rate)) for n, rate in enumerate(rates)])
    assert story(entries) == [("speed", 2.0, 5.0)]
    [entry] = entries
    assert (entry.loudest, entry.updates) == (
        Severity.PAGE,
        2,
    )  # the loudest it was; it rose and fell
    assert entry.paged_us is not None
    assert entry.evidence["metric"] == "decode"
    assert entry.evidence["low_pct"] < entry.evidence["change_pct"] < entry.evidence["high_pct"]


def test_what_is_open_at_the_end_stays_open() -> None:
    assert story(replayed([a_canary(0), a_canary(1, decode_tok_s=50.0)])) == [("speed", 1.0, None)]


def test_points_come_in_the_order_in_which_they_were_known() -> None:
    long, short = a_canary(0, e2e_ms=150_000.0), a_canary(1)
    assert list(in_order([long, short], [a_reading(2)], [a_gpu_reading(0.5)])) == [
        a_gpu_reading(0.5),
        short,
        a_reading(2),
        long,
    ]


def test_the_time_is_said_with_each_canary_and_every_ten_seconds_of_readings() -> None:
    moments: list[int] = []

    class Clocked(Tally):
        def advance(self, now_us: int, settings: DriftSettings) -> bool:
            moments.append(now_us)
            return False

    replay = Replay(Drift("local", Clocked(), DriftSettings()))
    replay.run([a_gpu_reading(n / 12) for n in range(13)])
    replay.finish()
    assert [round((us - START_US) / 1e6) for us in moments] == [0, 10, 20, 30, 40, 50, 60, 60]


def test_a_detector_that_says_that_nothing_changed_is_not_asked() -> None:
    class Still(Tally):
        def advance(self, now_us: int, settings: DriftSettings) -> bool:
            return False

        def findings(self, target: str, now_us: int, settings: DriftSettings) -> Any:
            raise AssertionError("asked for nothing")

    assert (
        Replay(Drift("local", Still(), DriftSettings())).run([a_canary(n) for n in range(9)]).all
        == []
    )


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_replay_that_is_split_finds_the_same(cut: int) -> None:
    rates = [100.0, 70.0, 75.0, 100.0, 60.0, 99.0]
    points: list[Point] = [
        a_canary(n, decode_tok_s=rate, verdict="fail" if n > 3 else "pass")
        for n, rate in enumerate(rates)
    ]
    points += [
        a_canary(6 + n, outcome="http_error", decode_tok_s=None, ttft_ms=None) for n in range(4)
    ]
    points += [a_reading(10 + n / 5, state="refused") for n in range(3)]
    whole, split = (
        Replay(Drift("local", Tally(), DriftSettings())),
        Replay(Drift("local", Tally(), DriftSettings())),
    )
    whole.run(points)
    split.run(points[:cut])
    split.drift.detector = codec(Tally).load(codec(Tally).dump(split.drift.detector))
    split.run(points[cut:])
    assert {e.finding.kind.value for e in whole.incidents.all} == {
        "speed",
        "quality",
        "unknown_lasting",
        "server_down",
    }
    assert split.incidents == whole.incidents
    assert split.counts == whole.counts


def test_what_was_pinned_on_the_way_is_learnt_anew_at_that_moment() -> None:
    points = [a_canary(n, decode_tok_s=rate) for n, rate in enumerate([100.0, 80.0, 80.0, 80.0])]
    assert story(replayed(points, relearn_us=[START_US + 2 * MINUTE_US])) == [("speed", 1.0, 2.0)]


def test_nobody_answering_is_down_and_closes_with_the_first_answer() -> None:
    points: list[Point] = [
        a_canary(0),
        *(a_reading(1 + n / 4, state="refused") for n in range(4)),
        a_reading(2),
    ]
    assert story(replayed(points)) == [("server_down", 1.2, 2.0)]
    assert replayed(points, Rules(same_address=False)) == []


def test_canaries_that_are_refused_are_down_too() -> None:
    refused = [
        a_canary(n, outcome="refused", decode_tok_s=None, ttft_ms=None, e2e_ms=1.0) for n in (1, 2)
    ]
    assert story(replayed([a_canary(0), *refused, a_canary(3)])) == [("server_down", 2.0, 3.0)]


def test_a_hung_canary_opens_hung_until_one_is_answered() -> None:
    hung = a_canary(1, outcome="hung", decode_tok_s=None, ttft_ms=None, e2e_ms=12_000.0)
    assert story(replayed([a_canary(0), hung, a_canary(2)])) == [("hung", 1.2, 2.0)]


def test_three_runs_without_a_usable_answer_are_a_lasting_unknown() -> None:
    failed = [
        a_canary(n, outcome="http_error", decode_tok_s=None, ttft_ms=None) for n in range(1, 5)
    ]
    assert story(replayed([a_canary(0), *failed, a_canary(5)])) == [("unknown_lasting", 3.0, 5.0)]


def test_what_we_cancelled_ourselves_says_nothing() -> None:
    cut = [a_canary(n, outcome="cancelled", decode_tok_s=None, ttft_ms=None) for n in range(5)]
    assert replayed(cut) == []


def test_silence_is_told_where_readings_show_that_somebody_watched() -> None:
    rules = Rules(intervals={"sky": timedelta(minutes=1)})
    watched: list[Point] = [a_reading(n / 4) for n in range(4 * 10)]
    entries = replayed([a_canary(0), *watched, a_canary(9)], rules)
    assert story(entries) == [("no_samples", 3.2, 9.0)]
    assert (
        replayed([a_canary(0), *watched, a_canary(9)]) == []
    )  # nobody said how often it should measure


def test_a_time_without_readings_was_ours_and_no_silence_of_the_server() -> None:
    rules = Rules(intervals={"sky": timedelta(minutes=1)})
    gap: list[Point] = [
        *(a_reading(n / 4) for n in range(4)),
        *(a_reading(300 + n / 4) for n in range(4)),
    ]
    assert replayed([a_canary(0), *gap, a_canary(301)], rules) == []


def test_two_wrong_answers_of_three_are_a_quality_incident_as_the_probe_asks() -> None:
    def answers(*verdicts: str) -> list[Point]:
        return [a_canary(n, verdict=verdict) for n, verdict in enumerate(verdicts)]

    assert replayed(answers("pass", "fail", "pass", "pass", "pass")) == []
    wrong = answers("pass", "fail", "fail", "pass", "pass", "pass")
    assert story(replayed(wrong)) == [("quality", 2.0, 4.0)]
    lenient = Rules(probes={"sky": a_probe(repeats=3, require=1)})
    assert replayed(wrong, lenient) == []


def test_a_stale_verdict_pages_nobody() -> None:
    [entry] = replayed([a_canary(n, verdict="fail", stale=True) for n in range(3)])
    assert entry.severity is Severity.INFO


def test_log_probabilities_that_moved_are_found_with_the_pins_at_hand() -> None:
    answered = PinnedOutput("Yes", ("Yes",), (1,), (-0.1,), "stop", 5)
    pins = {
        n: Pin(
            n,
            "local",
            f"p{n}",
            "first",
            None,
            "",
            "",
            NOON,
            NOON + timedelta(days=30),
            (answered,),
            10,
            noise_nat=0.01,
        )
        for n in range(1, 6)
    }
    points: list[Point] = [
        a_canary(
            10 * n + number / 10,
            probe=f"p{number}",
            verdict="pass",
            pin=number,
            running=0.0,
            logprob_shift=0.002 if n < 5 else 0.2,
        )
        for n in range(12)
        for number in pins
    ]
    entries = replayed(points, Rules(pins=pins))
    assert [(e.finding.kind, e.finding.subject) for e in entries] == [
        (Kind.QUALITY, "log-probabilities")
    ]
    assert replayed(points) == []
    crowded: list[Point] = [p._replace(running=None) for p in points if isinstance(p, CanaryPoint)]
    assert replayed(crowded, Rules(pins=pins)) == []  # nobody knows whether others were served


def test_failures_spread_over_all_probes_are_found_as_the_daemon_finds_them() -> None:
    """Every fourth run of twelve probes fails: each keeps its own rule, and all of them together do
    not.
    """
    names = [f"p{n}" for n in range(12)]
    points: list[Point] = [
        a_canary(15 * r + n / 10, probe=name, verdict="fail" if (r + n) % 4 == 0 else "pass")
        for r in range(30)
        for n, name in enumerate(names)
    ]
    [entry] = replayed(points)
    assert (entry.finding.kind, entry.finding.subject, entry.severity) == (
        Kind.QUALITY,
        SEVERAL,
        Severity.PAGE,
    )


def test_the_second_answer_of_a_probe_that_is_sent_twice_is_judged_as_the_probe_asks() -> None:
    points: list[Point] = [a_canary(n, probe="pair-again", verdict="fail") for n in range(4)]
    pair = a_probe("pair", same_salt_twice=True, repeats=4, require=1)
    assert story(replayed(points, Rules(probes={"pair": pair}))) == [("quality", 3.0, None)]


def test_a_long_healthy_time_costs_no_more_than_keeping_its_last_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked(*_: Any) -> Any:
        raise AssertionError("asked for nothing")

    monkeypatch.setattr(LastAnswers, "findings", asked)
    points: list[Point] = [
        a_canary(n, verdict="pass", pin=1, logprob_shift=0.001, running=0.0) for n in range(500)
    ]
    assert replayed(points) == []
