"""`review`: what a person said of an answer, kept beside it."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from histories import History

from .conftest import Command


def test_a_correction_stands_beside_the_sample_with_its_minutes(
    cli: Command, history: History
) -> None:
    number = history.sample(e2e_ms=1200.0)
    ran = cli(
        "review",
        str(number),
        "--verdict",
        "corrected",
        "--minutes",
        "3",
        "--note",
        "the amount was net",
        "--db",
        history.database,
    )
    assert (ran.code, ran.out) == (0, f"sample {number}: corrected\n")
    assert (
        f"{getpass.getuser()}: corrected, 3 min: the amount was net"
        in cli("show", str(number), "--db", history.database).out
    )
    [sample] = cli("show", str(number), "--db", history.database, "--json").json["samples"]
    assert sample["e2e_ms"] == 1200.0
    assert sample["reviews"] == [
        {
            "verdict": "corrected",
            "by": getpass.getuser(),
            "minutes": 3.0,
            "note": "the amount was net",
        }
    ]


def test_several_people_may_say_something_and_all_of_it_is_kept_in_order(
    cli: Command, history: History
) -> None:
    number = history.sample()
    for verdict in ("wrong", "right"):
        assert cli("review", str(number), "--verdict", verdict, "--db", history.database).code == 0
    [sample] = cli("show", str(number), "--db", history.database, "--json").json["samples"]
    assert [(r["verdict"], r["minutes"], r["note"]) for r in sample["reviews"]] == [
        ("wrong", None, None),
        ("right", None, None),
    ]


def test_json_is_one_object(cli: Command, history: History) -> None:
    number = history.sample()
    ran = cli("review", str(number), "--verdict", "right", "--json", "--db", history.database)
    assert ran.json == {
        "reviews": [{"sample": number, "verdict": "right", "minutes": None, "note": None}]
    }


@pytest.mark.parametrize(
    "words",
    [
        ("7", "--verdict", "right"),
        ("1", "--verdict", "nice"),
        ("1",),
        *(("1", "--verdict", "right", "--minutes", minutes) for minutes in ("-1", "nan", "x")),
    ],
)
def test_what_makes_no_sense_is_2_and_nothing_is_kept(
    words: tuple[str, ...], cli: Command, history: History
) -> None:
    history.sample()
    ran = cli("review", *words, "--db", history.database)
    assert (ran.code, ran.out) == (2, "")
    assert history.rows("SELECT * FROM review") == []


def test_a_note_cannot_steer_the_terminal(cli: Command, history: History) -> None:
    number = history.sample()
    cli(
        "review",
        str(number),
        "--verdict",
        "wrong",
        "--note",
        "\x1b[31m[red]x[/red]",
        "--db",
        history.database,
    )
    shown = cli("show", str(number), "--db", history.database).out
    assert "\x1b" not in shown
    assert "[red]x[/red]" in shown


def test_no_history_is_3_and_none_is_made(cli: Command, tmp_path: Path) -> None:
    assert cli("review", "1", "--verdict", "right", "--db", str(tmp_path / "none.db")).code == 3
    assert not (tmp_path / "none.db").exists()
