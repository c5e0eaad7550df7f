"""What must not matter to a detector, does not: when it happens, what the target is called, where
it is interrupted, in which unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from simulated_server import QUICK, ServerHistory, State, feed, known_us

from monitor.judge.drift.detector import Detector
from monitor.model import CanaryPoint, Finding, Point

STATE = TypeAdapter(Detector)
FEW = settings(max_examples=12, deadline=None)


def slower(state: State, _hour: float) -> None:
    state.slow, state.clock_mhz, state.power_w, state.thermal, state.temp_c = (
        1.1,
        1500.0,
        300.0,
        0.9,
        87.0,
    )


@cache
def points() -> tuple[Point, ...]:
    """Four hours of a healthy server, then one in which its GPU is too hot."""
    story = ServerHistory()
    return (*story.play(4.0), *story.play(1.0, slower))


def replay(
    what: Iterable[Point], target: str = "box", detector: Detector | None = None
) -> list[list[Finding]]:
    """What is found after each point at which it may have changed."""
    detector = Detector() if detector is None else detector
    found: list[list[Finding]] = [[]]
    now_us = 0
    for point in what:
        now_us = max(now_us, known_us(point))
        detector.observe(point, QUICK)
        if detector.advance(now_us, QUICK):
            found.append(detector.findings(target, now_us, QUICK))
    return found


@cache
def reference() -> list[list[Finding]]:
    return replay(points())


def shifted(point: Point, by_us: int) -> Point:
    if isinstance(point, CanaryPoint):
        start_us = None if point.process_start_us is None else point.process_start_us + by_us
        return point._replace(
            at_us=point.at_us + by_us, known_us=point.known_us + by_us, process_start_us=start_us
        )
    return point._replace(at_us=point.at_us + by_us)


def later(finding: Finding, by_us: int) -> dict[str, Any]:
    """A finding as plain values, with every moment in it moved."""
    evidence = dict(finding.evidence)
    if "effects" in evidence:
        evidence["effects"] = [
            {k: v for k, v in effect.items() if k != "since"} for effect in evidence["effects"]
        ]
    return {
        "key": finding.key,
        "severity": finding.severity,
        "cause": finding.cause,
        "since": finding.since + timedelta(microseconds=by_us),
        "evidence": evidence,
    }


def test_the_story_is_one_in_which_something_is_found() -> None:
    assert len(reference()) > 5
    assert reference()[-1]


@FEW
@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_shifting_all_times_shifts_what_is_found_and_nothing_else(by_us: int) -> None:
    moved = replay(shifted(point, by_us) for point in points())
    assert [[later(f, 0) for f in found] for found in moved] == [
        [later(f, by_us) for f in found] for found in reference()
    ]


@FEW
@given(st.text(min_size=1, max_size=20))
def test_the_name_of_the_target_is_in_texts_alone(name: str) -> None:
    renamed = replay(points(), target=name)
    nameless = [
        [replace(f, target="", summary=f.summary.removeprefix(f"{name}:")) for f in found]
        for found in renamed
    ]
    assert nameless == [
        [replace(f, target="", summary=f.summary.removeprefix("box:")) for f in found]
        for found in reference()
    ]


@FEW
@given(st.lists(st.integers(min_value=0, max_value=len(points())), max_size=4))
def test_a_replay_may_be_cut_anywhere_and_taken_up_from_what_was_stored(cuts: list[int]) -> None:
    detector, begin = Detector(), 0
    found: list[list[Finding]] = [[]]
    for end in (*sorted(cuts), len(points())):
        found += replay(points()[begin:end], detector=detector)[1:]
        detector, begin = STATE.validate_json(STATE.dump_json(detector)), end
    assert found == reference()


def test_what_is_stored_and_taken_up_is_the_same_to_the_last_digit() -> None:
    detector = Detector()
    feed(detector, iter(points()))
    assert STATE.validate_json(STATE.dump_json(detector)) == detector
    assert STATE.dump_json(STATE.validate_json(STATE.dump_json(detector))) == STATE.dump_json(
        detector
    )


@FEW
@given(st.sampled_from([0.001, 0.25, 2.0, 60.0, 1000.0]))
def test_another_unit_of_the_first_token_changes_no_conclusion(factor: float) -> None:
    def scaled(point: Point) -> Point:
        if not isinstance(point, CanaryPoint) or point.ttft_ms is None:
            return point
        return point._replace(ttft_ms=point.ttft_ms * factor)

    found = replay(scaled(point) for point in points())
    assert [[(f.key, f.severity, f.cause, f.since) for f in fs] for fs in found] == [
        [(f.key, f.severity, f.cause, f.since) for f in fs] for fs in reference()
    ]
    assert found[-1][0].evidence["change_pct"] == pytest.approx(
        reference()[-1][0].evidence["change_pct"], abs=0.02
    )


@FEW
@given(st.sampled_from([0.001, 0.25, 2.0, 60.0]))
def test_another_unit_of_the_decode_rate_changes_no_conclusion(factor: float) -> None:
    def scaled(point: Point) -> Point:
        if not isinstance(point, CanaryPoint) or point.decode_tok_s is None:
            return point
        return point._replace(decode_tok_s=point.decode_tok_s * factor)

    found = replay(scaled(point) for point in points())
    assert [[(f.key, f.severity, f.cause) for f in fs] for fs in found] == [
        [(f.key, f.severity, f.cause) for f in fs] for fs in reference()
    ]
    assert found[-1][0].evidence["change_pct"] == pytest.approx(
        reference()[-1][0].evidence["change_pct"], abs=0.02
    )


def test_how_often_the_time_is_told_changes_nothing() -> None:
    often, seldom = Detector(), Detector()
    now_us = 0
    for number, point in enumerate(points()):
        now_us = max(now_us, known_us(point))
        for detector in (often, seldom):
            detector.observe(point, QUICK)
        often.advance(now_us, QUICK)
        if number % 7 == 0:
            seldom.advance(now_us, QUICK)
    end_us = now_us + 3_600_000_000
    often.advance(end_us, QUICK)
    seldom.advance(end_us, QUICK)
    assert often.speed == seldom.speed
    assert often.server == seldom.server
    assert often.gpus["GPU-1"].baseline == seldom.gpus["GPU-1"].baseline
