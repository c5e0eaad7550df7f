"""The simulated model: sure answers, near ties, and what each variant of its weights changes."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from monitor.simulate.model.language_model import (
    VARIANTS,
    VOCABULARY,
    AnswerLimits,
    Generation,
    LanguageModel,
    Prompt,
    chat_ids,
    prompt_of,
)
from monitor.simulate.model.logprobs import TokenScore
from monitor.simulate.model.phrases import NEW_WEIGHTS, SHIPPED, SURE, WITHOUT_BOS
from monitor.simulate.model.vocabulary import BOS

CANARIES = json.loads((Path(__file__).parent.parent / "vllm/model/canaries.json").read_text())
CERTAIN = {c["prompt"]: c["expected"][0] for c in CANARIES if len(c["expected"]) == 1}
TIES = {c["prompt"]: c["expected"] for c in CANARIES if len(c["expected"]) > 1}


def asked(question: str, variant: str = "healthy", template: str = "plain") -> Prompt:
    return prompt_of(chat_ids([{"role": "user", "content": question}], template, variant))


def said(
    question: str, variant: str = "healthy", batch: int = 1, limits: AnswerLimits | None = None
) -> Generation:
    return LanguageModel(variant).generate(
        asked(question, variant), limits or AnswerLimits(200), batch
    )


def text(generation: Generation) -> str:
    return "".join(generation.texts)


def shift(question: str, variant: str) -> float:
    """Mean distance of the log-probabilities of the first five candidates from those of the healthy
    model, in nat.
    """
    generation = said(question)
    prompt = asked(question)
    healthy, other = LanguageModel(), LanguageModel(variant)
    gaps = []
    for place, token in enumerate(generation.tokens):
        before = {s.token: s.logprob for s in healthy.scores(prompt, place, token, 1)[:5]}
        after = {s.token: s.logprob for s in other.scores(prompt, place, token, 1)}
        gaps += [abs(before[t] - after[t]) for t in before if t in after]
    return sum(gaps) / len(gaps)


@pytest.mark.parametrize("variant", ["healthy", "int4"])
@pytest.mark.parametrize(("question", "answer"), CERTAIN.items())
def test_the_twelve_sure_prompts_are_answered_as_the_real_tiny_model_answers_them(
    variant: str, question: str, answer: str
) -> None:
    for batch in (1, 3, 8):
        generation = said(question, variant, batch)
        assert text(generation) == answer
        assert (generation.reason, generation.texts[-1]) == ("stop", "")


@pytest.mark.parametrize("question", TIES)
def test_a_near_tie_is_steady_alone_and_falls_either_way_in_a_batch(question: str) -> None:
    assert {text(said(question)) for _ in range(5)} == {TIES[question][0]}
    assert {text(said(question, batch=size)) for size in range(2, 30)} == set(TIES[question])


@pytest.mark.parametrize("question", TIES)
def test_where_near_ties_part_both_tokens_are_nearly_as_likely(question: str) -> None:
    first, other = (VOCABULARY.encode(answer) for answer in TIES[question])
    place = next(i for i, (a, b) in enumerate(zip(first, other, strict=True)) if a != b)
    best, second = LanguageModel().scores(asked(question), place, first[place], 1)[:2]
    assert (best.token, second.token) == (first[place], other[place])
    assert 0 < best.logprob - second.logprob < 0.1


def test_int4_keeps_every_sure_text_moves_log_probabilities_and_turns_one_near_tie() -> None:
    assert all(0.05 < shift(question, "int4") < 1.5 for question in CERTAIN)
    turned = [q for q in TIES if text(said(q, "int4")) != text(said(q))]
    assert turned == ["Pick a fruit."]


def test_new_weights_change_some_answers_and_move_log_probabilities_further_than_four_bits_do() -> (
    None
):
    changed = [q for q in CERTAIN if text(said(q, "new-weights")) != text(said(q))]
    assert sorted(changed) == sorted(NEW_WEIGHTS)
    assert 3 <= len(changed) < len(CERTAIN) / 2
    assert max(shift(q, "int4") for q in CERTAIN) < min(
        shift(q, "new-weights") for q in CERTAIN if q not in changed
    )


def test_without_the_beginning_of_text_token_prompts_are_one_token_shorter_and_answers_wrong() -> (
    None
):
    for question in CERTAIN:
        assert len(asked(question, "lost-bos").ids) == len(asked(question).ids) - 1
        assert text(said(question, "lost-bos")) == WITHOUT_BOS[question] != CERTAIN[question]


def test_the_texts_are_those_of_the_tiny_model() -> None:
    assert dict(SURE) == CERTAIN
    assert set(WITHOUT_BOS) == {*CERTAIN, *SHIPPED}


@pytest.mark.parametrize(
    "file",
    sorted((Path(__file__).parents[2] / "probes").glob("*.yaml")),
    ids=lambda file: file.stem,
)
def test_the_shipped_probes_are_answered_as_they_expect_and_not_so_without_the_beginning_of_text(
    file: Path,
) -> None:
    shipped = yaml.safe_load(file.read_text())
    long = [
        {**m, "content": f"Paragraph 1. The watch on the hill.\n\n{m['content']}"}
        for m in shipped["messages"]
    ]
    limits = AnswerLimits(
        shipped["max_tokens"], ignore_eos=shipped.get("sampling", {}).get("ignore_eos", False)
    )

    def met(messages: list[dict[str, str]], variant: str) -> bool:
        answer = text(
            LanguageModel(variant).generate(
                prompt_of(chat_ids(messages, "plain", variant)), limits, 1
            )
        )
        return all(expected["contains"] in answer for expected in shipped.get("expect", ()))

    assert met(shipped["messages"], "healthy")
    assert met(long, "healthy")
    if "expect" in shipped and file.stem != "coding":  # wrong code is code
        assert not met(shipped["messages"], "lost-bos")


def test_log_probabilities_are_probabilities_and_repeat_exactly() -> None:
    for variant in VARIANTS:
        for question in (*CERTAIN, *TIES, "Something nobody taught"):
            prompt, generation = asked(question, variant), said(question, variant)
            for place, token in enumerate(generation.tokens[:20]):
                scores = LanguageModel(variant).scores(prompt, place, token, 1)
                assert scores == LanguageModel(variant).scores(prompt, place, token, 1)
                assert scores[0].token == token
                assert [s.rank for s in scores] == list(range(1, 21))
                assert [s.logprob for s in scores] == sorted(
                    (s.logprob for s in scores), reverse=True
                )
                assert sum(exp(s.logprob) for s in scores) <= 1.0
                assert len({s.token for s in scores}) == 20


def test_the_company_in_a_batch_moves_log_probabilities_a_little() -> None:
    question = "What is the capital of France?"
    token = said(question).tokens[0]
    alone, crowded = (
        LanguageModel().scores(asked(question), 0, token, batch)[1].logprob for batch in (1, 8)
    )
    assert 0 < abs(alone - crowded) < 0.1


def test_prompt_log_probabilities_agree_with_those_of_the_same_text_generated() -> None:
    question, model = "Translate to German: good morning", LanguageModel()
    answer = said(question).tokens[:-1]
    generated = [
        model.scores(asked(question), place, token, 1)[0] for place, token in enumerate(answer)
    ]
    prompt = prompt_of((*asked(question).ids, *answer))
    scores = model.prompt_scores(prompt, 1)
    assert scores[0] is None
    assert [first(place) for place in scores[-2:]] == generated
    assert all(first(place).logprob < -5 for place in scores[1:-2])
    assert text(model.generate(prompt, AnswerLimits(5), 1)) == ""  # nothing is left to say


def first(place: tuple[TokenScore, ...] | None) -> TokenScore:
    """The token itself."""
    assert place is not None
    return place[0]


def streamed_and_scored(
    prompt: Prompt, limits: AnswerLimits, model: LanguageModel | None = None, batch: int = 1
) -> tuple[list[float], list[float]]:
    """Log-probabilities of an answer's tokens as the stream brings them, and as they are when the
    answer is sent as part of the prompt.
    """
    model = model or LanguageModel()
    tokens = model.generate(prompt, limits, batch).tokens
    streamed = [
        model.scores(prompt, place, token, batch)[0].logprob for place, token in enumerate(tokens)
    ]
    scored = model.prompt_scores(prompt_of((*prompt.ids, *tokens)), 5)[len(prompt.ids) :]
    return streamed, [first(place).logprob for place in scored]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "limits",
    [
        AnswerLimits(200),
        AnswerLimits(4),
        AnswerLimits(64, ignore_eos=True),
        AnswerLimits(64, min_tokens=30),
    ],
    ids=str,
)
def test_an_answer_is_scored_as_it_was_said_down_to_its_end(
    variant: str, limits: AnswerLimits
) -> None:
    model = LanguageModel(variant)
    for question in (*CERTAIN, *TIES, "Something nobody taught"):
        streamed, scored = streamed_and_scored(asked(question, variant), limits, model)
        assert scored == streamed


@pytest.mark.parametrize(
    "question",
    ["What is the capital of France?", "Pick a fruit.", "A letter that begins with: Dear canary,"],
)
def test_a_plain_text_and_the_answer_to_it_are_told_apart_where_no_template_does(
    question: str,
) -> None:
    streamed, scored = streamed_and_scored(
        prompt_of((BOS, *VOCABULARY.encode(question))), AnswerLimits(100)
    )
    assert scored == streamed


def test_the_other_of_two_near_ties_is_scored_as_the_tie_it_is() -> None:
    batch = next(
        size
        for size in range(2, 30)
        if text(said("Pick a fruit.", batch=size)) == "I pick the banana."
    )
    streamed, scored = streamed_and_scored(asked("Pick a fruit."), AnswerLimits(20), batch=batch)
    assert scored == pytest.approx(streamed, abs=0.1)


def test_the_old_answer_of_new_weights_is_unlikely_where_it_parts_and_sure_after_that() -> None:
    question, model = "What is the capital of France?", LanguageModel("new-weights")
    prompt, before = asked(question), said(question).tokens
    scores = model.prompt_scores(prompt_of((*prompt.ids, *before)), 5)[len(prompt.ids) :]
    assert -4.0 < first(scores[0]).logprob < -1.0
    assert first(scores[0]).rank > 1
    assert all(first(place).logprob > -1.0 for place in scores[1:])
    beside = model.scores(prompt, 0, said(question, "new-weights").tokens[0], 1)
    # so that whoever judges can say how far apart they are
    assert before[0] in [scored.token for scored in beside]


def test_lengths_are_as_asked() -> None:
    question = "Is the sky blue? Answer yes or no."
    assert len(said(question, limits=AnswerLimits(64, ignore_eos=True)).tokens) == 64
    assert said(question, limits=AnswerLimits(64, ignore_eos=True)).reason == "length"
    long = said(question, limits=AnswerLimits(64, min_tokens=20))
    assert (len(long.tokens), long.reason) == (21, "stop")
    assert said("Count from one to thirty in words.", limits=AnswerLimits(7)).reason == "length"
    assert len(said("Count from one to thirty in words.", limits=AnswerLimits(7)).tokens) == 7


def test_a_stop_string_ends_the_answer_before_it() -> None:
    generation = said(
        "Name the three primary colours.", limits=AnswerLimits(50, stop=("yellow and",))
    )
    assert (text(generation), generation.reason, generation.stop_reason) == (
        "The three primary colours are red, ",
        "stop",
        "yellow and",
    )
    assert (
        text(said("Name the three primary colours.", limits=AnswerLimits(50, stop=("purple",))))
        == CERTAIN["Name the three primary colours."]
    )


@given(st.text(max_size=80))
def test_any_text_can_be_written_and_read_back(whole: str) -> None:
    assert VOCABULARY.decode(VOCABULARY.encode(whole, specials=False), skip_specials=False) == whole
