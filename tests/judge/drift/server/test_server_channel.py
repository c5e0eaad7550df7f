"""The server's own figures between canaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from monitor.judge.drift.evidence import Pair
from monitor.judge.drift.server.channel import ServerChannel
from monitor.judge.drift.settings import HOUR_US, MINUTE_US, SECOND_US, DriftSettings
from monitor.model import CanaryPoint, ServerPoint

SETTINGS = DriftSettings()
START_US = 1_700_000_000_000_000
EVERY_US = 15 * SECOND_US


def play(
    channel: ServerChannel,
    hours: float,
    prompt: Callable[[float], float],
    begin: float = 0.0,
    waiting: float = 0.0,
) -> ServerChannel:
    """Readings every 15 s with ten requests a minute, whose prompts are as long as `prompt(hour)`
    says.
    """
    last = channel.points[-1] if channel.points else channel.last
    prompts = last.prompt_tokens or 0.0 if last else 0.0
    requests = last.requests_finished or 0.0 if last else 0.0
    for number in range(int(hours * HOUR_US / EVERY_US)):
        at_us = START_US + int(begin * HOUR_US) + number * EVERY_US
        requests += 2.5
        prompts += 2.5 * prompt(begin + number * EVERY_US / HOUR_US)
        point = ServerPoint(
            at_us, prompt_tokens=prompts, requests_finished=requests, running=1.0, waiting=waiting
        )
        channel.server(point)
        channel.advance(at_us, SETTINGS)
    return channel


def span(begin: float, end: float) -> tuple[int, int]:
    return START_US + int(begin * HOUR_US), START_US + int(end * HOUR_US)


def test_the_prompt_length_of_a_block_is_prompt_tokens_over_finished_requests() -> None:
    channel = play(ServerChannel(), 2.0, lambda _: 700.0)
    assert channel.compare(
        span(0, 1), span(1, 2), SETTINGS, Pair()
    ).prompt_len.now == pytest.approx(700.0)


def test_our_own_canaries_do_not_count_as_the_users_workload() -> None:
    channel = ServerChannel()
    for number in range(41):  # every minute one canary of 10 tokens beside requests of 1000
        at_us = START_US + number * EVERY_US
        requests = number + (number + 3) // 4
        point = ServerPoint(
            at_us,
            prompt_tokens=1000.0 * number + 10.0 * ((number + 3) // 4),
            requests_finished=float(requests),
        )
        channel.server(point)
        if number % 4 == 0:
            channel.canary(CanaryPoint(at_us, at_us + SECOND_US, prompt_tokens=10.0))
    channel.advance(START_US + 11 * MINUTE_US, SETTINGS)
    assert channel.fine[0].prompts == pytest.approx(1000.0 * (channel.fine[0].requests or 0.0))


def test_prompts_that_stay_twice_as_long_as_ever_are_another_workload() -> None:
    channel = play(ServerChannel(), 14.0, lambda _: 1000.0)
    assert channel.workload_shift() is None
    play(channel, 3.0, lambda hour: 1000.0 + 3000.0 * min(1.0, hour - 14.0), begin=14.0)
    shift = channel.workload_shift()
    assert shift is not None
    since_us, usual, now = shift
    assert usual == pytest.approx(1000.0)
    assert now == pytest.approx(4000.0, rel=0.01)
    assert abs(since_us - span(14, 14)[0]) <= HOUR_US


def test_a_burst_of_long_prompts_is_no_other_workload() -> None:
    channel = play(ServerChannel(), 14.0, lambda _: 1000.0)
    play(channel, 2.0, lambda hour: 3000.0 if hour < 14.2 else 1000.0, begin=14.0)
    assert channel.workload_shift() is None


def test_the_shift_is_over_when_prompts_are_short_again() -> None:
    channel = play(ServerChannel(), 14.0, lambda _: 1000.0)
    play(channel, 3.0, lambda _: 4000.0, begin=14.0)
    play(channel, 2.0, lambda _: 1000.0, begin=17.0)
    assert channel.workload_shift() is None


def test_nothing_is_said_of_the_workload_before_half_a_day_was_seen() -> None:
    channel = play(ServerChannel(), 10.0, lambda _: 1000.0)
    play(channel, 2.0, lambda _: 4000.0, begin=10.0)
    assert channel.workload_shift() is None
    assert not channel.armed(SETTINGS)[0].armed


@pytest.mark.parametrize("minutes", [1, 30])
def test_a_page_that_was_refused_is_no_page_that_was_read(minutes: int) -> None:
    channel = ServerChannel()
    for number in range(4 * minutes):
        channel.server(ServerPoint(START_US + number * EVERY_US, state="refused"))
        channel.advance(START_US + number * EVERY_US, SETTINGS)
    assert channel.armed(SETTINGS)[0].detail == "no metrics page has been read yet"
    channel.server(ServerPoint(START_US + minutes * MINUTE_US, running=0.0))
    assert channel.armed(SETTINGS)[0].detail != "no metrics page has been read yet"


def test_after_one_reading_the_first_minutes_are_waited_for() -> None:
    channel = ServerChannel()
    channel.server(ServerPoint(START_US, running=0.0))
    assert channel.armed(SETTINGS)[0].detail == "the first block is not over yet"


def test_after_a_pin_the_present_workload_is_the_usual_one() -> None:
    channel = play(ServerChannel(), 14.0, lambda _: 1000.0)
    play(channel, 3.0, lambda _: 4000.0, begin=14.0)
    channel.relearn(span(17, 17)[0])
    play(channel, 16.0, lambda _: 4000.0, begin=17.0)
    assert channel.workload_shift() is None
    assert channel.armed(SETTINGS)[0].armed


def test_counters_that_begin_anew_with_a_restart_are_no_work() -> None:
    channel = ServerChannel()
    for number in range(40):
        steps = 1000.0 + 100.0 * number if number < 20 else 100.0 * (number - 20)
        channel.server(
            ServerPoint(
                START_US + number * EVERY_US, engine_steps=steps, running=1.0, prompt_tokens=0.0
            )
        )
    channel.advance(START_US + 11 * MINUTE_US, SETTINGS)
    rates = [block.steps_s for block in channel.fine]
    assert rates == [pytest.approx(100 / 15, rel=1e-3)] * 2


def test_a_mean_wait_is_taken_over_the_requests_that_waited() -> None:
    channel = ServerChannel()
    for number in range(40):
        channel.server(
            ServerPoint(
                START_US + number * EVERY_US, queue_s_sum=0.4 * number, queue_count=2.0 * number
            )
        )
    channel.advance(START_US + 11 * MINUTE_US, SETTINGS)
    assert channel.fine[0].queue_ms == pytest.approx(200.0)


def test_without_a_metrics_page_the_canaries_tell_the_load() -> None:
    channel = ServerChannel()
    for minute in range(10):
        at_us = START_US + minute * MINUTE_US
        channel.canary(
            CanaryPoint(
                at_us,
                at_us + SECOND_US,
                running=3.0,
                waiting=1.0,
                queue_ms=50.0,
                spec_acceptance=0.7,
            )
        )
    channel.advance(START_US + 11 * MINUTE_US, SETTINGS)
    block = channel.fine[0]
    assert (block.running, block.waiting, block.queue_ms, block.spec_acceptance) == (
        3.0,
        1.0,
        50.0,
        0.7,
    )


def test_what_is_under_way_already_counts_as_now() -> None:
    channel = play(ServerChannel(), 1.0, lambda _: 1000.0)
    play(channel, 0.04, lambda _: 1000.0, begin=1.0, waiting=20.0)
    assert channel.compare(span(0, 1), span(1, 1.1), SETTINGS, Pair()).waiting.now == 20.0


def test_results_do_not_depend_on_how_often_the_time_is_told() -> None:
    often, once = ServerChannel(), ServerChannel()
    for number in range(500):
        point = ServerPoint(
            START_US + number * EVERY_US,
            running=float(number % 7),
            engine_steps=10.0 * number,
            prompt_tokens=0.0,
        )
        often.server(point)
        often.advance(point.at_us, SETTINGS)
        once.server(point)
    end_us = START_US + 3 * HOUR_US
    often.advance(end_us, SETTINGS)
    once.advance(end_us, SETTINGS)
    assert often == once


def test_a_point_for_a_block_that_is_closed_is_counted_and_dropped() -> None:
    channel = play(ServerChannel(), 1.0, lambda _: 1000.0)
    blocks = list(channel.fine)
    channel.server(ServerPoint(START_US + MINUTE_US, running=99.0))
    assert channel.late == 1
    assert channel.fine == blocks


def test_a_week_of_blocks_is_all_that_is_kept() -> None:
    settings = replace(SETTINGS, block_s=3600.0)
    channel = ServerChannel()
    for hour in range(24 * 30):
        channel.server(ServerPoint(START_US + hour * HOUR_US, running=1.0))
        channel.advance(START_US + hour * HOUR_US, settings)
    assert len(channel.coarse) <= 7 * 24 + 1
    assert len(channel.fine) <= 27
