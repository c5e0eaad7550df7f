"""A candidate's speed beside production's: a narrow limit for lasting answers, a wide one for short
ones, a word where none was judged.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from histories import a_probe, a_sample

from monitor.judge.quality.candidate_speed import (
    Decoding,
    is_later,
    is_slower,
    judge_decoding,
    speed_of,
    steadiest,
)
from monitor.model import Outcome, Phase, Sample

USUAL = (100.0, 101.0, 99.0, 100.0, 102.0)
FEW, LASTING = 12, 33  # tokens
PIN_A_LONGER = "`vllm-canary pin` a probe"


def answers(tokens: int, *rates: float, probe: str = "sky") -> list[Sample]:
    return [a_sample(probe=probe, decode_tok_s=rate, completion_tokens=tokens) for rate in rates]


def judged(rounds: list[Sample], production: list[Sample]) -> Decoding:
    return judge_decoding({"sky": rounds}, production)


# ---- one probe


def test_slower_needs_a_clear_median_and_a_best_round_below_the_usual() -> None:
    before = [98.0, 99.0, 100.0, 101.0, 102.0]
    assert is_slower([85.0, 86.0, 84.0], before)
    assert not is_slower([92.0, 92.0, 92.0], before)
    assert not is_slower([80.0, 85.0, 100.0], before)
    assert not is_slower([1.0], before[:3])  # too little of production to compare with
    assert not is_slower([], before)


def test_later_needs_a_third_more_and_time_enough_to_be_felt() -> None:
    before = [100.0, 101.0, 102.0, 103.0, 104.0]
    assert is_later([140.0, 150.0, 141.0], before)
    assert not is_later([120.0] * 3, before)
    assert not is_later([103.0, 150.0, 150.0], before)
    assert not is_later([15.0] * 3, [10.0] * 5)
    assert not is_later([500.0], before[:3])


def test_the_reason_tells_the_rates_that_were_judged() -> None:
    speed = speed_of(
        [*answers(20, 150.0), *answers(LASTING, 80.0, 80.0)],
        [*answers(20, *[60.0] * 12), *answers(LASTING, *USUAL)],
    )
    assert speed.slow == (
        "decode rate 80.0 tokens/s in answers of 32 tokens or more, 20 % less than "
        "production's 100.0"
    )
    assert (speed.decode_tok_s, speed.decode_tok_s_against) == (80.0, 60.0)  # all rates are shown


def test_one_lasting_answer_among_short_ones_is_too_little_and_of_a_single_round_it_is_all() -> (
    None
):
    mixed = [*answers(20, 150.0), *answers(22, 160.0), *answers(LASTING, 80.0)]
    assert speed_of(mixed, answers(LASTING, *USUAL)).slow is None
    assert speed_of(mixed[2:], answers(LASTING, *USUAL)).slow is not None


def test_the_rate_of_a_short_answer_is_shown_and_makes_no_probe_a_regression() -> None:
    usual = (425.0, 414.0, 384.0, 430.0, 428.0)
    short = speed_of(answers(FEW, *[290.0] * 3), answers(FEW, *usual))
    assert (short.decode_tok_s, short.decode_tok_s_against, short.slow) == (290.0, 425.0, None)
    assert speed_of(answers(128, *[290.0] * 3), answers(128, *usual)).slow is not None


def test_a_server_that_is_idle_between_canaries_is_compared_by_idle_rates_and_never_cold_ones() -> (
    None
):
    rested = [replace(sample, phase=Phase.IDLE) for sample in answers(LASTING, *USUAL)]
    assert (
        speed_of(answers(LASTING, 50.0, 50.0), [*rested, *answers(LASTING, 100.0)]).slow is not None
    )
    cold = [replace(sample, phase=Phase.COLD) for sample in rested]
    assert speed_of(answers(LASTING, 50.0, 50.0), [*cold, *answers(LASTING, 100.0)]).slow is None


# ---- short answers, over all probes


@pytest.mark.parametrize(("now", "before"), [(31, 31), (31, 40), (40, 31)])
def test_a_server_that_crawls_is_found_by_short_answers_too_on_whichever_side_they_are(
    now: int, before: int
) -> None:
    found = judged(answers(now, 20.0, 21.0, 20.0), answers(before, *USUAL))
    assert found.slower is True
    assert found.note == (
        "the candidate decodes at 20 % of production's rate, in the median of 3 short "
        "answers (below 50 % is a regression)"
    )


def test_the_same_server_stays_good_although_its_short_answers_scatter_by_a_third() -> None:
    dice = random.Random(1)
    scatter = [[100.0 * dice.lognormvariate(0.0, 0.3) for _ in range(8)] for _ in range(1000)]
    assert (
        sum(judged(answers(FEW, *r[:3]), answers(FEW, *r[3:])).slower is True for r in scatter) <= 1
    )
    assert judged(answers(FEW, *[60.0] * 3), answers(FEW, *USUAL)).slower is False


def test_production_whose_own_short_answers_are_often_as_slow_is_no_measure() -> None:
    assert (
        judged(answers(FEW, 45.0, 45.0, 45.0), answers(FEW, 40.0, 40.0, 100.0, 100.0, 100.0)).slower
        is False
    )


def test_short_answers_are_counted_over_all_probes_each_against_its_own() -> None:
    production = [
        *answers(FEW, *USUAL),
        *answers(FEW, *(rate * 10 for rate in USUAL), probe="b"),
        *answers(FEW, *USUAL, probe="c"),
    ]
    crawl = {
        "sky": answers(FEW, 20.0),
        "b": answers(FEW, 200.0, probe="b"),
        "c": answers(FEW, 20.0, probe="c"),
    }
    assert judge_decoding(crawl, production).slower is True
    assert (
        judge_decoding({name: crawl[name] for name in ("sky", "b")}, production).slower is None
    )  # two answers are too few
    assert (
        judge_decoding(
            crawl | {"sky": answers(FEW, 100.0), "b": answers(FEW, 1000.0, probe="b")}, production
        ).slower
        is False
    )


def test_a_lasting_answer_that_is_good_hides_no_short_ones_that_crawl() -> None:
    lasting = {
        "long": answers(LASTING, 100.0, 100.0, probe="long"),
        "sky": answers(FEW, 100.0, 99.0, 98.0),
    }
    production = [*answers(LASTING, *USUAL, probe="long"), *answers(FEW, *USUAL)]
    assert judge_decoding(lasting, production) == Decoding(False)
    assert (
        judge_decoding(lasting | {"sky": answers(FEW, 20.0, 20.0, 20.0)}, production).slower is True
    )


# ---- what was not judged


def test_where_only_the_wide_limit_could_be_applied_that_is_said() -> None:
    found = judged(answers(FEW, 60.0, 60.0, 60.0), answers(FEW, *USUAL))
    assert found.slower is False
    assert found.note is not None
    assert (
        "judged by short answers only, where only a rate below 50 % of production's is a regression"
    ) in found.note
    assert f"{PIN_A_LONGER} whose answers have 32 tokens or more" in found.note


@pytest.mark.parametrize(
    ("rounds", "production"),
    [
        (answers(1, *USUAL), []),
        (answers(FEW, 20.0, 20.0), answers(FEW, *USUAL)),
        (answers(LASTING, *USUAL), answers(LASTING, 100.0, 100.0, 100.0)),
        (
            [a_sample(decode_tok_s=None, completion_tokens=1)] * 3,
            [a_sample(decode_tok_s=None, completion_tokens=1)] * 9,
        ),
    ],
)
def test_where_no_decode_rate_could_be_judged_a_note_says_so_and_what_to_do(
    rounds: list[Sample], production: list[Sample]
) -> None:
    found = judged(rounds, production)
    assert found.slower is None
    assert found.note is not None
    assert found.note.startswith(
        "the decode rate was not judged: it requires answers of 32 tokens or more to one probe"
    )
    assert PIN_A_LONGER in found.note


def test_a_candidate_that_did_not_answer_at_all_needs_no_word_about_its_rate() -> None:
    assert judged([a_sample(outcome=Outcome.REJECTED)] * 3, answers(LASTING, *USUAL)) == Decoding(
        None
    )


# ---- which probe tells it best


def test_the_probe_of_a_fixed_length_that_production_knows_best_is_the_one_to_compare_by() -> None:
    fixed = [a_probe(name=name, sampling={"min_tokens": 128}) for name in ("seldom", "often")]
    short, free = a_probe(name="short", sampling={"min_tokens": 8}), a_probe(name="free")
    known = [
        *answers(128, *USUAL, *USUAL, probe="often"),
        *answers(128, *USUAL, probe="seldom"),
        *answers(128, *USUAL * 9, probe="free"),
    ]
    best = steadiest([short, free, *fixed], known)
    assert best is not None
    assert best.name == "often"
    assert steadiest(fixed, known[:3]) is None  # too little of production to compare with
    assert steadiest([short, free], known) is None
