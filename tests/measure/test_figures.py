"""From an answer and two readings of the metrics page to the figures of a sample."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from monitor.measure.figures import decode_tok_s, delta, itl_figures, load_figures, server_timing
from monitor.measure.stream.answer import Answer
from monitor.model import Outcome, ServerPage

MS = 1_000_000
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
BEFORE = ServerPage(
    at=NOON,
    state="ok",
    process_start_s=1_796_000_000.0,
    running=2.0,
    waiting=1.0,
    kv_usage=0.25,
    preemptions=3.0,
    prompt_tokens=100.0,
    generation_tokens=1000.0,
    queue_s_sum=1.0,
    queue_count=10.0,
    prefill_s_sum=2.0,
    prefill_count=10.0,
    decode_s_sum=30.0,
    decode_count=10.0,
    draft_tokens=50.0,
    accepted_tokens=20.0,
)
UNKNOWN_TIMING = {"queue_ms": None, "prefill_ms": None, "decode_ms": None, "server_timing": None}


def later(**growth: float) -> ServerPage:
    """The page after one request of ours, and what else has grown."""
    ours = {
        "prompt_tokens": 9.0,
        "generation_tokens": 20.0,
        "queue_count": 1.0,
        "prefill_count": 1.0,
        "decode_count": 1.0,
    }
    ours |= {"queue_s_sum": 0.005, "prefill_s_sum": 0.04, "decode_s_sum": 0.3}
    grown = {name: getattr(BEFORE, name) + by for name, by in (ours | growth).items()}
    return replace(BEFORE, **grown)


def answer(**fields: Any) -> Answer:
    """Twenty tokens: the first alone at 0 ms, the last at 190 ms."""
    known = {
        "prompt_tokens": 9,
        "completion_tokens": 20,
        "tokens_at_first": 1,
        "first_token_ns": MS,
        "last_token_ns": 191 * MS,
    }
    return Answer(**{**known, "arrivals_ns": [MS, 191 * MS], **fields})


def test_the_decode_rate_is_the_tokens_after_the_first_chunk_over_their_time() -> None:
    assert decode_tok_s(answer()) == pytest.approx(19 / 0.19)
    assert decode_tok_s(answer(tokens_at_first=5)) == pytest.approx(15 / 0.19)


def test_the_decode_rate_does_not_follow_the_number_of_chunks() -> None:
    assert decode_tok_s(answer(arrivals_ns=[MS, 50 * MS, 191 * MS])) == decode_tok_s(
        answer(arrivals_ns=[MS, 191 * MS])
    )


def test_without_usage_the_decode_rate_comes_from_the_token_ids() -> None:
    assert decode_tok_s(answer(completion_tokens=None, token_ids=list(range(12)))) == pytest.approx(
        11 / 0.19
    )


@pytest.mark.parametrize(
    "unknown",
    [
        {"completion_tokens": 7},
        {"completion_tokens": None},
        {"tokens_at_first": None},
        {"first_token_ns": None},
        {"last_token_ns": None},
        {"last_token_ns": MS},
        {"tokens_at_first": 20},  # all of them came at once, what followed was an empty chunk
    ],
)
def test_the_decode_rate_is_unknown_under_eight_tokens_or_without_its_parts(
    unknown: dict[str, Any],
) -> None:
    assert decode_tok_s(answer(**unknown)) is None


def test_eight_tokens_are_enough_for_a_decode_rate() -> None:
    assert decode_tok_s(answer(completion_tokens=8)) == pytest.approx(7 / 0.19)


def test_gaps_between_chunks_have_nearest_rank_percentiles_and_their_largest() -> None:
    gaps = [10] * 18 + [50, 90]
    arrivals = [sum(gaps[:n]) * MS for n in range(21)]
    assert itl_figures(arrivals) == {"itl_p50_ms": 10.0, "itl_p95_ms": 50.0, "itl_max_ms": 90.0}


@pytest.mark.parametrize("arrivals", [[], [MS]])
def test_an_answer_in_one_chunk_has_no_gaps(arrivals: list[int]) -> None:
    assert itl_figures(arrivals) == {"itl_p50_ms": None, "itl_p95_ms": None, "itl_max_ms": None}


def test_the_answers_own_timing_comes_before_the_metrics_page() -> None:
    own = {
        "queue_time_ms": 0.04,
        "time_to_first_token_ms": 246.8,
        "generation_time_ms": 237.7,
        "mean_itl_ms": 1.0,
    }
    assert server_timing(Outcome.OK, answer(server_metrics=own), BEFORE, later()) == {
        "queue_ms": 0.04,
        "prefill_ms": 246.8,
        "decode_ms": 237.7,
        "server_timing": "response",
    }


def test_timing_of_the_answer_that_tells_nothing_is_not_taken() -> None:
    own = {"queue_time_ms": None, "mean_itl_ms": 3.0}
    assert (
        server_timing(Outcome.OK, answer(server_metrics=own), BEFORE, later())["server_timing"]
        == "metrics"
    )


def test_alone_the_metrics_page_gives_our_timing() -> None:
    timing = server_timing(Outcome.OK, answer(), BEFORE, later())
    assert timing.pop("server_timing") == "metrics"
    assert timing == pytest.approx({"queue_ms": 5.0, "prefill_ms": 40.0, "decode_ms": 300.0})


@pytest.mark.parametrize(
    ("outcome", "before", "after"),
    [
        (Outcome.OK, BEFORE, later(queue_count=2.0)),
        (Outcome.OK, BEFORE, later(queue_count=0.0)),
        (Outcome.OK, BEFORE, replace(later(), queue_count=1.0)),
        (Outcome.OK, BEFORE, replace(later(), queue_count=None)),
        (Outcome.OK, BEFORE, None),
        (Outcome.OK, None, later()),
        (Outcome.QUEUE_CAP, BEFORE, later()),
        (Outcome.TRUNCATED, BEFORE, later()),
    ],
    ids=[
        "another finished",
        "ours not counted",
        "counters reset",
        "not counted",
        "no page after",
        "no page before",
        "cap",
        "truncated",
    ],
)
def test_not_alone_the_timing_is_unknown(
    outcome: Outcome, before: ServerPage | None, after: ServerPage | None
) -> None:
    assert server_timing(outcome, answer(), before, after) == UNKNOWN_TIMING


def test_timing_across_a_restart_is_unknown_even_where_the_counters_are_higher() -> None:
    assert (
        server_timing(
            Outcome.OK, answer(), BEFORE, replace(later(), process_start_s=1_796_000_500.0)
        )
        == UNKNOWN_TIMING
    )


def test_what_others_got_is_the_growth_less_our_own_tokens() -> None:
    figures = load_figures(
        Outcome.OK,
        answer(),
        BEFORE,
        later(prompt_tokens=509.0, generation_tokens=220.0, preemptions=2.0),
    )
    assert (
        figures["other_prompt_tokens"],
        figures["other_generation_tokens"],
        figures["preemptions"],
    ) == (500.0, 200.0, 2.0)
    assert (figures["running"], figures["waiting"], figures["kv_usage"]) == (2.0, 1.0, 0.25)


def test_alone_others_got_nothing_and_that_is_a_known_zero() -> None:
    figures = load_figures(Outcome.OK, answer(), BEFORE, later())
    assert (figures["other_prompt_tokens"], figures["other_generation_tokens"]) == (0.0, 0.0)


def test_while_the_page_has_not_counted_all_of_ours_the_rest_is_unknown() -> None:
    figures = load_figures(
        Outcome.OK, answer(), BEFORE, later(generation_tokens=19.0, prompt_tokens=0.0)
    )
    assert (figures["other_prompt_tokens"], figures["other_generation_tokens"]) == (None, None)


def test_a_canary_without_a_first_token_took_none_of_the_generated_tokens() -> None:
    waited = Answer()
    figures = load_figures(Outcome.QUEUE_CAP, waited, BEFORE, later(generation_tokens=300.0))
    assert figures["other_generation_tokens"] == 300.0


@pytest.mark.parametrize("outcome", [Outcome.STREAM_ERROR, Outcome.TIMEOUT, Outcome.HUNG])
def test_of_a_broken_answer_it_is_unknown_how_many_tokens_were_ours(outcome: Outcome) -> None:
    figures = load_figures(
        outcome, answer(completion_tokens=None), BEFORE, later(generation_tokens=300.0)
    )
    assert (figures["other_prompt_tokens"], figures["other_generation_tokens"]) == (None, None)


def test_the_tokens_of_an_answer_that_said_nothing_are_not_taken_for_others() -> None:
    silent = Answer(completion_tokens=20, prompt_tokens=9, last_token_ns=MS, arrivals_ns=[MS])
    assert load_figures(Outcome.EMPTY, silent, BEFORE, later()).get("other_generation_tokens") in {
        None,
        0.0,
    }


@pytest.mark.parametrize(
    "after",
    [
        replace(BEFORE, prompt_tokens=9.0, generation_tokens=20.0, preemptions=0.0),
        replace(later(), process_start_s=1_796_000_500.0),
    ],
    ids=["counters fell", "process start moved"],
)
def test_counters_reset_between_the_pages_leave_the_load_unknown(after: ServerPage) -> None:
    figures = load_figures(Outcome.OK, answer(), BEFORE, after)
    assert [
        figures.get(name)
        for name in ("other_prompt_tokens", "other_generation_tokens", "preemptions")
    ] == [None, None, None]


def test_without_a_page_after_the_load_before_is_still_told() -> None:
    assert load_figures(Outcome.REFUSED, Answer(), BEFORE, None) == {
        "running": 2.0,
        "waiting": 1.0,
        "kv_usage": 0.25,
    }
    assert load_figures(Outcome.OK, answer(), None, later()) == {}


def test_the_share_of_accepted_draft_tokens_is_that_of_the_time_between_the_pages() -> None:
    assert (
        load_figures(Outcome.OK, answer(), BEFORE, later(draft_tokens=20.0, accepted_tokens=15.0))[
            "spec_acceptance"
        ]
        == 0.75
    )
    assert load_figures(Outcome.OK, answer(), BEFORE, later()).get("spec_acceptance") is None


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [(1.0, 3.0, 2.0), (1.0, 1.0, 0.0), (3.0, 1.0, None), (None, 1.0, None), (1.0, None, None)],
)
def test_a_counters_growth_is_unknown_after_a_reset_or_without_a_reading(
    before: float | None, after: float | None, grown: float | None
) -> None:
    assert delta(before, after) == grown


@pytest.mark.parametrize(
    "value", [10**400, float("nan"), float("inf"), -1.0, "5", True, None, [], 1e300]
)
def test_a_time_of_the_servers_that_is_none_is_unknown(value: Any) -> None:
    told = answer(server_metrics={"queue_time_ms": value, "generation_time_ms": 5})
    timing = server_timing(Outcome.OK, told, None, None)
    assert (timing["queue_ms"], timing["decode_ms"], timing["server_timing"]) == (
        None,
        5.0,
        "response",
    )
