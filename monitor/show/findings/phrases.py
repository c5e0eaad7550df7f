"""Parts of sentences that several renderers share: moments, durations, quoted reasons, lists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from monitor.show.findings.texts import Texts
from monitor.text import both_ends, one_line

LONGEST_HEADLINE = 100  # characters
LONGEST_REASON = 110  # as a part of a sentence,
LONGEST_SENTENCE = 200  # and as one of its own
MOST_LISTED = 5


def utc(at: datetime) -> str:
    """Returns "2026-12-01 12:00 UTC"."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def duration(seconds: float) -> str:
    """Returns "45 s", "15 min", "6 h" or "2 d": the largest unit without a fraction."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def reason(text: str, limit: int = LONGEST_REASON) -> str:
    """Returns a stored text, such as a server's error message, as a clause: shortened in its middle
    and without a full stop.
    """
    return both_ends(text, limit).rstrip(". ")


def sentence(text: str) -> str:
    """Returns a stored text as a sentence of its own."""
    clause = reason(text, LONGEST_SENTENCE)
    return f"{clause[:1].upper()}{clause[1:]}."


def listed(names: Sequence[str]) -> str:
    """Returns "a, b, c", or the first of many and the number of the others."""
    more = len(names) - MOST_LISTED
    return ", ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def texts(headline: str, *sentences: str) -> Texts:
    """Returns the texts of a finding: the headline cut to one line, the sentences joined."""
    return Texts(
        headline=one_line(headline, LONGEST_HEADLINE),
        paragraph=" ".join(filter(None, sentences)),
    )
