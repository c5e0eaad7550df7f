"""An answer against its pin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.judge.quality.answers import LastAnswers
from monitor.judge.quality.gate import (
    again,
    judge_gate,
    pin_for,
    was_alone,
    with_second_runs,
)
from monitor.judge.quality.pinned import judge_pinned
from monitor.judge.quality.pinning import expiry, judge_pin_expiry, noise_of, outputs_of
from monitor.judge.quality.shift import binomial_tail, judge_shift
from monitor.judge.quality.verdicts import judge_model_shift, judge_near_ties
from monitor.model import (
    Finding,
    Kind,
    ObservedAnswer,
    Outcome,
    Phase,
    Pin,
    PinnedOutput,
    Probe,
    Sample,
    Severity,
    TokenLogprob,
    Verdict,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
WORDS = ("The", " capital", " is", " Paris", ".")


def answer(
    *tokens: str, logprob: float = -0.01, top: dict[str, float] | None = None, **other: object
) -> ObservedAnswer:
    spelled = tuple(TokenLogprob(t, logprob, top or {}) for t in tokens)
    values = {"finish_reason": "stop", "prompt_tokens": 10} | other
    return ObservedAnswer("".join(tokens), spelled, **values)  # type: ignore[arg-type]


def output(*tokens: str, logprob: float = -0.01) -> PinnedOutput:
    return PinnedOutput("".join(tokens), tokens, (), (logprob,) * len(tokens), "stop")


def pin(*outputs: PinnedOutput, noise: float | None = 0.0, **other: object) -> Pin:
    values: dict[str, object] = {"fingerprint": "f1", "revision": "r1"} | other
    return Pin(
        id=1,
        target="t",
        probe="sky",
        reason="checked",
        author="me",
        created_at=NOW,
        expires_at=NOW + timedelta(days=30),
        outputs=outputs or (output(*WORDS),),
        prompt_tokens=10,
        noise_nat=noise,
        **values,  # type: ignore[arg-type]
    )


def test_the_pinned_answer_passes_and_tells_how_far_its_log_probabilities_moved() -> None:
    told = judge_pinned(pin(), answer(*WORDS, logprob=-0.05))
    assert (told.verdict, told.first_divergence) == (Verdict.PASS, None)
    assert told.logprob_shift == pytest.approx(0.04)


def test_what_else_could_have_come_tells_of_a_change_that_a_confident_answer_hides() -> None:
    pinned = replace(output("Yes"), tops=({"Yes": -0.01, "No": -8.0},))
    told = judge_pinned(pin(pinned), answer("Yes", top={"Yes": -0.01, "No": -7.0}))
    assert told.verdict is Verdict.PASS
    assert told.logprob_shift == pytest.approx(
        0.7071, abs=1e-4
    )  # of the token 0, of its alternative 1 nat


def test_any_of_the_accepted_answers_passes() -> None:
    assert judge_pinned(pin(output("A"), output("B")), answer("B")).verdict is Verdict.PASS


def test_another_prompt_length_blames_template_or_tokenizer_and_not_the_model() -> None:
    told = judge_pinned(pin(), answer("Tokyo", prompt_tokens=9))
    assert (told.verdict, told.reason) == (
        Verdict.FAIL,
        "the prompt has 9 tokens, pinned are 10: the chat template or tokenizer changed",
    )


def test_a_token_that_lost_by_less_than_the_noise_is_a_near_tie_at_its_place() -> None:
    got = answer("The", " capital", " is", " Lyon", ".", top={" Paris": -0.06})
    told = judge_pinned(pin(), got)
    assert (told.verdict, told.first_divergence) == (Verdict.NEAR_TIE, 3)
    assert told.reason == "expected ' Paris', got ' Lyon' at token 4, 0.050 nat apart: a near tie"


def test_a_token_that_lost_clearly_is_a_failure() -> None:
    told = judge_pinned(pin(), answer("The", " capital", " is", " Lyon", ".", top={" Paris": -3.0}))
    assert (told.verdict, told.reason) == (
        Verdict.FAIL,
        "expected ' Paris', got ' Lyon' at token 4, 2.990 nat apart",
    )


def test_the_pins_own_noise_widens_what_counts_as_a_tie() -> None:
    got = answer("The", " capital", " is", " Lyon", ".", top={" Paris": -0.4})
    assert judge_pinned(pin(), got).verdict is Verdict.FAIL
    assert judge_pinned(pin(noise=0.2), got).verdict is Verdict.NEAR_TIE


def test_however_noisy_a_pin_is_half_a_nat_apart_is_no_tie() -> None:
    got = answer("The", " capital", " is", " Lyon", ".", top={" Paris": -0.6})
    assert judge_pinned(pin(noise=1.9), got).verdict is Verdict.FAIL


def test_two_tokens_that_were_tied_when_pinned_are_tied_a_little_longer() -> None:
    def told(gap: float, then: float) -> tuple[Verdict, str | None]:
        tops = ({}, {}, {}, {" Lyon": -0.01 - then}, {})
        got = answer("The", " capital", " is", " Lyon", ".", top={" Paris": -0.01 - gap})
        judged = judge_pinned(pin(replace(output(*WORDS), tops=tops)), got)
        return judged.verdict, judged.reason

    words = (
        "expected ' Paris', got ' Lyon' at token 4, 0.130 nat apart (0.005 the other way "
        "when pinned): a near tie"
    )
    assert told(gap=0.13, then=0.005) == (Verdict.NEAR_TIE, words)
    assert told(gap=0.13, then=0.3)[0] is Verdict.FAIL
    assert told(gap=0.6, then=0.005)[0] is Verdict.FAIL
    assert told(gap=0.05, then=2.0)[0] is Verdict.NEAR_TIE


@pytest.mark.parametrize(
    ("logprob", "top", "words"),
    [
        (-9.0, {" Paris": -0.01}, "8.990 nat less likely than ' Paris'"),
        (
            -2.0,
            {" Paris": -2.02, " Rome": -0.5},
            "1.500 nat less likely than ' Rome'",
        ),  # a tie of two, and both lost to a third
        (-2.0, {" Rome": -0.5}, "1.500 nat less likely than ' Rome'"),
    ],
)
def test_a_token_that_the_server_itself_held_unlikely_is_a_failure_and_the_sampling_is_blamed(
    logprob: float, top: dict[str, float], words: str
) -> None:
    got = replace(
        answer("The", " capital", " is", " Lyon", "."),
        tokens=(*answer(*WORDS[:3]).tokens, TokenLogprob(" Lyon", logprob, top)),
    )
    told = judge_pinned(pin(), got)
    assert (told.verdict, told.first_divergence) == (Verdict.FAIL, 3)
    assert told.reason is not None
    assert told.reason.startswith(
        f"expected ' Paris', got ' Lyon' at token 4, {words}: the server did not choose the "
        "most likely token"
    )


def test_a_token_that_lost_by_a_hair_is_a_near_tie_whichever_way() -> None:
    got = TokenLogprob(" Lyon", -0.71, {" Paris": -0.68})
    told = judge_pinned(pin(), replace(answer(*WORDS), tokens=(*answer(*WORDS[:3]).tokens, got)))
    assert (told.verdict, told.reason) == (
        Verdict.NEAR_TIE,
        "expected ' Paris', got ' Lyon' at token 4, 0.030 nat apart: a near tie",
    )


def test_sampling_is_not_blamed_where_the_pinned_token_was_not_the_most_likely_either() -> None:
    pinned = replace(output("Yes"), logprobs=(-3.0,), tops=({"Yes": -3.0, "No": -0.1},))
    came = TokenLogprob("Yeah", -2.98, {"No": -0.1, "Yes": -3.0})
    told = judge_pinned(pin(pinned), ObservedAnswer("Yeah", (came,), finish_reason="stop"))
    assert told.verdict is Verdict.NEAR_TIE


@given(st.floats(-12.0, 0.0), st.floats(-12.0, 0.0))
def test_nothing_is_a_near_tie_but_what_is_as_likely_as_the_likeliest(
    got: float, expected: float
) -> None:
    told = judge_pinned(
        pin(output("Yes")),
        ObservedAnswer("No", (TokenLogprob("No", got, {"Yes": expected}),), finish_reason="stop"),
    )
    assert (told.verdict is Verdict.NEAR_TIE) is (abs(got - expected) <= 0.1)


@pytest.mark.parametrize(
    ("running", "others", "alone"),
    [
        (0.0, 0.0, True),
        (2.0, 0.0, True),
        (None, 0.0, True),
        (0.0, 5.0, False),
        (0.0, None, True),
        (2.0, None, False),
        (None, None, False),  # nobody knows
    ],
)
def test_the_tokens_of_others_tell_better_than_a_gauge_that_may_be_stale(
    running: float | None, others: float | None, alone: bool
) -> None:
    assert was_alone(sample(Verdict.PASS, running=running, other_generation_tokens=others)) is alone


def test_a_pinned_token_that_is_not_among_the_likeliest_any_more_is_a_failure() -> None:
    told = judge_pinned(pin(), answer("The", " city"))
    assert told.verdict is Verdict.FAIL
    assert told.reason == (
        "expected ' capital', got ' city' at token 2; the pinned token is no longer among "
        "the most likely"
    )


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (answer(), "the answer is empty"),
        (answer(*["!"] * 20), "one token is repeated: '!'"),
        (
            answer("a\ufffd\ufffd\ufffdb"),
            "the answer contains runs of U+FFFD: bytes that are not text",
        ),
        (answer(*WORDS, finish_reason="length"), "finish_reason is length, pinned is stop"),
        (answer(*WORDS[:3]), "the answer ends before the pinned one (token 4): 'The capital is'"),
        (
            answer(*WORDS, " Or"),
            "the answer continues after the pinned one (token 6): 'The capital is Paris. Or'",
        ),
    ],
)
def test_what_is_always_a_failure_is_told_in_words(observed: ObservedAnswer, words: str) -> None:
    told = judge_pinned(pin(), observed)
    assert (told.verdict, told.reason) == (Verdict.FAIL, words)


def test_without_log_probabilities_the_whole_text_is_compared() -> None:
    bare = ObservedAnswer("".join(WORDS), finish_reason="stop", prompt_tokens=10)
    assert judge_pinned(pin(), bare).verdict is Verdict.PASS
    assert judge_pinned(pin(), replace(bare, text="Tokyo")).verdict is Verdict.FAIL


# ---- pins


def probe(**other: object) -> Probe:
    values: dict[str, object] = {"repeats": 3, "require": 2, "revision": "r1"} | other
    return Probe("sky", "chat", "chat", (), None, 8, {}, 60.0, None, 2.0, 300.0, **values)  # type: ignore[arg-type]


def test_a_pin_of_another_identity_judges_but_is_stale_and_one_of_another_text_judges_nothing() -> (
    None
):
    assert pin_for([pin()], probe(), "f1") == (pin(), False)
    assert pin_for([pin()], probe(), "f2") == (pin(), True)
    assert pin_for([pin(revision="old")], probe(), "f1") == (None, False)


def test_back_at_the_identity_of_a_pin_the_pin_is_current_again() -> None:
    old, new = pin(), replace(pin(fingerprint="f2"), id=2)
    assert pin_for([new, old], probe(), "f1") == (old, False)


def test_a_pin_from_before_any_identity_was_known_never_outlives_a_newer_one() -> None:
    unfiled, filed = pin(fingerprint=None), replace(pin(fingerprint="f1"), id=2)
    assert pin_for([unfiled], probe(), None) == (unfiled, False)
    assert pin_for([unfiled], probe(), "f1") == (
        unfiled,
        False,
    )  # nothing else is there to judge by
    assert pin_for([filed, unfiled], probe(), "f1") == (filed, False)
    assert pin_for([filed, unfiled], probe(), "f2") == (filed, True)


def test_the_second_run_with_the_same_salt_is_judged_by_the_pin_of_the_first() -> None:
    twice = probe(same_salt_twice=True)
    assert pin_for([pin()], again(twice), "f1") == (pin(), False)
    assert pin_for([pin()], replace(probe(), name="sky-again"), "f1") == (None, False)


def test_another_prompt_length_is_blamed_before_a_condition_that_fails_for_it() -> None:
    from monitor.model import Expectation

    strict = probe(expect=(Expectation(contains="Paris"),))
    told = judge_gate(strict, Outcome.OK, answer("Tokyo", prompt_tokens=9), pin())
    assert (
        told.reason
        == "the prompt has 9 tokens, pinned are 10: the chat template or tokenizer changed"
    )


def test_a_condition_that_fails_outweighs_a_pin_that_holds() -> None:
    from monitor.model import Expectation

    told = judge_gate(
        probe(expect=(Expectation(contains="Tokyo"),)), Outcome.OK, answer(*WORDS), pin()
    )
    assert told.verdict is Verdict.FAIL


def test_no_answer_is_unknown_and_never_a_pass() -> None:
    assert judge_gate(probe(), Outcome.QUEUE_CAP, answer(), pin()).verdict is Verdict.UNKNOWN


def test_repeats_become_a_set_of_answers_with_their_counts_and_their_noise() -> None:
    seen = [answer("A", logprob=-0.1), answer("B"), answer("A", logprob=-0.3)]
    outputs = outputs_of(seen)
    assert [(o.text, o.count) for o in outputs] == [("A", 2), ("B", 1)]
    assert outputs[0].logprobs == (pytest.approx(-0.2),)
    assert noise_of(seen, outputs) == pytest.approx(0.1)


@given(st.text(min_size=1, max_size=20))
def test_pins_end_within_a_tenth_of_their_life_and_not_all_on_one_day(name: str) -> None:
    life = timedelta(days=30)
    assert NOW + 0.9 * life <= expiry(name, NOW, life) <= NOW + life


def expired(
    probes: Sequence[Probe], pins: Sequence[Pin], digest: str | None, days: int
) -> list[Finding]:
    return judge_pin_expiry("t", probes, pins, digest, NOW + timedelta(days=days))


def test_an_expired_pin_is_a_finding_that_asks_for_a_new_one() -> None:
    assert expired([probe()], [pin()], "f1", 0) == []
    (asked,) = expired([probe()], [pin()], "f1", 31)
    assert (asked.kind, asked.subject, asked.severity) == (Kind.PIN_EXPIRED, "sky", Severity.INFO)


def test_a_pin_that_judges_nothing_now_asks_for_nothing() -> None:
    old, new = pin(), replace(pin(fingerprint="f2"), id=2, expires_at=NOW + timedelta(days=60))
    assert (
        expired([probe()], [new, old], "f2", 31) == []
    )  # pinned anew after a change of what is served
    assert [f.evidence["pin"] for f in expired([probe()], [new, old], "f1", 31)] == [
        1
    ]  # and rolled back
    assert expired([], [old], "f1", 31) == []  # of a probe that is configured no more
    assert expired([probe(revision="other")], [old], "f1", 31) == []


# ---- what verdicts add up to


def sample(verdict: Verdict, minute: int = 0, **other: object) -> Sample:
    values: dict[str, object] = {"pin": 1, "other_generation_tokens": 0.0} | other
    at = NOW + timedelta(minutes=minute)
    name = str(values.pop("probe", "sky"))
    return Sample("t", name, "chat", at, Phase.WARM, Outcome.OK, verdict=verdict, **values)  # type: ignore[arg-type]


def found(
    probes: Sequence[Probe], samples: Sequence[Sample], pins: Mapping[int, Pin] | None = None
) -> list[Finding]:
    """What is found after these runs; the sentence about each sample is its `output`."""
    known = {each.name: each for each in with_second_runs(probes)}
    answers: LastAnswers[Sample] = LastAnswers("t", known.get)
    for one in samples:
        answers.add(one)
    return answers.findings(lambda one: one, pins or {}, lambda one: one.output)


def test_two_failures_of_the_last_three_are_a_finding_and_one_is_not() -> None:
    ok, bad = Verdict.PASS, Verdict.FAIL
    assert found([probe()], [sample(v) for v in (bad, ok, bad, ok, ok)]) == []
    [finding] = found(
        [probe()],
        [sample(v, output="vendor: expected Acme, got Globex") for v in (ok, bad, ok, bad)],
    )
    assert (finding.kind, finding.severity) == (Kind.QUALITY, Severity.PAGE)
    assert (finding.evidence["failed"], finding.evidence["of"]) == (2, 3)
    assert finding.evidence["reason"] == "vendor: expected Acme, got Globex"


def test_the_reason_is_that_of_the_newest_failed_run_and_not_of_a_later_other_run() -> None:
    runs = [
        sample(Verdict.FAIL, 0, output="got 'Lyon'"),
        sample(Verdict.FAIL, 1, output="got 'Rome'"),
    ]
    [finding] = found(
        [probe()],
        [
            *runs,
            sample(Verdict.NEAR_TIE, 2, output="a near tie"),
            sample(Verdict.UNKNOWN, 3, output="no token"),
        ],
    )
    assert (finding.evidence["failed"], finding.evidence["of"]) == (2, 3)
    assert finding.evidence["reason"] == "got 'Rome'"


def test_failures_are_counted_for_each_probe_alone() -> None:
    other = replace(probe(), name="sea")
    one_each = [sample(Verdict.FAIL), sample(Verdict.FAIL, probe="sea")]
    assert found([probe(), other], one_each) == []


def test_the_second_answer_of_a_probe_that_is_sent_twice_is_counted_for_itself() -> None:
    twice = probe(same_salt_twice=True)
    runs = [
        each
        for minute in range(3)
        for each in (sample(Verdict.PASS, minute), sample(Verdict.FAIL, minute, probe="sky-again"))
    ]
    [finding] = found([twice], runs)
    assert (finding.subject, finding.severity) == ("sky-again", Severity.PAGE)
    assert found([probe()], runs) == []  # a probe of that name is not configured


def test_a_probe_and_its_second_run_are_one_where_three_probes_must_fail_together() -> None:
    many = [
        probe(same_salt_twice=True, repeats=9, require=1),
        replace(probe(), name="sea", repeats=9, require=1),
    ]
    runs = [
        sample(Verdict.FAIL, n, probe=name)
        for n in range(6)
        for name in ("sky", "sky-again", "sea")
    ]
    assert found(many, runs) == []


def test_failures_against_a_stale_pin_page_nobody() -> None:
    [finding] = found([probe()], [sample(Verdict.FAIL, stale=True)] * 3)
    assert finding.severity is Severity.INFO


def test_a_rising_share_of_near_ties_is_a_finding_of_its_own() -> None:
    ties = [sample(Verdict.NEAR_TIE)] * 5
    assert judge_near_ties("t", [sample(Verdict.PASS)] * 45 + ties) is None
    rising = judge_near_ties("t", [sample(Verdict.PASS)] * 15 + ties)
    assert rising is not None
    assert rising.kind is Kind.NEAR_TIES
    assert [f.kind for f in found([probe()], [sample(Verdict.PASS)] * 15 + ties)] == [
        Kind.NEAR_TIES
    ]


# ---- the model shift


FIVE = {f"p{i}": 5 for i in range(12)}  # repeats of each pin
QUIET = dict.fromkeys(FIVE, 0.0)  # and its noise


def test_log_probabilities_that_move_in_many_probes_are_a_shift_unless_within_the_pins_noise() -> (
    None
):
    noise = dict.fromkeys(FIVE, 0.02)
    assert judge_shift({name: [0.02, 0.01, 0.02] for name in FIVE}, noise, FIVE).shifted is False
    result = judge_shift({name: [0.2] * 3 for name in FIVE}, noise, FIVE)
    assert (result.shifted, result.rounds, len(result.moved)) == (True, 3, 12)
    assert result.effect_nat == pytest.approx(0.2)


def test_one_probe_alone_never_makes_a_shift() -> None:
    shifts = {name: [0.0] * 3 for name in FIVE} | {"p0": [5.0] * 3}
    result = judge_shift(shifts, QUIET, FIVE)
    assert (result.shifted, result.moved) == (False, ("p0",))


def test_too_few_probes_rounds_or_repeats_say_nothing_at_all() -> None:
    assert judge_shift({"p0": [1.0, 1.0], "p1": [1.0, 1.0]}, QUIET, FIVE).shifted is None
    assert judge_shift({name: [1.0] for name in FIVE}, QUIET, FIVE).shifted is None
    assert (
        judge_shift({name: [1.0] * 3 for name in FIVE}, QUIET, dict.fromkeys(FIVE, 2)).shifted
        is None
    )


def test_a_pin_whose_noise_is_not_known_takes_no_part() -> None:
    assert (
        judge_shift({name: [1.0] * 3 for name in FIVE}, dict.fromkeys(FIVE, None), FIVE).shifted
        is None
    )


def test_the_tail_is_that_of_the_binomial_distribution() -> None:
    assert binomial_tail(12, 0, 0.2) == 1.0
    assert binomial_tail(3, 3, 0.5) == pytest.approx(0.125)
    assert binomial_tail(10, 8, 0.5) == pytest.approx(56 / 1024)
    assert (binomial_tail(5, 6, 0.5), binomial_tail(5, 1, 0.0), binomial_tail(5, 5, 1.0)) == (
        0.0,
        0.0,
        1.0,
    )
    assert 0.4 < binomial_tail(20_000, 10_000, 0.5) < 0.6


def test_pins_with_as_much_noise_as_other_weights_would_cause_have_no_result_instead_of_no() -> (
    None
):
    shifts = {name: [0.72] * 3 for name in FIVE}
    assert judge_shift(shifts, dict.fromkeys(FIVE, 1.5), FIVE).shifted is None
    assert judge_shift(shifts, dict.fromkeys(FIVE, 0.3), FIVE).shifted is True


@given(st.lists(st.floats(0.0, 0.02), min_size=36, max_size=36))
def test_moves_within_twice_the_floor_never_alarm(values: list[float]) -> None:
    shifts = {f"p{i}": values[3 * i : 3 * i + 3] for i in range(12)}
    assert not judge_shift(shifts, QUIET, FIVE).shifted


def test_a_shift_needs_samples_that_had_the_server_to_themselves() -> None:
    pins = {1: pin(replace(output(*WORDS), count=5), noise=0.001)}
    moved = [
        sample(Verdict.PASS, r, probe=f"p{i}", logprob_shift=0.5)
        for i in range(6)
        for r in range(3)
    ]
    shifted = judge_model_shift("t", moved, pins)
    assert shifted is not None
    assert shifted.evidence["probes"] == 6
    own = [replace(probe(), name=f"p{i}") for i in range(6)]
    assert found(own, moved, pins) == [shifted]
    for fields in (
        {"other_generation_tokens": 50.0},
        {"other_generation_tokens": None, "running": None},
        {"stale": True},
    ):
        others = [replace(s, **fields) for s in moved]  # type: ignore[arg-type]
        assert judge_model_shift("t", others, pins) is None
        assert found(own, others, pins) == []


def test_the_two_runs_with_one_salt_are_one_witness_of_a_shift() -> None:
    pins = {1: pin(replace(output(*WORDS), count=5), noise=0.001)}
    twice = [replace(probe(), name=f"p{i}", same_salt_twice=True) for i in range(3)]
    moved = [
        sample(Verdict.PASS, r, probe=each.name, logprob_shift=0.5)
        for each in with_second_runs(twice)
        for r in range(3)
    ]
    assert found(twice, moved, pins) == []
