"""Log-probabilities of the simulated model: at each place of an answer, the generated token and its
alternatives.

They depend only on the variant of the weights, the seed, the place and the batch, so they are
reproducible.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple
from zlib import crc32

MAX_LOGPROBS = 20  # vLLM's --max-logprobs
# nat; drift of up to 0.026 was reported for another batch or cache state (vLLM #40896)
BATCH_NOISE = 0.02
#: Shift of each alternative's margin in nat, and its spread; a choice of the simulator. Rounding to
#: four bits makes unlikely tokens likelier; another training reweighs everything, by far more.
MOVES: Mapping[str, tuple[float, float]] = {"int4": (-0.7, 0.4), "new-weights": (-2.5, 1.5)}
# nat by which the other answer's token is behind, where two answers part
TIED, RIVAL = (
    (0.01, 0.06),
    (1.0, 3.0),
)


class TokenScore(NamedTuple):
    """One candidate: token, log-probability, and rank (1 = most likely)."""

    token: int
    logprob: float
    rank: int


class Rival(NamedTuple):
    """The token of the other answer where two answers part; `tied`: it is as good, else only
    the next best.
    """

    token: int
    tied: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """One set of weights. `words`: the tokens that can be alternatives."""

    variant: str
    seed: int
    words: range

    def at(
        self, place: str, has_bos: bool, token: int, *, sure: bool, rival: Rival | None, batch: int
    ) -> tuple[TokenScore, ...]:
        """The scores at one place: the generated token at the top, others at margins below
        it, the remaining mass unnamed.
        """
        # the alternatives are the same, whichever of the two is generated
        key = f"{place}/{token if rival is None else min(token, rival.token)}"
        chance = _chance(f"old/{self.seed}/{has_bos}/{key}")
        margin = chance.uniform(7.0, 8.6) if sure else chance.uniform(0.7, 4.0)
        others, margins = (
            ([], [])
            if rival is None
            else ([rival.token], [chance.uniform(*(TIED if rival.tied else RIVAL))])
        )
        margin = 7.0 if rival is not None else margin
        while len(others) < MAX_LOGPROBS - 1:
            other = self.words.start + chance.randrange(len(self.words))
            if other != token and other not in others:
                others.append(other)
                margins.append(margin)
                margin += chance.uniform(0.1, 0.7)
        margins = self._moved(margins, batch, key, rival is not None)
        mass = 1.0 + sum(exp(-m) for m in margins) + 3.0 * exp(-max(margins))
        ranked = sorted(zip(margins, others, strict=True))
        return (
            TokenScore(token, -log(mass), 1),
            *(TokenScore(o, -log(mass) - m, i) for i, (m, o) in enumerate(ranked, 2)),
        )

    def _moved(
        self, margins: Sequence[float], batch: int, key: str, with_rival: bool
    ) -> list[float]:
        """Margins as moved by other weights and by the batch; the first never drops below
        the generated token.
        """
        moved = list(margins)
        if self.variant in MOVES:
            chance, (shift, noise) = (
                _chance(f"{self.variant}/{self.seed}/{key}"),
                MOVES[self.variant],
            )
            moved = [
                m if with_rival and i == 0 else m + chance.gauss(shift, noise)
                for i, m in enumerate(moved)
            ]
        if batch > 1:
            chance = _chance(f"batch/{self.seed}/{batch}/{key}")
            moved = [m + chance.gauss(0.0, BATCH_NOISE) for m in moved]
        return [max(m, 0.002) for m in moved]

    def unexpected(self, before: Sequence[int], token: int, wanted: int) -> tuple[TokenScore, ...]:
        """Scores of a token that the model would not have generated (seen on vLLM 0.32 CPU:
        -7 to -11, rank 60 to 160).
        """
        chance = _chance(f"{self.variant}/{self.seed}/prompt/{(*before, token)}")
        itself = TokenScore(token, -chance.uniform(7.0, 11.5), chance.randrange(60, 170))
        best: list[TokenScore] = []
        left = chance.uniform(0.3, 1.6)
        for rank in range(1, wanted + 1):
            best.append(
                TokenScore(self.words.start + chance.randrange(len(self.words)), -left, rank)
            )
            left += chance.uniform(0.2, 0.9)
        return (itself, *(other for other in best if other.token != token))


def key_of(text: str) -> int:
    """A number derived from a text."""
    return crc32(text.encode("utf-8", errors="replace"))


def _chance(text: str) -> random.Random:
    return random.Random(key_of(text))  # noqa: S311 - the same text, the same figures
