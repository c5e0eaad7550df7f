"""Percentiles that never look better for a canary that got no answer."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import accumulate, product
from math import comb
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from monitor.judge.percentiles import Percentile, interval_ranks, percentile, summarise
from monitor.model import Outcome, Phase, Sample

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
SAMPLE = Sample(
    "local",
    "sky",
    "chat",
    NOON,
    Phase.WARM,
    Outcome.OK,
    ttft_ms=100.0,
    e2e_ms=1000.0,
    decode_tok_s=50.0,
    itl_p95_ms=20.0,
)
WAIT_MS = 2000.0
SHARES = st.sampled_from([0.05, 0.5, 0.95])
TIMES = st.lists(st.floats(0, 1e6), max_size=80)


def capped(**fields: Any) -> Sample:
    """A canary that waited two seconds for nothing."""
    known = {
        "outcome": Outcome.QUEUE_CAP,
        "ttft_ms": None,
        "e2e_ms": WAIT_MS,
        "decode_tok_s": None,
        "itl_p95_ms": None,
    }
    return replace(SAMPLE, **{**known, **fields})


def measured(*ttft_ms: float) -> list[Sample]:
    return [replace(SAMPLE, ttft_ms=value) for value in ttft_ms]


def shown(found: Percentile) -> float:
    """What a reader sees as a number to compare: a bound counts as itself, no answer as endless."""
    return next((n for n in (found.value, found.at_least) if n is not None), math.inf)


def binomial_below(count: int, share: Fraction) -> list[Fraction]:
    """P(at most 0, 1, … of `count` values lie below the quantile), exactly."""
    return list(
        accumulate(comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(count))
    )


@settings(max_examples=60, deadline=None)
@given(TIMES.filter(bool), SHARES)
def test_a_percentile_is_the_smallest_value_with_that_share_at_or_below_it(
    values: list[float], share: float
) -> None:
    at_or_below = {v: sum(other <= v for other in values) / len(values) for v in values}
    assert percentile(values, share).value == min(
        v for v, reached in at_or_below.items() if reached >= share - 1e-12
    )


@pytest.mark.parametrize(
    ("count", "share"), list(product([2, 4, 5, 10, 58, 59, 60, 100, 200], ["0.05", "0.5", "0.95"]))
)
def test_the_ends_of_the_interval_each_hold_with_95_percent_by_the_exact_binomial(
    count: int, share: str
) -> None:
    exact, sure = Fraction(share), Fraction("0.95")
    below = binomial_below(count, exact)
    lows = [rank for rank in range(1, count + 1) if 1 - below[rank - 1] >= sure]
    highs = [rank for rank in range(1, count + 1) if below[rank - 1] >= sure]
    assert interval_ranks(count, float(share)) == (
        max(lows, default=None),
        min(highs, default=None),
    )


def test_the_upper_end_of_a_p95_needs_59_values() -> None:
    assert percentile([float(n) for n in range(58)], 0.95).high is None
    assert percentile([float(n) for n in range(59)], 0.95).high == 58.0


def test_the_upper_end_of_a_median_needs_five_values() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5).high is None
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.5).high == 5.0


@settings(max_examples=60, deadline=None)
@given(TIMES.filter(bool), SHARES)
def test_the_interval_holds_the_percentile(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found.value is not None
    assert found.low is None or found.low <= found.value
    assert found.high is None or found.high >= found.value


def test_of_nothing_everything_is_unknown() -> None:
    assert percentile([], 0.95) == Percentile(None, None, None, None)
    assert percentile([], 0.5, beyond=0, smallest_wait=WAIT_MS) == Percentile()


@settings(max_examples=60, deadline=None)
@given(TIMES, SHARES, st.integers(1, 80), st.none() | st.floats(0, 1e6))
def test_a_percentile_is_never_better_than_with_the_unanswered_left_out(
    values: list[float], share: float, beyond: int, wait: float | None
) -> None:
    left_out, told = percentile(values, share), percentile(values, share, beyond, wait)
    if values:
        assert shown(told) >= shown(left_out)
        assert told.low is None or left_out.low is None or told.low >= left_out.low
        assert told.high is None or (left_out.high is not None and told.high >= left_out.high)


@settings(max_examples=60, deadline=None)
@given(TIMES, SHARES, st.integers(0, 80), st.floats(0, 1e6))
def test_one_more_unanswered_canary_never_lowers_a_percentile(
    values: list[float], share: float, beyond: int, wait: float
) -> None:
    assume(values or beyond)
    smallest = wait if beyond else None
    before, after = (
        percentile(values, share, beyond, smallest),
        percentile(values, share, beyond + 1, wait),
    )
    assert shown(after) >= shown(before)
    assert after.high is None or (before.high is not None and after.high >= before.high)


@settings(max_examples=60, deadline=None)
@given(TIMES, SHARES, st.integers(0, 80), st.none() | st.floats(0, 1e6))
def test_a_value_and_a_bound_are_never_told_together(
    values: list[float], share: float, beyond: int, wait: float | None
) -> None:
    found = percentile(values, share, beyond, wait)
    assert found.value is None or found.at_least is None


def test_where_it_falls_among_the_unanswered_it_is_more_than_the_smallest_wait() -> None:
    (group,) = summarise([*measured(*[100.0] * 18), capped(), capped(e2e_ms=5000.0)])
    assert group.ttft_ms["p95"] == Percentile(value=None, low=100.0, high=None, at_least=WAIT_MS)
    assert group.ttft_ms["p50"].value == 100.0
    assert (group.count, group.censored, group.unavailable) == (20, 2, 0)


@pytest.mark.parametrize("outcome", [Outcome.QUEUE_CAP, Outcome.HUNG, Outcome.TIMEOUT])
def test_each_known_wait_gives_a_bound(outcome: Outcome) -> None:
    (group,) = summarise([capped(outcome=outcome)])
    assert group.ttft_ms["p95"].at_least == WAIT_MS
    assert (group.censored, group.unavailable) == (1, 0)


@pytest.mark.parametrize(
    "outcome",
    [Outcome.REFUSED, Outcome.REJECTED, Outcome.HTTP_ERROR, Outcome.EMPTY, Outcome.ASLEEP],
)
def test_where_nobody_waited_a_known_time_there_is_no_number_at_all(outcome: Outcome) -> None:
    (group,) = summarise([*measured(100.0), *[capped(outcome=outcome)] * 9])
    assert group.ttft_ms["p95"] == Percentile()
    assert (group.count, group.censored, group.unavailable) == (10, 0, 9)


def test_a_bound_below_a_measured_wait_is_not_told() -> None:
    """An uncapped probe of the class measured nine seconds: `more than 2 s` would be a better
    number than before.
    """
    (group,) = summarise([*measured(*[9000.0] * 10), *[capped()] * 10])
    assert group.ttft_ms["p95"].at_least is not None
    assert group.ttft_ms["p95"].at_least >= 9000.0


def test_the_end_to_end_time_of_unanswered_canaries_is_never_shorter_than_that_of_answers() -> None:
    answers = [replace(SAMPLE, e2e_ms=8000.0) for _ in range(18)]
    (group,) = summarise([*answers, capped(), capped()])
    assert group.e2e_ms["p50"].value == 8000.0
    assert shown(group.e2e_ms["p95"]) >= 8000.0


def test_a_canary_that_we_cancelled_ourselves_counts_nowhere() -> None:
    (group,) = summarise(
        [*measured(100.0), replace(SAMPLE, outcome=Outcome.CANCELLED, ttft_ms=None)]
    )
    assert group.count == 1
    assert summarise([replace(SAMPLE, outcome=Outcome.CANCELLED)]) == []


def test_a_canary_that_hung_after_its_first_token_has_a_measured_ttft_and_no_finished_answer() -> (
    None
):
    (group,) = summarise([replace(SAMPLE, outcome=Outcome.HUNG, ttft_ms=300.0, e2e_ms=20_000.0)])
    assert group.ttft_ms["p95"].value == 300.0
    assert group.e2e_ms["p95"].value is None
    assert group.decode_tok_s["p50"].value is None


def test_no_figure_is_averaged_over_phases_classes_or_targets() -> None:
    others = {"phase": Phase.COLD}, {"traffic_class": "batch"}, {"target": "remote"}
    samples = [*measured(100.0), *(replace(SAMPLE, ttft_ms=9000.0, **fields) for fields in others)]
    groups = {
        (g.target, g.traffic_class, g.phase): g.ttft_ms["p50"].value for g in summarise(samples)
    }
    assert groups == {
        ("local", "chat", "warm"): 100.0,
        ("local", "chat", "cold"): 9000.0,
        ("local", "batch", "warm"): 9000.0,
        ("remote", "chat", "warm"): 9000.0,
    }


def test_of_a_rate_the_low_end_is_told() -> None:
    (group,) = summarise([replace(SAMPLE, decode_tok_s=float(n)) for n in range(1, 101)])
    assert (group.decode_tok_s["p05"].value, group.decode_tok_s["p50"].value) == (5.0, 50.0)


def test_a_rate_that_is_unknown_is_not_zero() -> None:
    (group,) = summarise([replace(SAMPLE, decode_tok_s=None), SAMPLE])
    assert group.decode_tok_s["p05"].value == 50.0


def test_the_order_of_samples_makes_no_difference() -> None:
    samples = [*measured(5.0, 1.0, 3.0), capped(), capped(e2e_ms=9000.0)]
    assert summarise(samples) == summarise(samples[::-1])
