"""Text that a server or a model wrote, made fit for a log, a table, a message and a database. Pure.

It may be of any length, steer a terminal (escape sequences), forge a line of a log (line breaks),
turn the reading direction round (U+202E), or hold what no file takes. What is kept of it as data
goes through `whole_text`, what people read through `one_line`.
"""

from __future__ import annotations

# characters of a sentence about one sample: a sample is to take 1 kB in the history, all told
LONGEST_DETAIL = 400


def whole_text(text: str) -> str:
    """Text that every file, terminal and database takes. JSON may hold half a surrogate pair, which
    no encoding takes, and U+0000, which PostgreSQL refuses: each becomes U+FFFD; two halves in a
    row become one character.
    """
    if text.isascii() and "\0" not in text:
        return text
    return (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    )


def one_line(text: str, limit: int = LONGEST_DETAIL) -> str:
    """One printable line of at most `limit` characters: line breaks become blanks, other control
    characters are spelled (`\\x1b`).
    """
    cut = (
        text if len(text) <= limit else text[: limit - 1] + "…"
    )  # first: spelling a megabyte takes as long as it is
    line = "".join(_spelled(character) for character in cut)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def printable(text: str) -> str:
    """Untrusted text without control characters that could steer a terminal; line breaks stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def both_ends(text: str, limit: int) -> str:
    """One printable line whose middle is left out where it is longer than `limit`: for a sentence
    that quotes first and then says why.
    """
    if len(text) <= limit:
        return one_line(text, limit)
    half = (limit - 3) // 2
    return f"{one_line(text[:half], half)} … {one_line(text[-half:], half)}"


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character in "\n\r\t\u00a0\u2028\u2029" else ascii(character)[1:-1]


def shown(text: str, limit: int = 80) -> str:
    """An answer, or its head, in quotes; what does not print is spelled."""
    text = text.strip()
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
