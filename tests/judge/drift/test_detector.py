"""The whole detector on stories of one server: what it finds, and that it stays silent."""

from __future__ import annotations

import time

import pytest
from pydantic import TypeAdapter
from simulated_server import QUICK, START_US, ServerHistory, State, feed

from monitor.judge.drift.detector import Detector
from monitor.judge.drift.settings import HOUR_US, DriftSettings
from monitor.model import Cause, GpuPoint, Kind, Severity

STATE = TypeAdapter(Detector)


def learnt(story: ServerHistory, hours: float = 4.0) -> Detector:
    detector = Detector()
    assert feed(detector, story.play(hours)) == []
    return detector


def hot(state: State, hour: float) -> None:
    """The heat sink clogs within half an hour; at 87 °C the GPU begins to throttle."""
    state.temp_c = min(87.0, 55.0 + 64.0 * hour)
    if state.temp_c >= 87.0:
        state.thermal, state.clock_mhz, state.power_w, state.slow, state.bits = (
            0.9,
            1700.0,
            320.0,
            1.05,
            0x20,
        )


def test_a_healthy_server_is_not_spoken_of() -> None:
    story = ServerHistory()
    learnt(story, 12.0)


def test_a_gpu_that_gets_too_hot_is_warned_of_before_it_is_felt() -> None:
    story = ServerHistory()
    detector = learnt(story)
    found = feed(detector, story.play(0.6, hot))
    assert [(f.kind, f.subject, f.cause, f.severity) for f in found] == [
        (Kind.THERMAL, "GPU-1", Cause.HEAT, Severity.WARNING)
    ]


def test_the_slow_decoding_that_follows_is_the_same_incident() -> None:
    story = ServerHistory()
    detector = learnt(story)
    early = feed(detector, story.play(0.6, hot))
    found = feed(detector, story.play(1.0))
    assert [f.key for f in found] == [f.key for f in early]
    assert found[0].severity is Severity.PAGE
    assert found[0].evidence["metric"] == "decode_tok_s"
    assert -7.0 < found[0].evidence["change_pct"] < -3.0


def test_slow_decoding_without_any_sign_is_unexplained() -> None:
    story = ServerHistory()
    detector = learnt(story)
    story.state.slow = 1.1
    (found,) = feed(detector, story.play(1.0))
    assert (found.kind, found.subject, found.cause) == (Kind.SPEED, "decode", Cause.UNEXPLAINED)
    assert abs((found.since.timestamp() - (START_US + 4 * HOUR_US) / 1e6) / 60) <= 10


def test_a_start_that_lands_slow_is_a_slow_start() -> None:
    story = ServerHistory()
    detector = learnt(story)
    story.state.slow, story.state.process_us = 1.2, START_US + 4 * HOUR_US
    (found,) = feed(detector, story.play(1.0))
    assert (found.kind, found.cause) == (Kind.SLOW_START, Cause.SLOW_STATE)


def test_a_start_that_lands_slow_is_told_as_one_and_never_as_slow_first_tokens_before() -> None:
    for slow in (1.2, 1.5):
        story = ServerHistory()
        detector = learnt(story)
        story.state.slow, story.state.process_us = slow, START_US + 4 * HOUR_US
        told = {(f.kind, f.cause) for _ in range(12) for f in feed(detector, story.play(5 / 60))}
        assert told == {(Kind.SLOW_START, Cause.SLOW_STATE)}


def test_a_restart_as_good_as_the_last_is_not_spoken_of() -> None:
    story = ServerHistory()
    detector = learnt(story)
    story.state.process_us = START_US + 4 * HOUR_US
    assert feed(detector, story.play(2.0)) == []


def test_a_queue_is_found_within_minutes() -> None:
    story = ServerHistory()
    detector = learnt(story)
    story.state.stuck, story.state.waiting = True, 20.0
    (found,) = feed(detector, story.play(0.12))
    assert (found.kind, found.cause, found.severity) == (
        Kind.SERVICE_LEVEL,
        Cause.QUEUEING,
        Severity.PAGE,
    )


def test_a_change_of_the_configuration_that_costs_speed_says_how_much() -> None:
    story = ServerHistory()
    detector = learnt(story)
    story.state.digest, story.state.slow = "b", 1.08
    (found,) = feed(detector, story.play(1.0))
    assert (found.kind, found.subject, found.cause) == (
        Kind.CONFIG_CHANGE,
        "fingerprint",
        Cause.CONFIG_CHANGE,
    )
    assert -10.0 < found.evidence["change_pct"] < -5.0


def test_a_change_that_costs_nothing_is_over_once_that_is_known() -> None:
    story = ServerHistory()
    detector = learnt(story)
    story.state.digest = "b"
    assert feed(detector, story.play(0.1))[0].severity is Severity.INFO
    assert feed(detector, story.play(1.5)) == []


def test_after_a_pin_what_is_slow_is_normal() -> None:
    story = ServerHistory()
    detector = learnt(story)
    story.state.slow = 1.1
    assert feed(detector, story.play(1.0))
    detector.relearn(START_US + 5 * HOUR_US)
    assert feed(detector, story.play(6.0)) == []


def test_a_pin_does_not_end_what_a_gpu_still_shows() -> None:
    story = ServerHistory()
    detector = learnt(story)
    early = feed(detector, story.play(0.6, hot))
    now_us = START_US + int(4.6 * HOUR_US)
    detector.relearn(now_us)
    assert detector.advance(now_us, QUICK)
    (found,) = detector.findings("box", now_us, QUICK)
    assert (found.key, found.since) == (early[0].key, early[0].since)


def test_asking_changes_nothing() -> None:
    story = ServerHistory()
    detector = learnt(story)
    feed(detector, story.play(0.6, hot))
    before = STATE.dump_json(detector)
    for _ in range(3):
        detector.findings("box", START_US + 5 * HOUR_US, QUICK)
        detector.armed(QUICK)
        detector.suspicion(QUICK)
    assert STATE.dump_json(detector) == before


def test_suspicion_rises_before_the_alarm() -> None:
    story = ServerHistory()
    detector = learnt(story)
    assert detector.suspicion(QUICK) < 1 / 3
    story.state.slow = 1.04
    highest = 0.0
    for _ in range(40):
        if feed(detector, story.play(1 / 60)):
            break
        highest = max(highest, detector.suspicion(QUICK))
    assert highest > 1 / 3


def test_what_is_armed_is_said_of_every_part() -> None:
    story = ServerHistory()
    detector = learnt(story)
    armed = {a.what: a.armed for a in detector.armed(QUICK)}
    assert armed["decode rate"]
    assert armed["throttling of GPU GPU-1"]
    assert not {a.what: a.armed for a in detector.armed(DriftSettings())}["workload"]


def test_a_gpu_that_was_replaced_is_forgotten_when_others_were_read_for_a_week() -> None:
    detector = Detector()
    detector.observe(GpuPoint(START_US, "GPU-old", util=0.9, temp_c=60.0), QUICK)
    kept: dict[int, list[str]] = {}
    for hour in range(24, 24 * 10):
        at_us = START_US + hour * HOUR_US
        detector.observe(GpuPoint(at_us, "GPU-new", util=0.9, temp_c=60.0), QUICK)
        detector.advance(at_us, QUICK)
        kept[hour] = list(detector.gpus)
    assert kept[24 * 7] == ["GPU-old", "GPU-new"]
    assert kept[24 * 10 - 1] == ["GPU-new"]


def test_advance_says_whether_there_is_anything_new_to_tell() -> None:
    detector = Detector()
    assert detector.advance(START_US, QUICK) is False
    assert detector.findings("box", START_US, QUICK) == []


def test_state_stays_small() -> None:
    story = ServerHistory()
    detector = learnt(story, 40.0)
    assert len(STATE.dump_json(detector)) < 200_000


@pytest.mark.parametrize("trouble", [False, True])
def test_one_step_costs_little(trouble: bool) -> None:
    story = ServerHistory()
    detector = learnt(story, 12.0)
    if trouble:
        feed(detector, story.play(1.0, hot))
    points = list(story.play(1.0))
    begun = time.process_time()
    feed(detector, iter(points))
    assert (time.process_time() - begun) / len(points) < 0.005
