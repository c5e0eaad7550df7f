"""Background traffic: seeded, at the rate that was asked for, with the lengths of the trace."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, pstdev

import pytest

from monitor.simulate.traffic.traffic import Traffic, TrafficSettings, trace


def traffic_of(rate_per_s: float, seed: int = 0, **more: float) -> Traffic:
    return Traffic(TrafficSettings(rate_per_s, **more), seed)


def test_the_same_seed_brings_the_same_requests_and_another_one_others() -> None:
    first, again, other = (traffic_of(2.0, seed).advance(600) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_it_does_not_matter_how_the_time_is_cut() -> None:
    whole = traffic_of(1.0, seed=1).advance(300)
    pieces, traffic = [], traffic_of(1.0, seed=1)
    for tenth in range(1, 3001):
        pieces += traffic.advance(tenth / 10)
    assert [a.prompt_tokens for a in pieces] == [a.prompt_tokens for a in whole]
    assert [a.at_s for a in pieces] == pytest.approx([a.at_s for a in whole])


def test_the_mean_rate_over_a_day_is_the_one_asked_for() -> None:
    assert len(traffic_of(0.5, seed=3).advance(86_400)) / 86_400 == pytest.approx(0.5, rel=0.03)


def test_arrivals_are_uneven_and_lengths_have_a_long_tail() -> None:
    arrivals = traffic_of(1.0, seed=5).advance(10_000)
    gaps = [b.at_s - a.at_s for a, b in pairwise(arrivals)]
    assert pstdev(gaps) / mean(gaps) > 0.9
    prompts = sorted(a.prompt_tokens for a in arrivals)
    assert prompts[-1] > 3 * prompts[len(prompts) // 2]


def test_a_changed_rate_holds_from_now_on_and_zero_means_silence() -> None:
    traffic = traffic_of(10.0, seed=2)
    assert len(traffic.advance(60)) > 200
    traffic.settings.rate_per_s = 0.0
    assert traffic.advance(600) == []
    assert traffic.next_s() == float("inf")
    traffic.settings.rate_per_s = 10.0
    assert 600 < traffic.next_s() < 620


def test_longer_prompts_are_longer_by_the_factor() -> None:
    plain, longer = traffic_of(1.0, seed=4), traffic_of(1.0, prompt_factor=3.0, seed=4)
    assert [3 * a.prompt_tokens for a in plain.advance(100)] == [
        a.prompt_tokens for a in longer.advance(100)
    ]


def test_a_quiet_night_has_fewer_requests_than_an_afternoon() -> None:
    traffic = traffic_of(1.0, daily_swing=0.8, seed=6)
    traffic.advance(3 * 3600)
    night = len(traffic.advance(5 * 3600))
    traffic.advance(15 * 3600)
    assert len(traffic.advance(17 * 3600)) > 4 * night


def test_the_extract_is_what_its_header_says() -> None:
    assert len(trace()) == 600
    assert mean(row.gap for row in trace()) == pytest.approx(1.0)
