"""The simulated language model: a table of answers with log-probabilities that follow from nothing but its variant, seed and the prompt.

Variants. `healthy`. `int4`: rounded weights, every sure answer keeps its text, all log-probabilities move a little, one near tie falls
the other way. `new-weights`: other log-probabilities and one other answer. `lost-bos`: the chat template lost its beginning-of-text
token, so every chat prompt is one token shorter, and answers are fluent and wrong.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import exp, log
from typing import Any, NamedTuple

from monitor.simulate.phrases import FILLER, NEAR_TIES, NEW_WEIGHTS, POLITE, SHIPPED, SURE, TEXTS, WITHOUT_BOS
from monitor.simulate.vocabulary import ASSISTANT, BOS, EOS, SYSTEM, USER, WORDS, Vocabulary

VARIANTS = ("healthy", "int4", "new-weights", "lost-bos")
VOCABULARY = Vocabulary(TEXTS)

MAX_LOGPROBS = 20  # vLLM's --max-logprobs
BATCH_NOISE = 0.02  # nat; drift of up to 0.026 was reported for another batch or cache state (vLLM #40896)
#: Nat on the margin of each alternative, and its spread; a choice of the simulator. Another training knows the same words, but weighs
#: them otherwise; rounding to four bits brings what was unlikely nearer.
MOVES: Mapping[str, tuple[float, float]] = {"int4": (-0.7, 0.4), "new-weights": (0.0, 0.8)}
_FILLER = tuple(VOCABULARY.encode(FILLER.strip()))
_KNOWN = {**SURE, **SHIPPED}
_ROLES: Mapping[str, int] = {"user": USER, "assistant": ASSISTANT}


class Scored(NamedTuple):
    """One candidate for a place: token, its log-probability, and its rank (1 = most likely)."""

    token: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Wish:
    """How long an answer a request wants."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speech:
    """One whole answer, decided when its first token came. `texts` has one piece a token: the last is empty where the text ended."""

    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    reason: str  # stop or length
    stop_reason: str | None
    batch: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in tokens, and what the model makes of it: the question, and how far the answer is given already."""

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
    """Read a prompt: after the last `<|assistant|>` stands the begin of the answer, before it the question."""
    ids = tuple(ids)
    if ASSISTANT not in ids:
        return Prompt(ids, VOCABULARY.decode(ids), ())
    end = len(ids) - 1 - ids[::-1].index(ASSISTANT)
    start = max((i for i in range(end) if ids[i] == USER), default=-1)
    return Prompt(ids, VOCABULARY.decode(ids[start + 1 : end]), ids[end + 1 :])


def _content(content: Any) -> str:
    """The text of a message; of the parts of a list those that are text."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


class LanguageModel:
    """One set of weights. `batch` is the number of sequences in the step of the first token: it decides near ties."""

    def __init__(self, variant: str = "healthy", seed: int = 0) -> None:
        self.variant = variant
        self.seed = seed
        self._ranked = lru_cache(maxsize=8192)(self._rank)

    def speak(self, prompt: Prompt, wish: Wish, batch: int) -> Speech:
        """The answer to a prompt."""
        tokens = list(self._told(prompt, batch))
        at_least = wish.max_tokens if wish.ignore_eos else min(wish.min_tokens, wish.max_tokens)
        for index in count(_key(prompt.question) % len(_FILLER)):
            if len(tokens) >= at_least:
                break
            tokens.append(_FILLER[index % len(_FILLER)])
        reason = "stop" if len(tokens) < wish.max_tokens and not wish.ignore_eos else "length"
        tokens = [*tokens, EOS] if reason == "stop" else tokens[: wish.max_tokens]
        texts = ["" if token == EOS else VOCABULARY.text(token) for token in tokens]
        stopped = _stopped(texts, wish)
        if stopped is not None:
            keep, pieces, which = stopped
            return Speech(tuple(tokens[:keep]), tuple(pieces), "stop", which, batch)
        return Speech(tuple(tokens), tuple(texts), reason, None, batch)

    def scores(self, prompt: Prompt, place: int, token: int, batch: int) -> tuple[Scored, ...]:
        """The most likely tokens of one place of the answer, best first, MAX_LOGPROBS of them; the one that came is the first."""
        return self._ranked(prompt.question, prompt.has_bos, len(prompt.given) + place, token, max(batch, 1))

    def prompt_scores(self, prompt: Prompt, wanted: int) -> list[tuple[Scored, ...] | None]:
        """For each token of the prompt: itself and the `wanted` most likely ones before which it stood; None for the first."""
        begin = len(prompt.ids) - len(prompt.given)
        answer = self._answer(prompt, 1)
        found: list[tuple[Scored, ...] | None] = [None]
        for index, token in enumerate(prompt.ids[1:], 1):
            place = index - begin
            if place >= 0 and prompt.ids[begin : index + 1] == answer[: place + 1]:
                found.append(self._ranked(prompt.question, prompt.has_bos, place, token, 1)[: max(wanted, 1)])
            else:
                found.append(self._surprised(prompt, index, token, wanted))
        return found

    # -- text ---------------------------------------------------------------------------------------------------------

    def _told(self, prompt: Prompt, batch: int) -> tuple[int, ...]:
        """What is left to say after what the prompt gives already."""
        answer = self._answer(prompt, batch)
        given = prompt.given
        return answer[len(given) :] if answer[: len(given)] == given else _rambling(prompt.question)

    def _answer(self, prompt: Prompt, batch: int) -> tuple[int, ...]:
        question = _asked(prompt.question)
        tie = NEAR_TIES.get(question)
        if tie is not None:
            return tuple(VOCABULARY.encode(tie[self._falls(question, batch)]))
        text = None if prompt.has_bos else WITHOUT_BOS.get(question)
        if text is None and self.variant == "new-weights":
            text = NEW_WEIGHTS.get(question)
        text = _KNOWN.get(question) if text is None else text
        return _rambling(prompt.question) if text is None else tuple(VOCABULARY.encode(text))

    def _falls(self, question: str, batch: int) -> int:
        """Which of two near ties comes: alone always the same, in a batch it depends on its size."""
        alone = 1 if self.variant == "int4" and question == "Pick a fruit." else 0
        if batch <= 1:
            return alone
        return alone ^ (_key(f"{self.seed}/{question}/{batch}") >> 7 & 1)

    # -- log-probabilities --------------------------------------------------------------------------------------------

    def _rank(self, question: str, has_bos: bool, place: int, token: int, batch: int) -> tuple[Scored, ...]:
        """The scores of one place: the chosen token at the top, others at margins below it, the rest of the mass nowhere named."""
        chance = _chance(f"old/{self.seed}/{has_bos}/{question}/{place}/{token}")
        sure = _asked(question) in _KNOWN
        margin = chance.uniform(7.0, 8.6) if sure else chance.uniform(0.7, 4.0)
        tie = self._tie_token(_asked(question), place, token)
        others = [tie] if tie is not None else []
        margins = [chance.uniform(0.01, 0.06)] if tie is not None else []
        margin = 7.0 if tie is not None else margin
        while len(others) < MAX_LOGPROBS - 1:
            other = WORDS + chance.randrange(VOCABULARY.size - WORDS)
            if other != token and other not in others:
                others.append(other)
                margins.append(margin)
                margin += chance.uniform(0.1, 0.7)
        margins = self._moved(margins, batch, f"{question}/{place}/{token}", tie is not None)
        mass = 1.0 + sum(exp(-m) for m in margins) + 3.0 * exp(-max(margins))
        ranked = sorted(zip(margins, others, strict=True))
        return (Scored(token, -log(mass), 1), *(Scored(o, -log(mass) - m, i) for i, (m, o) in enumerate(ranked, 2)))

    def _moved(self, margins: Sequence[float], batch: int, place: str, tied: bool) -> list[float]:
        """Margins as other weights and the company in the batch move them; the first never below the chosen token."""
        moved = list(margins)
        if self.variant in MOVES:
            chance, (shift, noise) = _chance(f"{self.variant}/{self.seed}/{place}"), MOVES[self.variant]
            moved = [m if tied and i == 0 else m + chance.gauss(shift, noise) for i, m in enumerate(moved)]
        if batch > 1:
            chance = _chance(f"batch/{self.seed}/{batch}/{place}")
            moved = [m + chance.gauss(0.0, BATCH_NOISE) for m in moved]
        return [max(m, 0.002) for m in moved]

    @staticmethod
    def _tie_token(question: str, place: int, token: int) -> int | None:
        """The other of two near ties, where they part."""
        both = NEAR_TIES.get(question)
        if both is None:
            return None
        first, second = (VOCABULARY.encode(text) for text in both)
        if place >= min(len(first), len(second)) or first[:place] != second[:place] or first[place] == second[place]:
            return None
        return second[place] if token == first[place] else first[place]

    def _surprised(self, prompt: Prompt, index: int, token: int, wanted: int) -> tuple[Scored, ...]:
        """Scores of a token that the model would not have said itself (seen on vLLM 0.32 CPU: -7 to -11, rank 60 to 160)."""
        chance = _chance(f"{self.variant}/{self.seed}/prompt/{prompt.ids[max(0, index - 8) : index + 1]}")
        itself = Scored(token, -chance.uniform(7.0, 11.5), chance.randrange(60, 170))
        best: list[Scored] = []
        left = chance.uniform(0.3, 1.6)
        for rank in range(1, wanted + 1):
            best.append(Scored(WORDS + chance.randrange(VOCABULARY.size - WORDS), -left, rank))
            left += chance.uniform(0.2, 0.9)
        return (itself, *(other for other in best if other.token != token))


def _asked(question: str) -> str:
    """What a long message asks in the end: its last paragraph."""
    return question.strip().rpartition("\n\n")[2]


def _rambling(question: str) -> tuple[int, ...]:
    """An answer to a question that nobody taught: filler of a length that follows from the question, 20 to 219 tokens."""
    key = _key(question)
    length, start = 20 + key % 200, key % len(_FILLER)
    return tuple(_FILLER[(start + i) % len(_FILLER)] for i in range(length))


def _stopped(texts: Sequence[str], wish: Wish) -> tuple[int, list[str], str] | None:
    """Where a stop string ends the answer: tokens kept, their texts without it, and which it was. It is looked for after min_tokens."""
    whole, ends = "", []
    for piece in texts:
        whole += piece
        ends.append(len(whole))
    begin = ends[wish.min_tokens - 1] if 0 < wish.min_tokens <= len(ends) else 0
    found = min(((at, stop) for stop in wish.stop if stop and (at := whole.find(stop, begin)) >= 0), default=None)
    if found is None:
        return None
    at, stop = found
    keep = next(i for i, end in enumerate(ends) if end >= at + len(stop)) + 1
    starts = [0, *ends[: keep - 1]]
    return keep, [whole[min(start, at) : min(end, at)] for start, end in zip(starts, ends, strict=False)], stop


def _key(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", errors="replace"))


def _chance(text: str) -> random.Random:
    return random.Random(_key(text))  # noqa: S311 - the same text, the same figures
