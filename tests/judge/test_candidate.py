"""A candidate beside production, probe by probe: worse, not worse, or too little to say so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import a_probe, a_sample

from monitor.judge.quality.candidate import (
    Conclusion,
    ProbeResult,
    Round,
    conclude,
    failing_together,
    judge_candidate,
)
from monitor.judge.quality.candidate_speed import Decoding
from monitor.judge.quality.pinned import PinJudgement
from monitor.judge.quality.shift import ShiftResult, judge_shift
from monitor.model import Outcome, Phase, Sample, Verdict

PASS, FAIL, TIE, UNKNOWN = (
    PinJudgement(v, f"because {v}")
    for v in (Verdict.PASS, Verdict.FAIL, Verdict.NEAR_TIE, Verdict.UNKNOWN)
)


def judged(
    *judgements: PinJudgement, production: tuple[Sample, ...] = (), **fields: object
) -> ProbeResult:
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
        ((PASS, FAIL), True),  # half of them: more than the third that may fail
        ((PASS,) * 3 + (FAIL,) * 2, True),
        ((PASS,) * 5 + (FAIL,) * 3, True),
        ((PASS,) * 4 + (FAIL,) * 2, False),
    ],
)
def test_what_is_asked_of_a_probe_is_asked_of_its_rounds(
    judgements: tuple[PinJudgement, ...], regressed: bool | None
) -> None:
    assert judged(*judgements).regressed is regressed


@pytest.mark.parametrize("rounds", range(1, 13))
def test_no_larger_share_of_the_rounds_may_fail_than_of_the_runs_in_production(rounds: int) -> None:
    for failed in range(rounds + 1):
        found = judged(*(FAIL,) * failed, *(PASS,) * (rounds - failed))
        assert found.regressed is (failed / rounds > 1 / 3)


def test_the_first_failure_is_the_reason_and_else_what_kept_it_from_being_judged() -> None:
    assert judged(PASS, FAIL).reason == "because fail"
    assert judged(UNKNOWN).reason == "because unknown"
    assert judged(PASS).reason is None


def test_a_stream_that_broke_is_a_failure_and_an_empty_answer_is_counted_once() -> None:
    assert judged(UNKNOWN, UNKNOWN, outcome=Outcome.TRUNCATED).failed == 2
    assert judged(FAIL, FAIL, outcome=Outcome.EMPTY).failed == 2


def test_production_stands_beside_it() -> None:
    own = [
        a_sample(verdict=v, ttft_ms=30.0, decode_tok_s=80.0)
        for v in (Verdict.PASS, Verdict.PASS, Verdict.NEAR_TIE, Verdict.UNPINNED)
    ]
    found = judged(
        PASS,
        production=(*own, a_sample(probe="another"), a_sample(phase=Phase.COLD, ttft_ms=9000.0)),
    )
    assert (found.passed_against, found.of_against) == (3, 4)  # the cold one was judged too
    assert (found.ttft_ms, found.ttft_ms_against) == (40.0, 30.0)
    assert (found.decode_tok_s, found.decode_tok_s_against) == (100.0, 80.0)


def test_a_probe_that_is_asked_for_its_speed_alone_needs_answers_and_no_verdicts() -> None:
    def asked(*outcomes: Outcome) -> bool | None:
        rounds = [Round(a_sample(outcome=o), PinJudgement(Verdict.UNPINNED)) for o in outcomes]
        return judge_candidate(a_probe(), rounds, (), speed_only=True).regressed

    assert asked(Outcome.OK, Outcome.OK, Outcome.OK) is False
    assert asked(Outcome.OK, Outcome.REJECTED, Outcome.REJECTED) is None
    assert asked(Outcome.OK, Outcome.EMPTY, Outcome.TRUNCATED) is True


# ---- all probes together


QUIET = ShiftResult(False, 0.01, 1.0, 5, 3)
JUDGED = Decoding(False)


def probes(*failed: int, rounds: int = 3) -> list[ProbeResult]:
    """One probe for each number of failures in so many rounds."""
    made = [judged(*(FAIL,) * count, *(PASS,) * (rounds - count)) for count in failed]
    return [replace(one, probe=f"p{number}") for number, one in enumerate(made)]


def test_a_probe_that_is_asked_for_its_speed_alone_tells_what_kept_it_from_being_measured() -> None:
    none = PinJudgement(Verdict.UNPINNED, "its text is not the one that was pinned; pin it anew")
    busy = Round(a_sample(outcome=Outcome.REJECTED), none, "HTTP 429 busy")
    told = judge_candidate(a_probe(), [Round(a_sample(), none), busy, busy], (), speed_only=True)
    assert (told.regressed, told.reason) == (None, "HTTP 429 busy")


def test_a_failure_in_each_of_five_probes_is_a_regression_although_each_keeps_its_own_rule() -> (
    None
):
    found = conclude(probes(1, 1, 1, 1, 1), QUIET, 3, JUDGED)
    assert found.regressed is True
    words = "5 of 15 over all probes (at most 2.8 % flip), on p0, p1, p2, p3, p4"
    assert found.notes == (f"answers fail more often than they flip by themselves: {words}",)


@pytest.mark.parametrize(
    "failed", [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (1, 1, 0, 0, 0), (1, 1, 1, 0, 0)]
)
def test_a_flip_here_and_there_is_none(failed: tuple[int, ...]) -> None:
    assert conclude(probes(*failed), QUIET, 3, JUDGED) == Conclusion(False)


def test_two_probes_alone_never_fail_together() -> None:
    assert failing_together(probes(4, 4, 0, rounds=12)) is None


def test_a_probe_that_regressed_needs_no_others() -> None:
    assert conclude(probes(3, 0, 0), QUIET, 3, JUDGED) == Conclusion(True)


def test_a_model_shift_that_could_not_be_tested_is_not_good_and_says_what_it_takes() -> None:
    untested = ShiftResult(None, None, None, 2, 3)
    found = conclude(probes(0, 0, 0), untested, 3, JUDGED)
    assert found.regressed is None
    assert "the pins of 2 of 3 probes can be used" in found.notes[0]
    one_round = conclude(probes(0, rounds=1), ShiftResult(None, None, None, 0, 0), 1, JUDGED)
    assert one_round.regressed is None
    assert "use --rounds 2 or more" in one_round.notes[0]
    assert (
        conclude(probes(3), untested, 3, JUDGED).regressed is True
    )  # what is wrong already needs no test


def test_what_the_sentence_asks_for_is_enough_for_the_test() -> None:
    for count, repeats in ((4, 5), (3, 10)):
        shifts = {f"p{n}": [0.5, 0.5] for n in range(count)}
        assert (
            judge_shift(shifts, dict.fromkeys(shifts, 0.0), dict.fromkeys(shifts, repeats)).shifted
            is True
        )


def test_a_shift_of_the_model_is_a_regression_although_every_answer_is_right() -> None:
    assert (
        conclude(probes(0, 0), ShiftResult(True, 0.7, 1e-4, 5, 3, ("p0",)), 3, JUDGED).regressed
        is True
    )
    assert conclude([], QUIET, 3, JUDGED).regressed is None


def test_short_answers_that_crawl_are_a_regression_and_what_was_not_judged_is_said() -> None:
    assert conclude(probes(0, 0), QUIET, 3, Decoding(True, "it crawls")) == Conclusion(
        True, ("it crawls",)
    )
    assert conclude(probes(0, 0), QUIET, 3, Decoding(None, "not judged")) == Conclusion(
        False, ("not judged",)
    )


def test_a_probe_without_a_pin_is_no_probe_whose_pin_is_unfit_and_its_failures_are_no_flips() -> (
    None
):
    alone = [replace(one, speed_only=True) for one in probes(1)]
    found = conclude([*probes(0, 0), *alone], ShiftResult(None, None, None, 2, 3), 3, JUDGED)
    assert "the pins of 2 of 2 probes can be used" in found.notes[0]
    assert conclude([*probes(3, 3, rounds=24), *alone], QUIET, 24, JUDGED) == Conclusion(False)
