"""Words and tables for people: unknown is a dash, the terminal is never steered, and a percentile
says what it knows.
"""

from __future__ import annotations

import io

import pytest
from histories import NOON
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from monitor.judge.percentiles import Percentile
from monitor.show.terminal import (
    UNKNOWN,
    cell,
    local_time,
    milliseconds,
    number,
    percentile_text,
    printable,
    table,
)

ESCAPES = (
    "\x1b[31mred\x1b[0m \x1b]8;;http://evil\x07link\x1b]8;;\x07 \x9b2J \x07 \r over \x08 "
    "\u202eright"
)


def printed(what: object) -> str:
    """What a terminal of colours would be sent."""
    out = io.StringIO()
    Console(
        file=out, force_terminal=True, width=200, highlight=False, color_system="standard"
    ).print(what)
    return out.getvalue()


@given(st.text())
def test_printable_text_has_no_character_that_steers_a_terminal(text: str) -> None:
    assert all(c.isprintable() or c in "\n\t" for c in printable(text))


def test_printable_text_shows_what_it_took_away() -> None:
    assert printable("a\x1b[31mb\nc") == "a\\x1b[31mb\nc"
    assert printable("ümläut 漢字 🙂") == "ümläut 漢字 🙂"


def test_escape_sequences_in_a_cell_stay_text() -> None:
    shown = printed(table(["detail"], [[ESCAPES]]))
    for steering in ("\x1b[31m", "\x1b]8", "\x9b", "\x07", "\r", "\x08", "\u202e"):
        assert steering not in shown


def test_markup_and_emoji_names_in_a_cell_stay_text() -> None:
    shown = printed(table(["detail"], [["[red]x[/red] :warning: [link=http://evil]y[/link]"]]))
    assert "[red]x[/red] :warning: [link=http://evil]y[/link]" in shown


def test_unknown_is_a_dash_and_zero_is_zero() -> None:
    assert [number(None), milliseconds(None), local_time(None), cell(None).plain] == [UNKNOWN] * 4
    assert [number(0.0), milliseconds(0.0), cell(0).plain] == ["0", "0.0", "0"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(7.44, "7.4"), (99.94, "99.9"), (812.4, "812"), (27310.0, "27,310"), (0.04, "0.0")],
)
def test_milliseconds_have_a_decimal_only_where_it_says_something(value: float, text: str) -> None:
    assert milliseconds(value) == text


def test_a_time_for_people_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert local_time(NOON) == "2026-03-01 17:30:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("value", "count", "text"),
    [
        (Percentile(41.2, 38.0, 47.9), 100, "41.2 (38.0 to 47.9)"),
        (Percentile(41.2, 38.0, None), 10, "41.2 (38.0 to …)"),
        (Percentile(41.2, None, None), 2, "41.2 (… to …)"),
        (Percentile(at_least=2000.4), 40, "> 2,000"),
        (Percentile(), 3, "no answer"),
        (Percentile(), 0, UNKNOWN),
    ],
)
def test_a_percentile_says_what_is_known_of_it(value: Percentile, count: int, text: str) -> None:
    assert percentile_text(value, count) == text


def test_a_long_sentence_is_wrapped_and_an_id_never_is() -> None:
    rows = [[123456789, "word " * 40]]
    out = io.StringIO()
    Console(file=out, width=60).print(table(["id", "detail"], rows))
    assert "123456789" in out.getvalue()
    assert out.getvalue().count("word") == 40
