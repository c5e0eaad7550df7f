"""The prefix cache, from a probe that is sent twice with one salt."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from monitor.judge.drift.server.prefix_cache import PrefixCacheChannel
from monitor.judge.drift.settings import MINUTE_US, SECOND_US, DriftSettings
from monitor.model import CanaryPoint

SETTINGS = DriftSettings()
START_US = 1_700_000_000_000_000
EVERY_US = 20 * MINUTE_US


class Pairs:
    """A probe that is sent twice every twenty minutes."""

    def __init__(self, tells_tokens: bool = True) -> None:
        self.channel, self.tells_tokens, self.chance, self.number = (
            PrefixCacheChannel(),
            tells_tokens,
            Random(1),
            0,
        )

    def play(self, count: int, works: bool = True, start_us: int = 1) -> Pairs:
        for _ in range(count):
            at_us = START_US + self.number * EVERY_US
            self.number += 1
            first = CanaryPoint(
                at_us,
                at_us + SECOND_US // 10,
                "pair",
                prompt_tokens=600.0,
                ttft_ms=28.0 * self.chance.uniform(0.95, 1.1),
            )
            first = first._replace(process_start_us=start_us)
            took_ms = (10.0 if works else 28.0) * self.chance.uniform(0.95, 1.1)
            cached = (592.0 if works else 0.0) if self.tells_tokens else None
            again = first._replace(
                at_us=at_us + SECOND_US,
                known_us=at_us + 2 * SECOND_US,
                probe="pair-again",
                ttft_ms=took_ms,
                cached_tokens=cached,
            )
            self.channel.canary(first, SETTINGS)
            self.channel.canary(again, SETTINGS)
        return self


def test_a_cache_that_finds_nothing_any_more_is_lost() -> None:
    pairs = Pairs().play(40)
    assert pairs.channel.effect() is None
    effect = pairs.play(4, works=False).channel.effect()
    assert effect is not None
    assert effect.channel == "cache"
    assert effect.shift.low_pct < 180.0 < effect.shift.high_pct
    assert effect.since_us == START_US + 40 * EVERY_US + 2 * SECOND_US


def test_where_only_the_cached_tokens_tell_their_share_is_the_figure() -> None:
    pairs = Pairs().play(40)
    for pair in range(4):
        at_us = START_US + (40 + pair) * EVERY_US
        first = CanaryPoint(
            at_us,
            at_us,
            "pair",
            prompt_tokens=600.0,
            ttft_ms=28.0,
            process_start_us=1,
            phase="idle",
        )
        again = first._replace(
            at_us=at_us + SECOND_US,
            known_us=at_us + SECOND_US,
            probe="pair-again",
            cached_tokens=0.0,
        )
        pairs.channel.canary(first, SETTINGS)
        pairs.channel.canary(again, SETTINGS)
    effect = pairs.channel.effect()
    assert effect is not None
    assert (effect.shift.metric, effect.shift.change_pct) == ("cached_share", -100.0)


def test_a_canary_whose_configuration_could_not_be_read_changes_nothing() -> None:
    pairs = Pairs().play(40)
    before = pairs.channel.pairs
    at_us = START_US + 41 * EVERY_US
    pairs.channel.canary(
        CanaryPoint(at_us, at_us, "other", ttft_ms=20.0, process_start_us=None, fingerprint=None),
        SETTINGS,
    )
    pairs.play(1)
    assert pairs.channel.pairs == before + 1


def test_where_the_server_does_not_tell_cached_tokens_the_time_tells() -> None:
    pairs = Pairs(tells_tokens=False).play(40)
    assert pairs.channel.effect() is None
    assert pairs.play(4, works=False).channel.effect() is not None
    assert pairs.channel.share().before is not None


def test_a_single_miss_is_a_block_that_was_thrown_out() -> None:
    pairs = Pairs().play(40).play(1, works=False).play(5)
    assert pairs.channel.effect() is None


def test_a_server_that_never_cached_has_nothing_to_lose() -> None:
    pairs = Pairs().play(80, works=False)
    assert pairs.channel.effect() is None
    assert not pairs.channel.armed()[0].armed


def test_the_effect_is_over_when_the_cache_works_again() -> None:
    pairs = Pairs().play(40).play(4, works=False).play(2)
    assert pairs.channel.effect() is None


def test_more_misses_in_a_row_are_needed_where_fewer_false_alarms_are_allowed() -> None:
    pairs = Pairs().play(40)
    strict = replace(SETTINGS, false_alarms_per_month=1e-6)
    assert pairs.channel._needed(strict) > pairs.channel._needed(SETTINGS) >= 2


def test_misses_since_the_process_began_need_fewer_pairs() -> None:
    def pairs_until_it_is_said(start_us: int) -> int:
        pairs = Pairs().play(40)
        return next(
            n
            for n in range(1, 20)
            if pairs.play(1, works=False, start_us=start_us).channel.effect() is not None
        )

    assert pairs_until_it_is_said(start_us=2) < pairs_until_it_is_said(start_us=1)


def test_the_second_of_another_pair_is_not_compared_with_the_first_of_this() -> None:
    channel = PrefixCacheChannel()
    first = CanaryPoint(START_US, START_US + SECOND_US, "pair", ttft_ms=28.0)
    late = first._replace(
        at_us=START_US + EVERY_US, known_us=START_US + EVERY_US, probe="pair-again", ttft_ms=10.0
    )
    channel.canary(first, SETTINGS)
    channel.canary(late, SETTINGS)
    assert not channel.learned


def test_state_is_bounded() -> None:
    assert len(Pairs().play(2000).channel.learned) == 504
