"""Text from a server or a model, made safe for a log, a table, a message and a database. Pure.

It may be of any length, control a terminal (escape sequences), forge a line of a log (line breaks),
reverse the reading direction (U+202E), or contain characters that no file accepts. Text that is
stored as data goes through `whole_text`, text that people read through `one_line`.
"""

from __future__ import annotations

# characters of a sentence about one sample: a sample takes about 1 kB in the history
LONGEST_DETAIL = 400


def whole_text(text: str) -> str:
    """Text that every file, terminal and database accepts. JSON may contain half a surrogate pair,
    which has no encoding, and U+0000, which PostgreSQL refuses: each becomes U+FFFD; two halves in
    a row become one character.
    """
    if text.isascii() and "\0" not in text:
        return text
    return (
        text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    )


def one_line(text: str, limit: int = LONGEST_DETAIL) -> str:
    """One printable line of at most `limit` characters: line breaks become blanks, other control
    characters are escaped (`\\x1b`).
    """
    # Cut first: escaping a megabyte takes long.
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    line = "".join(_escaped(character) for character in cut)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def printable(text: str) -> str:
    """Untrusted text without control characters that could steer a terminal; line breaks stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def both_ends(text: str, limit: int) -> str:
    """One printable line, without its middle where it is longer than `limit`: for a sentence with a
    quotation first and the reason last.
    """
    if len(text) <= limit:
        return one_line(text, limit)
    half = (limit - 3) // 2
    return f"{one_line(text[:half], half)} … {one_line(text[-half:], half)}"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character in "\n\r\t\u00a0\u2028\u2029" else ascii(character)[1:-1]


def shown(text: str, limit: int = 80) -> str:
    """An answer, or its beginning, in quotes; unprintable characters are escaped."""
    text = text.strip()
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
