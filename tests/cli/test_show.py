"""`show`: one sample with everything that is known about it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from histories import NOON, History
from sqlalchemy import Connection

from monitor.model import SAMPLE_FIELDS, Outcome, Pin, PinnedOutput, Verdict
from monitor.store import pins

from .conftest import Command


def test_it_prints_every_field_the_failure_and_the_answer(cli: Command, history: History) -> None:
    number = history.sample(
        "the stream ended without [DONE]", outcome=Outcome.TRUNCATED, output="Ye"
    )
    ran = cli("show", str(number), "--db", history.database)
    assert ran.code == 0
    shown = {line.split()[0] for line in ran.out.splitlines() if line.strip()}
    assert shown >= set(SAMPLE_FIELDS) - {"output"}
    assert "the stream ended without [DONE]" in ran.out
    assert ran.out.endswith("answer:\nYe\n")


def test_json_is_one_object_with_the_sentence_beside_the_fields(
    cli: Command, history: History
) -> None:
    number = history.sample("no connection", outcome=Outcome.REFUSED, output=None)
    found = cli("show", str(number), "--db", history.database, "--json").json
    assert list(found["samples"][0])[: len(SAMPLE_FIELDS) + 1] == [*SAMPLE_FIELDS, "detail"]
    assert (found["samples"][0]["detail"], found["samples"][0]["output"]) == ("no connection", None)


@pytest.mark.parametrize("number", ["7", "0", "-1", "99999999999999999999999"])
def test_a_sample_that_is_not_there_is_2(number: str, cli: Command, history: History) -> None:
    ran = cli("show", "--db", history.database, "--", number)
    assert (ran.code, ran.out) == (2, "")
    assert number in ran.err


def test_an_answer_cannot_steer_the_terminal_nor_be_read_as_markup(
    cli: Command, history: History
) -> None:
    number = history.sample(
        "\x1b[31mdetail", output="\x1b[2J[red]x[/red] :smile: \x9b1m\x07\r\u202e"
    )
    shown = cli("show", str(number), "--db", history.database).out
    assert [c for c in ("\x1b", "\x9b", "\x07", "\r", "\u202e") if c in shown] == []
    assert "[red]x[/red] :smile:" in shown


def test_an_answer_of_several_lines_keeps_them(cli: Command, history: History) -> None:
    number = history.sample(output="one\n  two\n\nthree " + "word " * 100)
    assert "one\n  two\n\nthree word" in cli("show", str(number), "--db", history.database).out


def test_no_answer_is_a_dash_and_an_empty_one_is_empty(cli: Command, history: History) -> None:
    none, empty = history.sample(output=None), history.sample(output="")
    assert cli("show", str(none), "--db", history.database).out.endswith("answer:\n–\n")
    assert cli("show", str(empty), "--db", history.database).out.endswith("answer:\n\n")


def a_pin(*answers: tuple[str, ...]) -> Pin:
    """Accepted answers, by their tokens."""
    outputs = [
        PinnedOutput("".join(tokens), tokens, (), (-0.1,) * len(tokens), "stop")
        for tokens in answers
    ]
    return Pin(
        0,
        "local",
        "sky",
        "first",
        None,
        "checked",
        "me",
        NOON,
        NOON + timedelta(days=30),
        tuple(outputs),
        10,
        0.0,
    )


def test_only_the_pinned_answer_that_the_sample_was_compared_with_is_marked(
    cli: Command, history: History
) -> None:
    history.sample()

    def work(connection: Connection) -> int:
        [revision] = connection.exec_driver_sql("SELECT id FROM probe_revision").scalars()
        made = a_pin(("Banana", "!"), ("I", " pick", " the", " apple", "."))
        return pins.add(connection, made, target_id=1, revision_id=revision, fingerprint_id=None)

    number = history.do(work)
    sample = history.sample(
        output="I pick the pear.", verdict=Verdict.FAIL, pin=number, first_divergence=3
    )
    shown = cli("show", str(sample), "--db", history.database).out
    assert "I pick the ⟪differs from here, token 4⟫  apple." in shown
    assert "Banana!" in shown
    assert shown.count("differs from here") == 1
    assert "3 (counted from 0: token 4)" in shown
