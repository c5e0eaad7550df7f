"""The simulated language model: a table of answers, with log-probabilities that depend only on its
variant, seed and the prompt.

Variants. `healthy`. `int4`: rounded weights; every sure answer keeps its text, all log-
probabilities move a little, one near tie falls the other way. `new-weights`: other log-
probabilities and some other answers, good ones and a bad one. `lost-bos`: the chat template lost
its beginning-of-text token, so every chat prompt is one token shorter, and answers are fluent and
wrong.

Scores of a given text agree with the model's own answers: an answer of its own is scored as it was
generated, down to the end-of-text token; another known answer is unlikely where the two part, and
sure again from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from monitor.simulate.model.logprobs import Ranking, Rival, TokenScore, key_of
from monitor.simulate.model.phrases import (
    FILLER,
    NEAR_TIES,
    NEW_WEIGHTS,
    POLITE,
    SHIPPED,
    SURE,
    TEXTS,
    WITHOUT_BOS,
)
from monitor.simulate.model.vocabulary import (
    ASSISTANT,
    BOS,
    BYTES,
    EOS,
    SYSTEM,
    USER,
    WORDS,
    Vocabulary,
)

VARIANTS = ("healthy", "int4", "new-weights", "lost-bos")
VOCABULARY = Vocabulary(TEXTS)
_FILLER = tuple(VOCABULARY.encode(FILLER.strip()))
_KNOWN = {**SURE, **SHIPPED}
_ROLES: Mapping[str, int] = {"user": USER, "assistant": ASSISTANT}


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The requested length of an answer."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """One whole answer, decided when its first token is due. `texts` has one piece per token:
    the last is empty where the text ended.
    """

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    reason: str  # stop or length
    stop_reason: str | None
    batch: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in tokens, with the question in it and the part of the answer that is already
    given.
    """

    ids: tuple[int, ...]
    question: str
    given: tuple[int, ...]

    @property
    def has_bos(self) -> bool:
        """Whether it begins as every prompt of the training did."""
        return self.ids[:1] == (BOS,)


def chat_ids(messages: Sequence[Mapping[str, Any]], template: str, variant: str) -> tuple[int, ...]:
    """Messages through the chat template."""
    ids = [] if variant == "lost-bos" else [BOS]
    if template == "polite":
        ids += [SYSTEM, *VOCABULARY.encode(POLITE)]
    for message in messages:
        ids.append(_ROLES.get(str(message.get("role")), SYSTEM))
        ids += VOCABULARY.encode(_content(message.get("content")))
    return (*ids, ASSISTANT)


def prompt_of(ids: Sequence[int]) -> Prompt:
    """Parses a prompt: the answer begins after the last `<|assistant|>`, and the question is
    the text before it.
    """
    ids = tuple(ids)
    if ASSISTANT not in ids:
        return Prompt(ids, VOCABULARY.decode(ids), ())
    end = len(ids) - 1 - ids[::-1].index(ASSISTANT)
    start = max((i for i in range(end) if ids[i] == USER), default=-1)
    return Prompt(ids, VOCABULARY.decode(ids[start + 1 : end]), ids[end + 1 :])


def _content(content: Any) -> str:
    """The text of a message, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


class LanguageModel:
    """One set of weights. `batch` is the number of sequences in the step of the first token: it
    decides near ties.
    """

    def __init__(self, variant: str = "healthy", seed: int = 0) -> None:
        self.variant = variant
        self.seed = seed
        self._ranking = Ranking(variant, seed, range(WORDS, VOCABULARY.size))
        self._ranked = lru_cache(maxsize=8192)(self._rank)

    def generate(self, prompt: Prompt, limits: AnswerLimits, batch: int) -> Generation:
        """The answer to a prompt."""
        tokens = list(self._continuation(prompt, batch))
        at_least = (
            limits.max_tokens if limits.ignore_eos else min(limits.min_tokens, limits.max_tokens)
        )
        tokens += _filler(key_of(prompt.question), at_least - len(tokens))
        reason = "stop" if len(tokens) < limits.max_tokens and not limits.ignore_eos else "length"
        tokens = [*tokens, EOS] if reason == "stop" else tokens[: limits.max_tokens]
        texts = ["" if token == EOS else VOCABULARY.text(token) for token in tokens]
        stopped = _stopped(texts, limits)
        if stopped is not None:
            keep, pieces, which = stopped
            return Generation(tuple(tokens[:keep]), tuple(pieces), "stop", which, batch)
        return Generation(tuple(tokens), tuple(texts), reason, None, batch)

    def scores(self, prompt: Prompt, place: int, token: int, batch: int) -> tuple[TokenScore, ...]:
        """The 20 most likely tokens at one place of the answer, best first; the first is
        the one generated.
        """
        return self._ranked(
            prompt.question, prompt.has_bos, len(prompt.given) + place, token, max(batch, 1)
        )

    def prompt_scores(self, prompt: Prompt, wanted: int) -> list[tuple[TokenScore, ...] | None]:
        """For each token of the prompt: itself and the `wanted` most likely tokens at its
        place; None for the first.
        """
        prompt = self._split_completion(prompt)
        begin = len(prompt.ids) - len(prompt.given)
        said = self._scored(prompt, wanted)
        found: list[tuple[TokenScore, ...] | None] = [None]
        for index, token in enumerate(prompt.ids[1:], 1):
            scores = next(said) if index >= begin else None
            found.append(
                scores
                or self._ranking.unexpected(prompt.ids[max(0, index - 8) : index], token, wanted)
            )
        return found

    def _scored(self, prompt: Prompt, wanted: int) -> Iterator[tuple[TokenScore, ...] | None]:
        """Scores each token of the answer given in a prompt; None for one that the model
        would not have generated.

        While the answer is the model's own, it is scored as generated. Where it turns into
        another known answer, its token is one of the alternatives, or unexpected; from
        there on the model follows it.
        """
        ways, key = self._ways(prompt), key_of(prompt.question)
        own = ways[0]
        for place, token in enumerate(prompt.given):
            follow = [way for way in ways if _goes_on(way, key, place, token)]
            parts = own in ways and own not in follow
            likeliest = (own[place] if place < len(own) else EOS) if parts else token
            ranked = (
                self._ranked(prompt.question, prompt.has_bos, place, likeliest, 1) if follow else ()
            )
            itself = [scored for scored in ranked if scored.token == token]
            top = [scored for scored in ranked[: max(wanted, 1)] if scored.token != token]
            yield (itself[0], *top) if itself else None
            ways = follow

    def _ways(self, prompt: Prompt) -> list[tuple[int, ...]]:
        """All known answers to a question, the model's own first."""
        question = _question_of(prompt.question)
        texts = [
            table[question] for table in (_KNOWN, NEW_WEIGHTS, WITHOUT_BOS) if question in table
        ]
        known = [tuple(VOCABULARY.encode(text)) for text in (*texts, *NEAR_TIES.get(question, ()))]
        return list(dict.fromkeys([self._answer(prompt, 1), *known]))

    def _split_completion(self, prompt: Prompt) -> Prompt:
        """Splits a prompt without template (completions) into question and answer."""
        ids, written = prompt.ids, b""
        for end in range(1, len(ids)) if ASSISTANT not in ids else ():
            written += VOCABULARY.token(ids[end - 1]) if ids[end - 1] >= BYTES else b""
            apart = Prompt(ids, written.decode("utf-8", errors="replace"), ids[end:])
            if written and any(_is_all_of(way, apart) for way in self._ways(apart)):
                return apart
        return prompt

    # -- text

    def _continuation(self, prompt: Prompt, batch: int) -> tuple[int, ...]:
        """The rest of the answer after what the prompt already gives."""
        answer = self._answer(prompt, batch)
        given = prompt.given
        return answer[len(given) :] if answer[: len(given)] == given else _rambling(prompt.question)

    def _answer(self, prompt: Prompt, batch: int) -> tuple[int, ...]:
        question = _question_of(prompt.question)
        tie = NEAR_TIES.get(question)
        if tie is not None:
            return tuple(VOCABULARY.encode(tie[self._falls(question, batch)]))
        text = None if prompt.has_bos else WITHOUT_BOS.get(question)
        if text is None and self.variant == "new-weights":
            text = NEW_WEIGHTS.get(question)
        text = _KNOWN.get(question) if text is None else text
        return _rambling(prompt.question) if text is None else tuple(VOCABULARY.encode(text))

    def _falls(self, question: str, batch: int) -> int:
        """The outcome of a near tie: fixed when alone, dependent on the batch size otherwise."""
        alone = 1 if self.variant == "int4" and question == "Pick a fruit." else 0
        if batch <= 1:
            return alone
        return alone ^ (key_of(f"{self.seed}/{question}/{batch}") >> 7 & 1)

    # -- log-probabilities

    def _rank(
        self, question: str, has_bos: bool, place: int, token: int, batch: int
    ) -> tuple[TokenScore, ...]:
        question = _question_of(question)
        rival = self._rival(question, place, token)
        return self._ranking.at(
            f"{question}/{place}", has_bos, token, sure=question in _KNOWN, rival=rival, batch=batch
        )

    def _rival(self, question: str, place: int, token: int) -> Rival | None:
        """The alternative token where two answers part: of a near tie, or of the previous
        training.
        """
        both, tied = NEAR_TIES.get(question), True
        if both is None and self.variant == "new-weights" and question in NEW_WEIGHTS:
            both, tied = (_KNOWN[question], NEW_WEIGHTS[question]), False
        if both is None:
            return None
        first, second = ([*VOCABULARY.encode(text), EOS] for text in both)
        if (
            place >= min(len(first), len(second))
            or first[:place] != second[:place]
            or first[place] == second[place]
        ):
            return None
        return Rival(second[place] if token == first[place] else first[place], tied)


def _question_of(question: str) -> str:
    """The question in a long message: its last paragraph."""
    return question.strip().rpartition("\n\n")[2]


def _rambling(question: str) -> tuple[int, ...]:
    """An answer to an unknown question: 20 to 219 tokens of filler, depending on the question."""
    key = key_of(question)
    return tuple(_filler(key, 20 + key % 200))


def _filler(key: int, length: int) -> list[int]:
    """Filler that prolongs an answer."""
    return [_FILLER[(key + index) % len(_FILLER)] for index in range(length)]


def _goes_on(answer: Sequence[int], key: int, place: int, token: int) -> bool:
    """Whether this token comes next: of the answer, then its end or filler."""
    beyond = place - len(answer)
    return (
        token == answer[place]
        if beyond < 0
        else token in {EOS, _FILLER[(key + beyond) % len(_FILLER)]}
    )


def _is_all_of(answer: Sequence[int], prompt: Prompt) -> bool:
    """Whether the given part is this answer, or its beginning."""
    key = key_of(prompt.question)
    return all(_goes_on(answer, key, place, token) for place, token in enumerate(prompt.given))


def _stopped(texts: Sequence[str], limits: AnswerLimits) -> tuple[int, list[str], str] | None:
    """Where a stop string ends the answer: tokens kept, their texts without it, and the stop
    string. It is looked for after min_tokens.
    """
    whole, ends = "", []
    for piece in texts:
        whole += piece
        ends.append(len(whole))
    begin = ends[limits.min_tokens - 1] if 0 < limits.min_tokens <= len(ends) else 0
    found = min(
        ((at, stop) for stop in limits.stop if stop and (at := whole.find(stop, begin)) >= 0),
        default=None,
    )
    if found is None:
        return None
    at, stop = found
    keep = next(i for i, end in enumerate(ends) if end >= at + len(stop)) + 1
    starts = [0, *ends[: keep - 1]]
    return (
        keep,
        [whole[min(start, at) : min(end, at)] for start, end in zip(starts, ends, strict=False)],
        stop,
    )
