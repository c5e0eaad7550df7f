"""The speed channel: what gets slower is found, dated and measured; what only readings like it is
not.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from healthy import DAY, HOUR, SETTINGS, START_US, canaries, fed, step
from pydantic import TypeAdapter

from monitor.judge.drift.evidence import Effect
from monitor.judge.drift.settings import MINUTE_US, DriftSettings
from monitor.judge.drift.speed import model
from monitor.judge.drift.speed.channel import SpeedChannel
from monitor.judge.drift.speed.step_rate import steps_between
from monitor.model import CanaryPoint, ServerPoint, Severity

ADAPTER = TypeAdapter(SpeedChannel)
LEARNT = 14 * HOUR


def effects(channel: SpeedChannel) -> dict[str, Effect]:
    return {effect.channel: effect for effect in channel.effects(SETTINGS)}


def minute_of(us: int) -> float:
    return (us - START_US) / MINUTE_US


def busy(minute: int) -> float:
    return float(random.Random(f"load {minute}").choice([0, 1, 3, 5, 8, 12]))


@pytest.fixture(scope="module")
def trained() -> bytes:
    """A channel that has learnt for fourteen hours."""
    return ADAPTER.dump_json(fed(SpeedChannel(), canaries(range(LEARNT))))


def again(trained: bytes) -> SpeedChannel:
    return ADAPTER.validate_json(trained)


def test_nothing_is_said_before_it_has_learnt_and_it_says_how_far_it_is() -> None:
    channel = fed(SpeedChannel(), canaries(range(6 * HOUR), factor=step(3 * HOUR, 0.5)))
    decode = channel.armed(SETTINGS)[0]
    assert effects(channel) == {} and not decode.armed
    assert decode.detail == "learning the baseline (5.9 of 12 h)"
    assert channel.baseline_span() is None


def test_after_half_a_day_it_is_armed_and_says_from_what(trained: bytes) -> None:
    channel = again(trained)
    decode = channel.armed(SETTINGS)[0]
    assert (
        decode.armed and "canaries" in decode.detail and "load from 0 to 0 other" in decode.detail
    )
    span = channel.baseline_span()
    assert (
        span is not None
        and minute_of(span[0]) == pytest.approx(0, abs=1)
        and minute_of(span[1]) >= 12 * HOUR
    )


def test_a_healthy_server_raises_nothing_in_days() -> None:
    channel = SpeedChannel()
    for point in canaries(range(4 * DAY), running=busy):
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
        assert not effects(channel)


@pytest.mark.parametrize(("share", "within_min"), [(0.97, 25), (0.95, 20), (0.70, 16)])
def test_a_drop_is_found_measured_and_dated(trained: bytes, share: float, within_min: int) -> None:
    channel = fed(
        again(trained), canaries(range(LEARNT, LEARNT + within_min), factor=step(LEARNT, share))
    )
    decode = effects(channel)["decode"]
    assert decode.shift.metric == "decode_tok_s"
    assert decode.shift.low_pct < 100 * (share - 1) < decode.shift.high_pct
    assert decode.shift.change_pct == pytest.approx(100 * (share - 1), abs=1.0)
    assert minute_of(decode.since_us) == pytest.approx(LEARNT, abs=6)


def test_a_tenth_less_is_a_page_and_a_twentieth_a_warning(trained: bytes) -> None:
    for share, severity in ((0.87, Severity.PAGE), (0.95, Severity.WARNING)):
        channel = fed(
            again(trained), canaries(range(LEARNT, LEARNT + 30), factor=step(LEARNT, share))
        )
        assert effects(channel)["decode"].severity is severity


def test_less_than_anybody_would_notice_is_nobodys_business(trained: bytes) -> None:
    assert not effects(
        fed(again(trained), canaries(range(LEARNT, LEARNT + 6 * HOUR), factor=step(LEARNT, 0.993)))
    )


def test_ten_minutes_of_trouble_have_gone_away_before_anything_is_raised(trained: bytes) -> None:
    channel = again(trained)
    for point in canaries(
        range(LEARNT, LEARNT + 2 * HOUR),
        factor=lambda m: 0.85 if LEARNT <= m < LEARNT + 10 else 1.0,
    ):
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
        assert not effects(channel)


def test_an_effect_closes_when_it_is_over_and_not_while_it_lasts(trained: bytes) -> None:
    channel = fed(
        again(trained), canaries(range(LEARNT, LEARNT + 12 * HOUR), factor=step(LEARNT, 0.95))
    )
    assert "decode" in effects(channel)
    fed(channel, canaries(range(LEARNT + 12 * HOUR, LEARNT + 13 * HOUR)))
    assert "decode" not in effects(channel)


def test_a_loss_that_becomes_smaller_is_not_over_and_stays_one_incident(trained: bytes) -> None:
    channel = fed(again(trained), canaries(range(LEARNT, LEARNT + HOUR), factor=step(LEARNT, 0.86)))
    for point in canaries(range(LEARNT + HOUR, LEARNT + 4 * HOUR), factor=step(LEARNT, 0.95)):
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
        assert "decode" in effects(channel)
    left = effects(channel)["decode"]
    assert left.shift.change_pct == pytest.approx(-5, abs=1) and minute_of(
        left.since_us
    ) == pytest.approx(LEARNT, abs=6)
    fed(channel, canaries(range(LEARNT + 4 * HOUR, LEARNT + 5 * HOUR)))
    assert "decode" not in effects(channel)


def test_what_is_nobodys_business_keeps_no_incident_open(trained: bytes) -> None:
    settings, channel = replace(SETTINGS, practical_pct=5.0), again(trained)
    fed(channel, canaries(range(LEARNT, LEARNT + HOUR), factor=step(LEARNT, 0.86)), settings)
    assert "decode" in effects(channel)
    fed(
        channel,
        canaries(range(LEARNT + HOUR, LEARNT + 4 * HOUR), factor=step(LEARNT, 0.97)),
        settings,
    )
    assert not effects(channel)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_server_that_wanders_closes_within_hours_of_its_repair(seed: int) -> None:
    draw, noise = random.Random(seed), [0.0]
    for _ in range(5 * DAY // 5):
        noise.append(0.9 * noise[-1] + draw.gauss(0.0, 0.02 * math.sqrt(1 - 0.9**2)))
    hurt = lambda m: (0.8 if 3 * DAY <= m < 3 * DAY + 3 * HOUR else 1.0) * math.exp(noise[m // 5])  # noqa: E731 - beside its use
    channel = fed(SpeedChannel(), canaries(range(3 * DAY + 3 * HOUR), factor=hurt))
    assert "decode" in effects(channel)
    fed(channel, canaries(range(3 * DAY + 3 * HOUR, 3 * DAY + 7 * HOUR), factor=hurt))
    assert "decode" not in effects(channel)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_server_that_wanders_and_stays_slower_is_not_over(seed: int) -> None:
    draw, noise = random.Random(seed), [0.0]
    for _ in range(5 * DAY // 5):
        noise.append(0.88 * noise[-1] + draw.gauss(0.0, 0.01 * math.sqrt(1 - 0.88**2)))

    def hurt(m):
        return (1.0 if m < 3 * DAY else 0.86 if m < 3 * DAY + 2 * HOUR else 0.95) * math.exp(
            noise[m // 5]
        )

    channel = fed(SpeedChannel(), canaries(range(3 * DAY + HOUR), factor=hurt))
    for point in canaries(range(3 * DAY + HOUR, 5 * DAY), factor=hurt):
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
        assert "decode" in effects(channel)


def test_a_probe_of_three_times_a_day_has_its_level_learned_again() -> None:
    channel = SpeedChannel()
    for point in canaries(range(0, 120 * DAY, DAY // 3)):
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
    span = channel.baseline_span()
    assert span is not None and minute_of(span[1]) > 100 * DAY


def test_what_was_learned_of_the_ar1_noise_outlives_a_change_and_its_way_back() -> None:
    draw, noise = random.Random(2), [0.0]
    for _ in range(12 * DAY // 5):
        noise.append(0.88 * noise[-1] + draw.gauss(0.0, 0.017 * math.sqrt(1 - 0.88**2)))
    moves = lambda m: math.exp(noise[m // 5])  # noqa: E731 - likewise
    learnt = ADAPTER.dump_json(fed(SpeedChannel(), canaries(range(8 * DAY), factor=moves)))
    for away in range(
        8 * DAY, 8 * DAY + 3 * HOUR, 5
    ):  # level and noise are learned again in these hours
        learnt = ADAPTER.dump_json(
            fed(again(learnt), canaries(range(away, away + 5), factor=moves))
        )
        changed = fed(
            again(learnt), canaries(range(away + 5, away + 20), factor=moves, fingerprint="two")
        )
        back = fed(changed, canaries(range(away + 20, away + 2 * HOUR), factor=moves))
        assert math.sqrt(back.baselines[-1].decode.model.noise.variance) > 0.01


def test_a_restart_that_cures_it_closes_it_although_starts_scatter() -> None:
    channel = SpeedChannel()
    levels, hurt_from = (1.0, 0.98, 1.02, 0.978, 1.015, 0.982, 1.02), 7 * DAY - 2 * HOUR
    for day in range(7):
        start_us = START_US + day * DAY * MINUTE_US
        fed(
            channel,
            canaries(
                range(day * DAY, (day + 1) * DAY),
                factor=lambda m: levels[m // DAY] * (0.86 if m >= hurt_from else 1.0),
                process_start_us=start_us,
            ),
        )
    assert "decode" in effects(channel)
    start_us = START_US + 7 * DAY * MINUTE_US
    for minute, point in enumerate(
        canaries(range(7 * DAY, 9 * DAY), factor=lambda _: 0.98, process_start_us=start_us)
    ):
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
        assert minute < 6 * HOUR or "decode" not in effects(channel)


def test_a_restart_that_cures_nothing_closes_nothing(trained: bytes) -> None:
    channel = fed(
        again(trained),
        canaries(
            range(LEARNT, LEARNT + HOUR), factor=step(LEARNT, 0.95), process_start_us=START_US
        ),
    )
    assert "decode" in effects(channel)
    start_us = START_US + (LEARNT + HOUR) * MINUTE_US
    fed(
        channel,
        canaries(
            range(LEARNT + HOUR, LEARNT + 5 * HOUR),
            factor=step(LEARNT, 0.95),
            process_start_us=start_us,
        ),
    )
    assert "decode" in effects(channel)


def test_the_reference_is_frozen_while_an_effect_is_open(trained: bytes) -> None:
    channel = fed(
        again(trained), canaries(range(LEARNT, LEARNT + 2 * DAY), factor=step(LEARNT, 0.95))
    )
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-5, abs=1)


def test_how_much_is_re_estimated_while_it_gets_worse(trained: bytes) -> None:
    channel = fed(again(trained), canaries(range(LEARNT, LEARNT + HOUR), factor=step(LEARNT, 0.95)))
    fed(channel, canaries(range(LEARNT + HOUR, LEARNT + 2 * HOUR), factor=step(LEARNT, 0.88)))
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-12, abs=1)


def test_one_thing_at_a_time_is_learned_again_so_that_no_step_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learnt: list[tuple[int, str]] = []
    channel, now = SpeedChannel(), 0

    def noted(name: str) -> None:
        really = getattr(model, name)

        def call(*given: Any) -> Any:
            learnt.append((now, name))
            return really(*given)

        monkeypatch.setattr(model, name, call)

    noted("refine")
    noted("fit_ar1")
    for point in canaries(range(4 * DAY)):
        now = round(minute_of(point.at_us))
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
    later = [minute for minute, _ in learnt if minute > DAY]
    assert {name for minute, name in learnt if minute > DAY} == {"refine", "fit_ar1"}
    assert len(later) == len(set(later)) > 6


def test_load_is_no_slowness() -> None:
    channel = fed(SpeedChannel(), canaries(range(2 * DAY), running=busy))
    fed(channel, canaries(range(2 * DAY, 2 * DAY + 3 * HOUR), running=lambda _: 12.0))
    assert not effects(channel)


def test_a_drop_is_found_under_load_too() -> None:
    channel = fed(SpeedChannel(), canaries(range(2 * DAY), running=busy))
    fed(channel, canaries(range(2 * DAY, 2 * DAY + HOUR), running=busy, factor=step(2 * DAY, 0.95)))
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-5, abs=1.2)


def test_a_load_that_was_never_met_is_not_compared(trained: bytes) -> None:
    channel = fed(
        again(trained), canaries(range(LEARNT, LEARNT + 3 * HOUR), running=lambda _: 20.0)
    )
    assert (
        not effects(channel)
        and channel.shift_since("decode", START_US + (LEARNT + 10) * MINUTE_US, SETTINGS) is None
    )


def test_all_probes_are_pooled_each_against_its_own_level() -> None:
    probes = ("decode-fixed", "chat-short", "coding")
    channel = fed(SpeedChannel(), canaries(range(LEARNT), probes=probes))
    fed(
        channel,
        canaries(
            range(LEARNT, LEARNT + HOUR), probes=("coding", "chat-short"), factor=step(LEARNT, 0.96)
        ),
    )
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-4, abs=0.8)


def test_a_probe_that_falls_silent_is_no_drop() -> None:
    channel = fed(SpeedChannel(), canaries(range(LEARNT), probes=("a", "b")))
    assert not effects(fed(channel, canaries(range(LEARNT, LEARNT + 3 * HOUR), probes=("a",))))


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": "truncated"},
        {"phase": "cold"},
        {"decode_tok_s": math.nan},
        {"completion_tokens": 5.0},
    ],
)
def test_only_good_answers_of_eight_tokens_that_were_not_cold_count(
    trained: bytes, fields: dict[str, Any]
) -> None:
    channel = fed(
        again(trained), canaries(range(LEARNT, LEARNT + HOUR), **{"decode_tok_s": 30.0, **fields})
    )
    assert "decode" not in effects(channel)


def test_a_slower_prefill_shows_in_the_first_token_and_not_in_decode(trained: bytes) -> None:
    channel = fed(
        again(trained), canaries(range(LEARNT, LEARNT + HOUR), wait_factor=step(LEARNT, 1.5))
    )
    found = effects(channel)
    assert set(found) == {"ttft"}
    assert found["ttft"].shift.metric == "ttft_ms" and found[
        "ttft"
    ].shift.change_pct == pytest.approx(50, abs=8)


def test_time_in_the_queue_is_no_slower_prefill(trained: bytes) -> None:
    points = (
        p._replace(ttft_ms=(p.ttft_ms or 0) + 400, queue_ms=400.0)
        for p in canaries(range(LEARNT, LEARNT + HOUR))
    )
    assert not effects(fed(again(trained), points))


def test_a_nightly_restart_does_not_mean_never_trained() -> None:
    channel, nights = SpeedChannel(), 6
    for night in range(nights):
        minutes = range(night * DAY, (night + 1) * DAY)
        fed(channel, canaries(minutes, process_start_us=START_US + night * DAY * MINUTE_US))
    assert all(a.armed for a in channel.armed(SETTINGS))
    offsets = channel.start_offsets()
    assert len(offsets) == nights and all(abs(o.offset) < o.half_width + 0.002 for o in offsets)
    last_start_us = START_US + (nights - 1) * DAY * MINUTE_US
    fed(
        channel,
        canaries(
            range(nights * DAY, nights * DAY + HOUR),
            factor=step(0, 0.95),
            process_start_us=last_start_us,
        ),
    )
    assert "decode" in effects(channel)


def test_a_start_that_lands_slow_is_told_with_how_far_starts_scatter() -> None:
    channel = SpeedChannel()
    for night, share in enumerate((1.0, 1.01, 0.99, 1.0, 0.9)):
        minutes = range(night * DAY, (night + 1) * DAY if night < 4 else night * DAY + 2 * HOUR)
        fed(
            channel,
            canaries(
                minutes, factor=step(0, share), process_start_us=START_US + night * DAY * MINUTE_US
            ),
        )
    last = channel.start_offsets()[-1]
    assert last.offset == pytest.approx(math.log(0.9), abs=0.01)
    assert last.others == 4 and 0.003 <= last.scatter < 0.02


def test_a_new_configuration_begins_a_new_reference_and_an_old_one_is_known_again(
    trained: bytes,
) -> None:
    channel = fed(
        again(trained),
        canaries(range(LEARNT, LEARNT + HOUR), factor=step(0, 0.8), fingerprint="two"),
    )
    assert not effects(channel) and not channel.armed(SETTINGS)[0].armed
    fed(
        channel,
        canaries(range(LEARNT + HOUR, LEARNT + 4 * HOUR), factor=step(LEARNT + 3 * HOUR, 0.95)),
    )
    assert channel.armed(SETTINGS)[0].armed and effects(channel)[
        "decode"
    ].shift.change_pct == pytest.approx(-5, abs=1)


def test_the_last_four_configurations_are_kept(trained: bytes) -> None:
    channel = again(trained)
    for number in range(6):
        fed(
            channel,
            canaries(
                range(LEARNT + number * 10, LEARNT + number * 10 + 10), fingerprint=f"f{number}"
            ),
        )
    assert [r.digest for r in channel.baselines] == ["f2", "f3", "f4", "f5"]


def test_what_a_person_accepts_is_normal_from_then_on(trained: bytes) -> None:
    slow = step(LEARNT, 0.9)
    channel = fed(again(trained), canaries(range(LEARNT, LEARNT + 2 * HOUR), factor=slow))
    channel.relearn(START_US + (LEARNT + 2 * HOUR) * MINUTE_US)
    assert not effects(channel) and channel.armed(SETTINGS)[0].armed
    assert not effects(
        fed(channel, canaries(range(LEARNT + 2 * HOUR, LEARNT + 14 * HOUR), factor=slow))
    )
    fed(channel, canaries(range(LEARNT + 14 * HOUR, LEARNT + 15 * HOUR), factor=step(0, 0.85)))
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(
        100 * (0.85 / 0.9 - 1), abs=1.5
    )


def test_how_much_a_channel_moved_is_known_without_an_alarm(trained: bytes) -> None:
    channel = fed(
        again(trained), canaries(range(LEARNT, LEARNT + HOUR), wait_factor=step(LEARNT, 1.07))
    )
    shift = channel.shift_since("ttft", START_US + LEARNT * MINUTE_US, SETTINGS)
    assert not effects(channel)
    assert shift is not None and shift.low_pct < 7 < shift.high_pct


def test_suspicion_rises_before_the_alarm_and_ends_with_it(trained: bytes) -> None:
    channel, seen = again(trained), []
    assert channel.suspicion(SETTINGS) < 0.34
    for point in canaries(range(LEARNT, LEARNT + 30), factor=step(LEARNT, 0.97)):
        channel.canary(point, SETTINGS)
        channel.advance(point.known_us, SETTINGS)
        seen.append((channel.suspicion(SETTINGS), bool(effects(channel))))
    assert max(s for s, raised in seen if not raised) > 1 / 3
    assert seen[-1][1] and seen[-1][0] < 0.34


def test_fewer_false_alarms_a_month_ask_for_more_evidence(trained: bytes) -> None:
    strict = DriftSettings(false_alarms_per_month=1e-9)
    points = list(canaries(range(LEARNT, LEARNT + 20), factor=step(LEARNT, 0.97)))
    assert again(trained).suspicion(strict) <= again(trained).suspicion(SETTINGS)
    usual, careful = again(trained), again(trained)
    fed(usual, iter(points)), fed(careful, iter(points), strict)
    assert careful.suspicion(strict) < 1.0 or not careful.effects(strict)


@pytest.mark.parametrize("cut", [0, 1, 7, 433, 800, 901])
def test_a_dump_in_the_middle_changes_nothing(cut: int) -> None:
    points = list(canaries(range(LEARNT + 70), factor=step(LEARNT, 0.95), running=busy))
    whole = fed(SpeedChannel(), iter(points))
    half = fed(SpeedChannel(), iter(points[:cut]))
    rest = fed(ADAPTER.validate_json(ADAPTER.dump_json(half)), iter(points[cut:]))
    assert ADAPTER.dump_json(rest) == ADAPTER.dump_json(whole)
    assert rest.effects(SETTINGS) == whole.effects(SETTINGS)


def test_how_often_the_time_is_told_and_the_order_within_a_block_change_nothing() -> None:
    points = list(
        canaries(range(LEARNT + 70), factor=step(LEARNT, 0.95), running=busy, probes=("a", "b"))
    )
    whole, seldom = fed(SpeedChannel(), iter(points)), SpeedChannel()
    order = random.Random(5)
    for start in range(0, len(points), 10):  # five minutes of two probes
        block = points[start : start + 10]
        first = block[:1] if start == 0 else []
        rest = block[len(first) :]
        order.shuffle(rest)
        for point in chain(first, rest):
            seldom.canary(point, SETTINGS)
    seldom.advance(points[-1].known_us, SETTINGS)
    assert seldom.effects(SETTINGS) == whole.effects(SETTINGS)


def test_the_state_stays_small() -> None:
    channel = fed(SpeedChannel(), canaries(range(8 * DAY), running=busy))
    assert len(ADAPTER.dump_json(channel)) < 150_000
    assert json.loads(ADAPTER.dump_json(channel))


def reading(
    at_s: float, steps: float, generated: float, prompts: float = 0.0, running: float = 8.0
) -> ServerPoint:
    return ServerPoint(
        round(at_s * 1e6),
        running=running,
        engine_steps=steps,
        generation_tokens=generated,
        prompt_tokens=prompts,
    )


def test_engine_steps_tell_the_speed_of_a_busy_server() -> None:
    rate = steps_between(reading(0, 1000, 8000), reading(15, 2500, 20000))
    assert rate is not None
    assert rate.value == pytest.approx(math.log(100)) and rate.load.peers == pytest.approx(
        math.log1p(8)
    )


@pytest.mark.parametrize(
    "now",
    [
        reading(15, 2500, 20000, running=1.0),  # it may have stood still
        reading(15, 900, 20000),  # a restart
        reading(15, 2500, 20000, prompts=100_000.0),  # prefill
        reading(300, 2500, 20000),  # too far apart
        ServerPoint(15_000_000, running=8.0),
    ],
)
def test_steps_say_nothing_where_they_could_mislead(now: ServerPoint) -> None:
    assert steps_between(reading(0, 1000, 8000), now) is None


def test_slower_steps_are_found_without_canaries_slowing() -> None:
    channel, steps, tokens = SpeedChannel(), 0.0, 0.0
    for point in canaries(range(LEARNT + HOUR)):
        minute = round(minute_of(point.at_us))
        for part in range(4):
            draw = random.Random(f"{minute} {part}")
            grown = 15 * 100 * (0.95 if minute >= LEARNT else 1.0) * math.exp(draw.gauss(0, 0.005))
            steps, tokens = steps + grown, tokens + 8 * grown
            at_s = point.at_us / 1e6 + part * 15
            channel.server(reading(at_s, steps, tokens))
        channel.canary(point, SETTINGS)
        channel.advance(point.at_us + MINUTE_US, SETTINGS)
    assert set(effects(channel)) == {"steps"}
    assert effects(channel)["steps"].shift.change_pct == pytest.approx(-5, abs=1)


def test_a_single_canary_and_a_constant_series_raise_nothing() -> None:
    channel = SpeedChannel()
    fed(channel, iter([CanaryPoint(0, 1_000_000, "p", decode_tok_s=50.0, completion_tokens=128.0)]))
    constant = (
        CanaryPoint(
            m * MINUTE_US, m * MINUTE_US + 1, "p", decode_tok_s=50.0, completion_tokens=128.0
        )
        for m in range(1, 2 * DAY)
    )
    assert not effects(fed(channel, constant)) and channel.armed(SETTINGS)[0].armed


def test_canaries_too_few_for_a_block_wait_for_more(trained: bytes) -> None:
    seldom = (
        p
        for i, p in enumerate(canaries(range(LEARNT, LEARNT + 3 * HOUR), factor=step(LEARNT, 0.95)))
        if i % 4 == 0
    )
    assert effects(fed(again(trained), seldom))["decode"].shift.change_pct == pytest.approx(
        -5, abs=1
    )


def test_a_canary_every_ten_minutes_learns_and_finds_too() -> None:
    rare = (
        p
        for i, p in enumerate(canaries(range(2 * DAY + 4 * HOUR), factor=step(2 * DAY, 0.93)))
        if i % 10 == 0
    )
    channel = fed(SpeedChannel(), rare)
    assert channel.armed(SETTINGS)[0].armed
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-7, abs=1)


def test_a_probe_that_runs_once_an_hour_learns_and_finds_too() -> None:
    hourly = (
        p
        for i, p in enumerate(canaries(range(8 * DAY), factor=step(7 * DAY, 0.8)))
        if i % HOUR == 0
    )
    channel = fed(SpeedChannel(), hourly)
    assert channel.armed(SETTINGS)[0].armed
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-20, abs=2)


def test_a_server_that_is_always_at_rest_is_learnt_by_its_canaries_after_a_rest() -> None:
    channel = fed(
        SpeedChannel(), canaries(range(LEARNT + 30), factor=step(LEARNT, 0.8), phase="idle")
    )
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-20, abs=2)


def test_a_canary_after_a_rest_says_nothing_beside_warm_ones(trained: bytes) -> None:
    warm = list(canaries(range(LEARNT, LEARNT + HOUR)))
    slow = canaries(range(LEARNT, LEARNT + HOUR), factor=lambda _: 0.5, phase="idle", seed=1)
    both = sorted([*warm, *slow], key=lambda p: p.known_us)
    assert fed(again(trained), iter(both)).baselines == fed(again(trained), iter(warm)).baselines


def test_a_configuration_that_could_not_be_read_is_no_other_one(trained: bytes) -> None:
    read = list(canaries(range(LEARNT, LEARNT + HOUR), factor=step(LEARNT, 0.9)))
    some = [p._replace(fingerprint=None) if i % 5 == 4 else p for i, p in enumerate(read)]
    assert fed(again(trained), iter(some)).baselines == fed(again(trained), iter(read)).baselines


def test_what_was_learnt_before_the_configuration_could_be_read_is_kept() -> None:
    channel = fed(SpeedChannel(), canaries(range(LEARNT), fingerprint=None))
    fed(channel, canaries(range(LEARNT, LEARNT + 30), factor=step(LEARNT, 0.9)))
    assert effects(channel)["decode"].shift.change_pct == pytest.approx(-10, abs=1)


def test_it_is_not_armed_while_no_load_was_met_often_enough() -> None:
    strict = DriftSettings(support_samples=1000)
    assert not fed(SpeedChannel(), canaries(range(15 * HOUR)), strict).armed(strict)[0].armed
    assert fed(SpeedChannel(), canaries(range(18 * HOUR)), strict).armed(strict)[0].armed


def test_readings_without_canaries_are_not_kept() -> None:
    channel = fed(SpeedChannel(), canaries(range(10)))
    for i in range(5000):
        at_us = START_US + 10 * MINUTE_US + i * 15_000_000
        channel.server(
            ServerPoint(
                at_us,
                running=8.0,
                engine_steps=1500.0 * i,
                generation_tokens=12000.0 * i,
                prompt_tokens=0.0,
            )
        )
        channel.advance(at_us, SETTINGS)
    assert len(channel.rates) < 50
