"""The retry-or-abstain rate: how often a person would have to ask again, or gets nothing."""

from __future__ import annotations

import pytest
from histories import a_sample

from monitor.judge.quality.refusals import REFUSALS, is_refusal
from monitor.judge.quality.usable import Usable, refusal_phrases, usable
from monitor.model import Expectation, Outcome, Phase, Sample, Verdict

KEY = ("local", "chat", "warm")
SORRY = "I'm sorry, but I can't help with that."


def samples(count: int, **changes: object) -> list[Sample]:
    return [a_sample(**changes) for _ in range(count)]


def rate(
    found: list[Sample], before: list[Sample] | None = None, **phrases: tuple[str, ...] | None
) -> Usable:
    return usable(found, before or [], phrases)[KEY]


@pytest.mark.parametrize("text", ["I’m sorry, but I cannot do that.", "I can't help you there."])
def test_a_refusal_is_known_from_what_stands_after_its_beginning(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        SORRY,
        "As an AI language model, I …",
        "I don’t have enough information to say.",
        "i'm unable to",
    ],
)
def test_refusals_are_known_by_their_words_however_they_are_written(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "It has an air conditioner.",
        "Paris is the capital of France.",
        "",
        "has an AI, too",
        "I can't help but admire this.",
        "I cannot help noticing the rhyme.",
        "I'm sorry, but I can only see one",
    ],
)
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert not is_refusal(text)


def test_refusals_wrong_answers_and_no_answers_are_counted_apart_and_summed() -> None:
    wrong, none = (
        samples(2, verdict=Verdict.FAIL),
        samples(3, outcome=Outcome.QUEUE_CAP, output=None),
    )
    found = rate([*samples(14), *samples(1, output=SORRY), *wrong, *none])
    assert (found.count, found.abstained, found.retried, found.rate) == (
        20,
        1,
        5,
        pytest.approx(0.3),
    )


def test_a_refusal_that_also_fails_its_condition_is_counted_once() -> None:
    found = rate(samples(4, output=SORRY, verdict=Verdict.FAIL))
    assert (found.abstained, found.retried, found.rate) == (4, 0, 1.0)


def test_what_we_cancelled_ourselves_does_not_count() -> None:
    assert usable(samples(3, outcome=Outcome.CANCELLED), [], {}) == {}


def test_a_probe_has_its_own_phrases_and_one_that_expects_a_refusal_is_left_out() -> None:
    assert rate(samples(2, output="No comment."), sky=("no comment",)).abstained == 2
    assert usable(samples(2, output=SORRY), [], {"sky": None}) == {}
    assert refusal_phrases([Expectation(contains="x")]) == REFUSALS
    assert refusal_phrases([Expectation(refusal=(), negate=True)]) == REFUSALS
    assert refusal_phrases([Expectation(refusal=("pass",), negate=True)]) == ("pass",)
    assert refusal_phrases([Expectation(refusal=())]) is None


def test_a_share_that_rises_is_said_and_one_that_scatters_is_not() -> None:
    good, bad = samples(95), samples(5, output=SORRY)
    assert rate([*good, *bad], [*good, *bad]).rising is False
    risen = rate([*samples(85), *samples(15, output=SORRY)], [*good, *bad])
    assert (risen.rising, risen.before) == (True, pytest.approx(0.05))
    assert rate([*samples(99), *samples(1, output=SORRY)], samples(100)).rising is False
    assert (
        rate([*samples(50), *samples(50, output=SORRY)]).rising is False
    )  # nothing to compare with
    assert rate(samples(9)).before is None


def test_classes_and_phases_are_never_mixed() -> None:
    found = usable(
        [*samples(2), *samples(3, phase=Phase.COLD), *samples(1, traffic_class="batch")], [], {}
    )
    assert {key: one.count for key, one in found.items()} == {
        KEY: 2,
        ("local", "chat", "cold"): 3,
        ("local", "batch", "warm"): 1,
    }
