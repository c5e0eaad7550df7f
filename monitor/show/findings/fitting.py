"""A paragraph of at most sixty words: the parts of the highest rank are left out first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MOST_WORDS = 60


class Part(NamedTuple):
    """A piece of a paragraph with its punctuation; one of rank 0 is always kept."""

    text: str
    rank: int = 0


def fitted(parts: Iterable[Part]) -> str:
    """Returns the parts as one text that is short enough."""
    kept = [part for part in parts if part.text]
    while len(joined(kept).split()) > MOST_WORDS and any(part.rank for part in kept):
        kept.remove(max(reversed(kept), key=lambda part: part.rank))
    return joined(kept)


def joined(parts: Iterable[Part]) -> str:
    """Returns the parts as one text."""
    return "".join(part.text for part in parts)


def begun(text: str) -> str:
    """Returns the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]
