"""Text of servers and models, made fit for logs, tables and databases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monitor.text import both_ends, one_line, whole_text

ANY_TEXT = st.text(
    st.characters(), max_size=60
)  # control characters and halves of surrogate pairs too


@given(ANY_TEXT)
def test_whatever_a_server_writes_becomes_a_text_that_every_file_and_database_takes(
    text: str,
) -> None:
    whole = whole_text(text)
    whole.encode()
    assert "\0" not in whole
    assert whole_text(whole) == whole


def test_two_halves_of_a_pair_become_the_character_and_one_alone_a_mark() -> None:
    assert whole_text("\ud83d\ude00 \ud83d") == "\U0001f600 \ufffd"


@given(ANY_TEXT, st.integers(2, 40))
def test_a_line_is_printable_and_no_longer_than_it_may_be(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert line.isprintable()
    assert len(line) <= limit


def test_what_steers_a_terminal_or_forges_a_line_is_spelled() -> None:
    assert (
        one_line("\x1b]0;owned\x07\nWARNING all is well\u202e")
        == "\\x1b]0;owned\\x07 WARNING all is well\\u202e"
    )


def test_of_a_long_sentence_both_ends_are_kept() -> None:
    text = both_ends(f"'{'x' * 10_000}' is not of type 'integer'", 80)
    assert len(text) <= 80
    assert text.startswith("'xxx")
    assert text.endswith("is not of type 'integer'")
