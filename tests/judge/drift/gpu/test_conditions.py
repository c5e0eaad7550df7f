"""One GPU, watched for what will be felt later."""

from __future__ import annotations

import random

import pytest
from pydantic import TypeAdapter
from simulated_gpu import HEALTHY, SETTINGS, START_US, GpuHistory, conditions_of, feed, warmed

from monitor.judge.drift.gpu.channel import GpuChannel
from monitor.judge.drift.settings import HOUR_US, MINUTE_US, SECOND_US, DriftSettings
from monitor.model import CanaryPoint, GpuPoint, GpuWarning, Severity

ADAPTER = TypeAdapter(GpuChannel)


def only(channel: GpuChannel) -> GpuWarning:
    (warning,) = channel.warnings(SETTINGS)
    return warning


# -- what needs no learning


def test_a_healthy_gpu_is_silent() -> None:
    assert conditions_of(GpuHistory().play(8).channel()) == []


def test_throttling_is_warned_of_from_the_first_minutes_on() -> None:
    story = GpuHistory().play(0.1, thermal=0.2)
    warning = only(story.channel())
    assert (warning.condition, warning.severity, warning.uuid) == (
        "thermal_duty",
        Severity.WARNING,
        "GPU-1",
    )
    assert warning.cause == "heat"
    assert warning.figures.thermal_duty == pytest.approx(0.2, abs=0.03)
    assert warning.figures.usual_thermal_duty == 0.0


def test_the_onset_is_dated_to_the_minute_in_which_it_began() -> None:
    story = GpuHistory().play(2.0).play(0.2, thermal=0.5)
    assert only(story.channel()).since_us == pytest.approx(START_US + 2 * HOUR_US, abs=MINUTE_US)


def test_a_minute_of_throttling_is_nobodys_business() -> None:
    assert conditions_of(GpuHistory().play(1.0).play(1 / 60, thermal=0.5).play(0.1).channel()) == []


def test_a_gpu_that_always_throttles_a_little_is_warned_of_only_above_its_own_usual() -> None:
    chronic = GpuHistory(every_s=60).play(30.0, thermal=0.015)
    assert conditions_of(chronic.channel()) == []
    assert conditions_of(chronic.play(0.2, thermal=0.06).channel()) == ["thermal_duty"]


def test_it_is_over_after_a_quarter_of_an_hour_without() -> None:
    story = GpuHistory().play(0.2, thermal=0.5)
    assert conditions_of(story.play(0.2).channel()) == ["thermal_duty"]
    assert conditions_of(story.play(0.1).channel()) == []


def test_silence_closes_nothing() -> None:
    channel = GpuHistory().play(0.2, thermal=0.5).channel()
    channel.advance(START_US + 24 * HOUR_US, SETTINGS)
    assert conditions_of(channel) == ["thermal_duty"]


def test_counters_that_cannot_be_read_leave_the_bits_and_it_is_said() -> None:
    blind = HEALTHY._replace(throttle_thermal_ns=None, event_reasons=0x20)
    warning = only(GpuHistory(blind).play(0.2).channel())
    assert warning.condition == "thermal_duty"
    assert (warning.figures.thermal_duty, warning.figures.thermal_bits) == (None, 1.0)


@pytest.mark.parametrize("bit", [0x1, 0x2, 0x4, 0x8, 0x10, 0x100, 0x200, 0x400])
def test_bits_that_are_set_on_healthy_gpus_say_nothing(bit: int) -> None:
    """SwPowerCap is on all the time on many (an RTX 2080S even at idle), unknown bits may come."""
    assert (
        conditions_of(
            GpuHistory(HEALTHY._replace(event_reasons=bit)).play(3.0, power=1.0).channel()
        )
        == []
    )


@pytest.mark.parametrize(
    ("bit", "sign", "cause"), [(0x48, "hw_thermal", "heat"), (0x88, "brake", "power_brake")]
)
def test_two_looks_with_a_hardware_slowdown_are_a_page_at_once(
    bit: int, sign: str, cause: str
) -> None:
    channel = GpuHistory().play(1.0).channel()
    now_us = START_US + HOUR_US + 3 * MINUTE_US
    channel.gpu(HEALTHY._replace(at_us=now_us, event_reasons=bit), SETTINGS)
    assert conditions_of(channel) == []
    channel.gpu(HEALTHY._replace(at_us=now_us + 5 * SECOND_US, event_reasons=bit), SETTINGS)
    warning = only(channel)
    assert (warning.condition, warning.severity, warning.since_us) == (sign, Severity.PAGE, now_us)
    assert warning.cause == cause


def test_a_slowdown_that_flashes_is_not_one() -> None:
    story = GpuHistory().play(0.3)
    story.points = [
        p._replace(event_reasons=0x88 if i % 2 else 0) for i, p in enumerate(story.points)
    ]
    assert conditions_of(story.channel()) == []


def test_a_brake_is_over_five_minutes_after_its_last_look() -> None:
    braked = (
        GpuHistory()
        .play(0.5)
        .play(0.2, lambda p, _: p._replace(event_reasons=0x88, sm_clock_mhz=990.0), brake=1.0)
    )
    assert "brake" in conditions_of(braked.channel())
    assert conditions_of(braked.play(0.15).channel()) == []


def test_little_margin_while_it_works_is_warned_of_and_not_while_it_idles() -> None:
    hot = HEALTHY._replace(margin_c=3.0, temp_c=84.0)
    assert only(GpuHistory(hot).play(0.2).channel()).condition == "margin"
    assert conditions_of(GpuHistory(hot._replace(util=0.0)).play(0.2).channel()) == []


def test_memory_near_its_maximum_beside_a_cool_core_is_memory_heat() -> None:
    hot = HEALTHY._replace(margin_c=3.0, temp_c=52.0, mem_temp_c=95.0)
    warning = only(GpuHistory(hot).play(0.2).channel())
    assert warning.cause == "memory_heat"
    assert warning.figures.mem_temp_c == 95.0


def test_throttling_without_a_memory_temperature_is_the_memory_s_when_the_core_is_cool() -> None:
    quiet = GpuHistory(HEALTHY._replace(mem_temp_c=None, margin_c=None)).play(2.0)
    quiet.play(0.3, lambda p, _: p._replace(temp_c=54.0, sm_clock_mhz=1700.0), thermal=0.9)
    assert only(quiet.channel()).cause == "memory_heat"
    hot = GpuHistory(HEALTHY._replace(mem_temp_c=None, margin_c=None)).play(2.0)
    hot.play(0.3, lambda p, _: p._replace(temp_c=84.0, sm_clock_mhz=1700.0), thermal=0.9)
    assert only(hot.channel()).cause == "heat"


def test_a_known_limit_of_the_memory_counts_where_the_gpu_tells_no_margin() -> None:
    volta = HEALTHY._replace(margin_c=None, temp_c=70.0, mem_temp_c=83.0)
    settings = DriftSettings(memory_max_c=85.0)
    channel = GpuHistory(volta).play(0.2).channel(settings)
    (warning,) = channel.warnings(settings)
    assert (warning.condition, warning.cause) == ("margin", "memory_heat")
    assert warning.figures.least_margin_c == 2.0
    assert conditions_of(GpuHistory(volta).play(0.2).channel()) == []


def test_a_lowered_power_limit_is_told_with_both_figures() -> None:
    story = (
        GpuHistory()
        .play(1.0)
        .play(0.2, lambda p, _: p._replace(power_limit_w=390.0, power_w=389.0))
    )
    warning = only(story.channel())
    assert (warning.condition, warning.severity) == ("power_limit", Severity.WARNING)
    figures = warning.figures
    assert (figures.power_limit_w, figures.usual_power_limit_w) == (390.0, 700.0)
    assert figures.binding
    assert warning.cause == "power_cap"


def test_a_limit_that_binds_nothing_is_only_mentioned() -> None:
    story = GpuHistory().play(1.0).play(0.2, lambda p, _: p._replace(power_limit_w=600.0))
    assert only(story.channel()).severity is Severity.INFO


def test_a_limit_that_was_raised_is_the_new_one_after_half_an_hour() -> None:
    story = GpuHistory(HEALTHY._replace(power_limit_w=500.0)).play(1.0)
    story.point = story.point._replace(power_limit_w=700.0)
    story.play(1.0)
    assert conditions_of(story.channel()) == []
    story.point = story.point._replace(power_limit_w=500.0)
    assert conditions_of(story.play(0.2).channel()) == ["power_limit"]


# -- what is learnt


def slowed(clock: float, watts: float | None = None, **changes: object) -> GpuHistory:
    """Three healthy hours, then a quarter of an hour at another clock."""
    power = 400.0 if watts is None else watts
    return (
        GpuHistory()
        .play(3.0)
        .play(0.25, lambda p, _: p._replace(sm_clock_mhz=clock, power_w=power, **changes))
    )


def test_a_clock_below_what_the_gpu_does_at_this_power_is_warned_of_with_what_it_costs() -> None:
    warning = only(slowed(1860.0).channel())
    assert (warning.condition, warning.severity) == ("clock_deficit", Severity.WARNING)
    assert (warning.figures.sm_clock_mhz, warning.figures.usual_clock_mhz) == (1860.0, 1980.0)
    assert warning.expected is not None
    assert warning.expected.decode_pct == pytest.approx(-2.8, abs=0.2)
    assert round(warning.expected.ttft_pct) == 5


def test_much_less_clock_and_power_without_a_reason_is_a_hidden_limit() -> None:
    warning = only(slowed(799.0, 150.0).channel())
    assert warning.condition == "hidden_limit"
    assert warning.cause == "hidden_limit"


def test_where_reasons_cannot_be_read_nobody_claims_that_there_are_none() -> None:
    assert only(slowed(799.0, 150.0, event_reasons=None).channel()).condition == "clock_deficit"


def test_a_low_clock_that_throttling_explains_is_told_once() -> None:
    story = (
        GpuHistory()
        .play(3.0)
        .play(0.3, lambda p, _: p._replace(sm_clock_mhz=1500.0, power_w=300.0), thermal=0.6)
    )
    warning = only(story.channel())
    assert warning.condition == "thermal_duty"
    assert (warning.figures.sm_clock_mhz, warning.figures.usual_clock_mhz) == (1500.0, 1980.0)


def test_idle_clocks_are_no_deficit() -> None:
    idle = (
        GpuHistory()
        .play(3.0)
        .play(
            2.0,
            lambda p, _: p._replace(
                util=0.0, sm_clock_mhz=345.0, power_w=75.0, temp_c=35.0, event_reasons=1
            ),
        )
    )
    assert conditions_of(idle.channel()) == []


def test_dips_at_prefill_bursts_are_no_deficit() -> None:
    story = GpuHistory().play(3.0)
    dips = random.Random(4)
    story.play(1.0, lambda p, _: p._replace(sm_clock_mhz=1530.0 if dips.random() < 0.3 else 1980.0))
    assert conditions_of(story.channel()) == []


def test_the_clock_that_an_unchanged_limit_leaves_to_heavy_work_is_no_deficit() -> None:
    capped = GpuHistory(HEALTHY._replace(power_limit_w=470.0)).play(3.0)
    capped.play(1.0, lambda p, _: p._replace(power_w=468.0, sm_clock_mhz=1500.0), power=1.0)
    assert conditions_of(capped.channel()) == []


def test_more_time_at_the_power_cap_than_usual_is_told_where_the_limit_cannot_be_read() -> None:
    unread = GpuHistory(HEALTHY._replace(power_limit_w=None)).play(8.0)
    unread.play(0.4, lambda p, _: p._replace(power_w=300.0, sm_clock_mhz=1700.0), power=0.95)
    assert only(unread.channel()).condition == "power_duty"


def test_heat_that_power_does_not_explain_is_told_before_anything_is_held_back() -> None:
    story = GpuHistory().play(5.0)
    warning = only(
        feed(
            GpuChannel("GPU-1"),
            warmed(story.points, tin_c=44.0, cooling=lambda h: 1.0 if h < 4.5 else 2.0),
        )
    )
    assert (warning.condition, warning.severity) == ("thermal_residual", Severity.WARNING)
    assert 5 < warning.figures.margin_c < 10
    assert warning.figures.residual_c == pytest.approx(13.6, abs=3.0)


def test_a_great_deal_of_unexplained_heat_is_mentioned_also_where_there_is_room() -> None:
    story = GpuHistory().play(5.0)
    warning = only(
        feed(GpuChannel("GPU-1"), warmed(story.points, cooling=lambda h: 1.0 if h < 4.5 else 2.4))
    )
    assert (warning.condition, warning.severity) == ("thermal_residual", Severity.INFO)
    assert warning.figures.margin_c > 10


def with_memory(points: list[GpuPoint], over_c: float) -> list[GpuPoint]:
    """Memory so much hotter than the core at 400 W, and 3 °C more for 100 W more."""
    return [
        p._replace(mem_temp_c=(p.temp_c or 0.0) + over_c + 0.03 * ((p.power_w or 0.0) - 400.0))
        for p in points
    ]


def test_a_core_held_at_its_limit_is_heat_although_the_memory_draws_less_too() -> None:
    """What it still draws explains a memory far cooler than this; but that is no further above the
    core than it always was.
    """
    story = GpuHistory(HEALTHY._replace(power_w=400.0)).play(4.0)
    story.point = HEALTHY._replace(power_w=200.0)
    story.play(1.0)
    story.point = HEALTHY._replace(power_w=400.0)
    healthy = with_memory(warmed(story.play(1.0).points), 10.0)
    story.points = []
    hot = story.play(
        0.6,
        lambda p, _: p._replace(
            temp_c=87.0, mem_temp_c=97.0, margin_c=0.0, power_w=200.0, sm_clock_mhz=1200.0
        ),
        thermal=0.9,
    )
    channel = feed(GpuChannel("GPU-1"), [*healthy, *hot.points])
    assert [w.condition for w in channel.warnings(SETTINGS) if w.cause != "heat"] == []
    assert {"thermal_duty", "thermal_residual"} <= set(conditions_of(channel))
    newest = channel.history.minutes[-1]
    assert (newest.mem_residual_c or 0.0) - (
        newest.residual_c or 0.0
    ) > SETTINGS.residual_c  # it is not that there was nothing to see


def test_memory_that_is_further_above_a_hot_core_than_ever_is_memory_heat() -> None:
    story = GpuHistory().play(5.0)
    points = with_memory(warmed(story.points, cooling=lambda h: 1.0 if h < 4.5 else 2.4), 10.0)
    since_us = START_US + round(4.5 * HOUR_US)
    hotter = [
        p if p.at_us < since_us else p._replace(mem_temp_c=(p.mem_temp_c or 0.0) + 40.0)
        for p in points
    ]
    assert "memory_residual" in conditions_of(feed(GpuChannel("GPU-1"), hotter))
    assert "memory_residual" not in conditions_of(feed(GpuChannel("GPU-1"), points))


def test_a_warm_up_is_not_heat() -> None:
    story = GpuHistory()
    for turn in range(20):
        story.point = HEALTHY._replace(power_w=620.0 if turn % 2 else 250.0)
        story.play(0.5)
    assert conditions_of(feed(GpuChannel("GPU-1"), warmed(story.points, tin_c=42.0))) == []


def test_a_trouble_that_creeps_up_does_not_become_the_norm() -> None:
    story = GpuHistory().play(30.0)
    points = warmed(
        story.points,
        tin_c=50.0,
        cooling=lambda h: 1.0 + max(0.0, h - 6.0) * 0.5 if h < 8.0 else 2.0,
    )
    assert "thermal_residual" in conditions_of(feed(GpuChannel("GPU-1"), points))


def test_a_pin_accepts_a_limit_and_a_clock_but_no_throttling() -> None:
    story = (
        GpuHistory()
        .play(3.0)
        .play(
            0.3,
            lambda p, _: p._replace(power_limit_w=300.0, sm_clock_mhz=1500.0, power_w=298.0),
            thermal=0.3,
        )
    )
    channel = story.channel()
    assert conditions_of(channel) == ["power_limit", "thermal_duty"]
    channel.relearn()
    assert conditions_of(channel) == ["thermal_duty"]


# -- samples instead of polls


def sampled(minutes: int, **changes: object) -> list[CanaryPoint]:
    healthy = CanaryPoint(
        0,
        0,
        gpu_uuid="GPU-1",
        gpu_temp_c=60.0,
        gpu_margin_c=27.0,
        sm_clock_mhz=1980.0,
        gpu_util=0.6,
        power_w=400.0,
        power_limit_w=700.0,
        throttle_thermal_ms=0.0,
        throttle_power_ms=0.0,
        throttle_brake_ms=0.0,
    )
    jitter = random.Random(7)
    return [
        healthy._replace(power_w=400.0 + jitter.uniform(-60, 60))._replace(
            at_us=at, known_us=at + 2 * SECOND_US, **changes
        )
        for at in range(START_US, START_US + minutes * MINUTE_US, MINUTE_US)
    ]


def told(points: list[CanaryPoint]) -> GpuChannel:
    channel = GpuChannel("GPU-1")
    for number, point in enumerate(points):
        at_us = START_US + number * MINUTE_US
        channel.canary(point._replace(at_us=at_us, known_us=at_us + 2 * SECOND_US), SETTINGS)
        channel.advance(at_us + 5 * SECOND_US, SETTINGS)
    channel.advance(START_US + len(points) * MINUTE_US + MINUTE_US, SETTINGS)
    return channel


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        ({"throttle_thermal_ms": 800.0}, "thermal_duty"),
        ({"throttle_brake_ms": 2000.0}, "brake"),
        ({"gpu_margin_c": 2.0}, "margin"),
        ({"power_limit_w": 300.0}, "power_limit"),
        ({"sm_clock_mhz": 1700.0}, "clock_deficit"),
    ],
)
def test_history_without_readings_of_the_gpu_shows_the_same_signs(
    changes: dict[str, object], sign: str
) -> None:
    points = sampled(200)
    assert conditions_of(told(points)) == []
    assert sign in conditions_of(told(points + sampled(12, **changes)))


def test_minutes_that_are_passed_over_quickly_are_those_that_no_rule_would_have_minded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = sampled(150)
    for changes in (
        {"sm_clock_mhz": 1940.0},
        {"throttle_thermal_ms": 400.0},
        {"gpu_margin_c": 4.0},
        {"sm_clock_mhz": 1700.0},
        {},
    ):
        points += sampled(12, **changes)
    quick = told(points)
    monkeypatch.setattr("monitor.judge.drift.gpu.channel.is_unremarkable", lambda *_: False)
    slow = told(points)
    assert quick.conditions.states == slow.conditions.states
    assert quick.baseline == slow.baseline
    assert quick.warnings(SETTINGS) == slow.warnings(SETTINGS)


def test_a_throttle_time_that_outran_the_clock_is_no_throttling() -> None:
    """40 000 s in an answer of two seconds, of a cool GPU at full clock."""
    assert conditions_of(told(sampled(100) + sampled(20, throttle_thermal_ms=4e7))) == []


def test_a_low_clock_is_seen_beside_answers_of_which_nobody_told_the_length() -> None:
    def untimed(points: list[CanaryPoint]) -> GpuChannel:
        channel = GpuChannel("GPU-1")
        for number, point in enumerate(points):
            at_us = START_US + number * MINUTE_US
            channel.canary(point._replace(at_us=at_us, known_us=at_us), SETTINGS)
            channel.advance(at_us + 5 * SECOND_US, SETTINGS)
        channel.advance(START_US + len(points) * MINUTE_US + MINUTE_US, SETTINGS)
        return channel

    assert conditions_of(untimed(sampled(200))) == []
    assert conditions_of(untimed(sampled(200) + sampled(12, sm_clock_mhz=1700.0))) == [
        "clock_deficit"
    ]
    idle = sampled(12, sm_clock_mhz=345.0, gpu_util=0.0)
    assert conditions_of(untimed(sampled(200) + idle)) == []


def test_throttle_time_alone_is_enough_to_be_seen() -> None:
    bare = CanaryPoint(0, 0, gpu_uuid="GPU-1", throttle_thermal_ms=0.0)
    points = [bare] * 20 + [bare._replace(throttle_thermal_ms=1500.0)] * 10
    assert conditions_of(told(points)) == ["thermal_duty"]


def test_samples_of_another_gpu_are_not_taken() -> None:
    channel = GpuChannel("GPU-1")
    channel.canary(sampled(1)[0]._replace(gpu_uuid="GPU-2"), SETTINGS)
    assert channel.grid.anchor_us is None


# -- what is missing, and what works


def test_what_an_exporter_leaves_out_by_default_is_named_with_how_to_get_it() -> None:
    bare = HEALTHY._replace(
        event_reasons=None, throttle_thermal_ns=None, throttle_power_ns=None, throttle_brake_ns=None
    )
    missing = " ".join(GpuHistory(bare).play(1.0).channel().missing())
    for name in (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "DCGM_FI_DEV_POWER_VIOLATION",
    ):
        assert name in missing
    assert "DCGM_FI_DEV_SM_CLOCK" not in missing
    assert GpuHistory().play(1.0).channel().missing() == ()


def test_throttling_is_armed_at_once_and_the_rest_when_it_was_learnt() -> None:
    armed = {a.what.split(" of ")[0]: a for a in GpuHistory().play(0.2).channel().armed()}
    assert armed["throttling"].armed
    assert not armed["clock"].armed
    assert "of 60 busy minutes" in armed["clock"].detail
    later = {a.what.split(" of ")[0]: a.armed for a in GpuHistory().play(4.0).channel().armed()}
    assert later == {
        "throttling": True,
        "clock": True,
        "unexplained heat": True,
        "throttle time baseline": False,
    }


def test_a_gpu_without_counters_is_not_armed_for_throttling_and_says_why() -> None:
    bare = HEALTHY._replace(event_reasons=None, throttle_thermal_ns=None)
    armed = GpuHistory(bare).play(1.0).channel().armed()[0]
    assert not armed.armed
    assert "DCGM_FI_DEV_THERMAL_VIOLATION" in armed.detail


# -- state


def troubled() -> list[GpuPoint]:
    story = (
        GpuHistory()
        .play(3.0)
        .play(0.4, lambda p, _: p._replace(sm_clock_mhz=1500.0, power_w=300.0), thermal=0.6)
    )
    return warmed(story.play(0.6).play(0.2, lambda p, _: p._replace(power_limit_w=390.0)).points)


def test_writing_it_down_anywhere_and_taking_it_up_again_changes_nothing() -> None:
    points = troubled()
    whole = feed(GpuChannel("GPU-1"), points)
    for cut in range(97, len(points), 311):
        begun = GpuChannel("GPU-1")
        for point in points[:cut]:
            begun.gpu(point, SETTINGS)
            begun.advance(point.at_us, SETTINGS)
        again = feed(ADAPTER.validate_json(ADAPTER.dump_json(begun)), points[cut:])
        assert again == whole
        assert again.warnings(SETTINGS) == whole.warnings(SETTINGS)


def test_shifting_all_times_shifts_only_the_dates() -> None:
    points, shift_us = troubled(), 7 * HOUR_US + 12_345
    here = feed(GpuChannel("GPU-1"), points).warnings(SETTINGS)
    there = feed(
        GpuChannel("GPU-1"), [point._replace(at_us=point.at_us + shift_us) for point in points]
    ).warnings(SETTINGS)
    assert here
    assert [(w.condition, w.since_us + shift_us, w.figures, w.expected) for w in here] == [
        (w.condition, w.since_us, w.figures, w.expected) for w in there
    ]


def test_how_often_the_time_is_told_changes_nothing() -> None:
    points = troubled()
    rarely = GpuChannel("GPU-1")
    for number, point in enumerate(points):
        rarely.gpu(point, SETTINGS)
        if number % 3 == 0:
            rarely.advance(point.at_us, SETTINGS)
    rarely.advance(points[-1].at_us + 2 * MINUTE_US, SETTINGS)
    assert rarely == feed(GpuChannel("GPU-1"), points)


def test_a_look_that_comes_after_its_minute_was_closed_is_counted_and_left_out() -> None:
    story = GpuHistory().play(1.0)
    channel = story.channel()
    before = ADAPTER.dump_json(channel)
    channel.gpu(HEALTHY._replace(at_us=START_US + 10 * MINUTE_US, temp_c=99.0), SETTINGS)
    channel.advance(story.points[-1].at_us + 2 * MINUTE_US, SETTINGS)
    assert channel.grid.dropped == 1
    kept = ADAPTER.validate_json(before)
    channel.grid.dropped, channel.grid.behind = 0, 0
    channel.presence, channel.ceiling = kept.presence, kept.ceiling
    assert ADAPTER.dump_json(channel) == before
    channel.grid.dropped = 7
    assert (
        "7 readings arrived after their minute was judged and were left out"
        in channel.armed()[0].detail
    )


def ahead(years: float = 1.0) -> GpuPoint:
    """A healthy look of a machine whose clock is ahead."""
    return HEALTHY._replace(at_us=START_US + 2 * HOUR_US + round(years * 365 * 24 * HOUR_US))


def hot_after(channel: GpuChannel, told_us: int | None) -> GpuChannel:
    """Twenty minutes of throttling; the time is told as it is, or as one that is ahead and stands
    still.
    """
    story = GpuHistory()
    story.at_us = START_US + 2 * HOUR_US
    for point in story.play(0.33, thermal=0.9).points:
        channel.gpu(point, SETTINGS)
        channel.advance(point.at_us if told_us is None else told_us, SETTINGS)
    return channel


@pytest.mark.parametrize("years", [1.0, 2 / 24 / 365])
@pytest.mark.parametrize("told", [True, False])
def test_a_look_from_the_future_does_not_blind_a_gpu(years: float, told: bool) -> None:
    """Whether the time that is told was taken from that look, or is right."""
    channel, look = GpuHistory().play(2.0).channel(), ahead(years)
    channel.gpu(look, SETTINGS)
    if told:
        channel.advance(look.at_us + 2 * MINUTE_US, SETTINGS)
    (warning,) = hot_after(channel, look.at_us + 2 * MINUTE_US if told else None).warnings(SETTINGS)
    assert warning.condition == "thermal_duty"
    assert warning.since_us == pytest.approx(START_US + 2 * HOUR_US, abs=2 * MINUTE_US)
    assert channel.grid.dropped <= 2
    assert max(minute.at_us for minute in channel.history.minutes) < look.at_us


def test_another_reading_from_the_future_does_not_blind_a_gpu_either() -> None:
    channel = GpuHistory().play(2.0).channel()
    channel.advance(ahead().at_us, SETTINGS)
    assert conditions_of(hot_after(channel, ahead().at_us)) == ["thermal_duty"]


def test_a_brake_from_the_future_is_not_on_for_ever() -> None:
    channel, at_us = GpuHistory().play(2.0).channel(), ahead().at_us
    for number in range(3):
        channel.gpu(
            HEALTHY._replace(at_us=at_us + number * SECOND_US, event_reasons=0x88), SETTINGS
        )
    assert conditions_of(channel) == ["brake"]
    story = GpuHistory()
    story.at_us = START_US + 2 * HOUR_US
    assert conditions_of(feed(channel, story.play(0.3).points)) == []


def test_what_began_while_the_clock_was_ahead_is_not_dated_into_the_future() -> None:
    channel, story = GpuHistory().play(2.0).channel(), GpuHistory()
    story.at_us = ahead().at_us
    feed(channel, story.play(0.2, thermal=0.9).points)
    assert conditions_of(channel) == ["thermal_duty"]
    (warning,) = hot_after(channel, None).warnings(SETTINGS)
    assert warning.since_us == pytest.approx(START_US + 2 * HOUR_US, abs=2 * MINUTE_US)


def test_what_was_learnt_stays_when_the_clock_was_ahead() -> None:
    channel = GpuHistory().play(4.0).channel()
    channel.gpu(ahead(), SETTINGS)
    channel.advance(ahead().at_us + 2 * MINUTE_US, SETTINGS)
    story = GpuHistory()
    story.at_us = START_US + 4 * HOUR_US
    feed(channel, story.play(1.0).points)
    assert all(a.armed for a in channel.armed()[:3])
    assert channel.history.baseline().sm_clock_mhz == 1980.0
    assert 0 < len(channel.pending) < 40


def test_a_few_late_looks_do_not_turn_the_clock_back() -> None:
    story = GpuHistory().play(2.0)
    channel = story.channel()
    for point in story.play(0.3).points[-90:]:
        channel.gpu(point, SETTINGS)
        channel.gpu(HEALTHY._replace(at_us=point.at_us - HOUR_US, temp_c=99.0), SETTINGS)
        channel.advance(point.at_us, SETTINGS)
    assert channel.grid.dropped == 90
    assert [minute.temp_c for minute in channel.history.minutes if minute.temp_c != 60.0] == []


@pytest.mark.parametrize("step_s", [120.0, 20.0])
def test_another_length_of_a_step_blinds_no_gpu(step_s: float) -> None:
    story = GpuHistory().play(10.0)
    channel, settings = story.channel(), DriftSettings(gpu_step_s=step_s)
    begun = len(story.points)
    story.at_us += 3 * MINUTE_US  # `channel` was told two more minutes
    story.play(0.4, thermal=0.9)
    (warning,) = feed(channel, story.points[begun:], settings).warnings(settings)
    assert (warning.condition, channel.grid.dropped) == ("thermal_duty", 0)
    assert warning.since_us == pytest.approx(
        START_US + 10 * HOUR_US + 3 * MINUTE_US, abs=step_s * SECOND_US
    )
    assert channel.grid.step_us == step_s * SECOND_US
    assert len(channel.grid.waiting) <= 2


def test_looks_that_wait_are_not_lost_when_the_step_changes() -> None:
    channel, settings = GpuChannel("GPU-1"), DriftSettings(gpu_step_s=20.0)
    for second in range(0, 50, 5):
        channel.gpu(
            HEALTHY._replace(at_us=START_US + second * SECOND_US, temp_c=60.0 + second), SETTINGS
        )
    channel.advance(START_US + 2 * MINUTE_US, settings)
    assert [(minute.at_us - START_US) // SECOND_US for minute in channel.history.minutes] == [
        0,
        20,
        40,
    ]
    assert [minute.temp_c for minute in channel.history.minutes] == [67.5, 87.5, 102.5]


def test_asking_changes_nothing() -> None:
    channel = feed(GpuChannel("GPU-1"), troubled())
    before = ADAPTER.dump_json(channel)
    channel.warnings(SETTINGS)
    channel.armed()
    channel.compare((0, START_US), (START_US, START_US + HOUR_US))
    assert ADAPTER.dump_json(channel) == before


def test_the_state_stays_small_for_ever() -> None:
    channel = GpuChannel("GPU-1")
    for minute in range(0, 20 * 24 * 60, 5):  # twenty days
        point = HEALTHY._replace(
            at_us=START_US + minute * MINUTE_US,
            power_w=300.0 + minute % 97,
            temp_c=50.0 + minute % 13,
        )
        channel.gpu(point, SETTINGS)
        channel.advance(point.at_us, SETTINGS)
    assert len(ADAPTER.dump_json(channel)) < 60_000
