"""A candidate beside production, probe by probe: worse, not worse, or too little to say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import a_probe, a_sample

from monitor.judge.candidate import ProbeResult, Round, is_later, is_slower, judge_candidate
from monitor.judge.pinned import PinJudgement
from monitor.model import Outcome, Phase, Sample, Verdict

PASS, FAIL, TIE, UNKNOWN = (PinJudgement(v, f"because {v}") for v in (Verdict.PASS, Verdict.FAIL, Verdict.NEAR_TIE, Verdict.UNKNOWN))


def judged(*judgements: PinJudgement, production: tuple[Sample, ...] = (), **fields: object) -> ProbeResult:
    sample = replace(a_sample(decode_tok_s=100.0), **fields)  # type: ignore[arg-type]
    return judge_candidate(a_probe(), [Round(sample, j) for j in judgements], production)


@pytest.mark.parametrize(
    ("judgements", "regressed"),
    [
        ((PASS, PASS, PASS), False),
        ((PASS, PASS, FAIL), False),  # two of three are asked for
        ((PASS, FAIL, FAIL), True),
        ((PASS, TIE, TIE), False),
        ((FAIL,), True),
        ((PASS, UNKNOWN, UNKNOWN), None),
        ((PASS, PASS, UNKNOWN), False),
        ((UNKNOWN,) * 3, None),
        ((FAIL, FAIL, UNKNOWN), True),
        ((), None),
    ],
)
def test_what_is_asked_of_a_probe_is_asked_of_its_rounds(judgements: tuple[PinJudgement, ...], regressed: bool | None) -> None:
    assert judged(*judgements).regressed is regressed


def test_the_first_failure_is_the_reason_and_else_what_kept_it_from_being_judged() -> None:
    assert judged(PASS, FAIL).reason == "because fail"
    assert judged(UNKNOWN).reason == "because unknown"
    assert judged(PASS).reason is None


def test_a_stream_that_broke_is_a_failure_and_an_empty_answer_is_counted_once() -> None:
    assert judged(UNKNOWN, UNKNOWN, outcome=Outcome.TRUNCATED).failed == 2
    assert judged(FAIL, FAIL, outcome=Outcome.EMPTY).failed == 2


def test_production_stands_beside_it() -> None:
    own = [a_sample(verdict=v, ttft_ms=30.0, decode_tok_s=80.0) for v in (Verdict.PASS, Verdict.PASS, Verdict.NEAR_TIE, Verdict.UNPINNED)]
    found = judged(PASS, production=(*own, a_sample(probe="another"), a_sample(phase=Phase.COLD, ttft_ms=9000.0)))
    assert (found.passed_against, found.of_against) == (3, 4)  # the cold one was judged too
    assert (found.ttft_ms, found.ttft_ms_against) == (40.0, 30.0)
    assert (found.decode_tok_s, found.decode_tok_s_against) == (100.0, 80.0)


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
