"""`pins`: the list with states, one pin, two compared, a file for git and back, an end. A file that
does not fit changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from histories import History
from sqlalchemy import Connection
from standin import StandIn

from monitor.judge.identity import digest
from monitor.model import FingerprintField
from monitor.store import fingerprints, queries

from .conftest import PROBE, Command, write_config

SKY = "Is the sky blue? Answer yes or no."
PINNED = PROBE.replace('  - contains: "Yes"', "  - pinned: true") + "sampling:\n  logprobs: 5\n"


@pytest.fixture
def config(tmp_path: Path, server: StandIn) -> Path:
    """One probe that is judged by its pin."""
    return write_config(tmp_path, server.url, sky=PINNED)


@pytest.fixture
def pinned(cli: Command, config: Path) -> Path:
    """A history with one pin; where `pins export` would write it to."""
    assert cli("pin", "--reason", "checked", "--repeats", "2").code == 0
    return config.parent / "pins.yaml"


def listed(cli: Command, *words: str) -> list[tuple[int, str]]:
    """Number and state of the pins that `pins` lists."""
    return [(p["id"], p["state"]) for p in cli("pins", *words, "--json").json["pins"]]


def exported(cli: Command, file: Path, **changes: Any) -> Path:
    """The file that `export` writes, with some fields of its one pin set anew."""
    assert cli("pins", "export", str(file)).code == 0
    data = yaml.safe_load(file.read_text())
    data["pins"][0] |= changes
    file.write_text(yaml.safe_dump(data, allow_unicode=True))
    return file


# ---- list


def test_none_are_told_with_the_command_that_records_some(cli: Command, history: History) -> None:
    ran = cli("pins", "--db", history.database)
    assert ran.code == 0
    assert ran.out.startswith("no pins; `vllm-canary pin --reason")


def test_no_history_at_all_is_3(cli: Command, config: Path) -> None:
    for words in ((), ("show", "1"), ("export",), ("expire", "1")):
        assert cli("pins", *words).code == 3
    assert not (config.parent / "history.db").exists()


def test_the_list_has_state_age_expiry_and_reason(cli: Command, pinned: Path) -> None:
    ran = cli("pins")
    assert ran.code == 0
    [_, row] = ran.out.splitlines()
    cells = row.split()
    assert cells[:6] == ["1", "local", "sky", "holds", "0", "d"]
    assert cells[-1] == "checked"
    assert datetime.fromisoformat(cells[6]).replace(tzinfo=UTC) > datetime.now(UTC) + timedelta(
        days=26
    )


def test_what_stands_before_the_action_counts_too(
    cli: Command, pinned: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").rename(tmp_path / "other.yaml")
    assert len(cli("pins", "-c", "other.yaml", "--json", "list").json["pins"]) == 1


def test_after_a_change_of_what_is_served_a_pin_is_stale_and_back_there_it_holds(
    cli: Command, history: History, pinned: Path
) -> None:
    before, after = (
        {"max_model_len": FingerprintField("max_model_len", "root", n, "a test")}
        for n in (1024, 4096)
    )

    def serve(fields: dict[str, FingerprintField]) -> int:
        def work(connection: Connection) -> int:
            row = queries.target(connection, "local")
            assert row is not None
            known = next(
                (
                    f.id
                    for f in fingerprints.all_of(connection, row.id)
                    if f.digest == digest(fields)
                ),
                None,
            )
            return fingerprints.save(
                connection, row.id, digest(fields), fields, datetime.now(UTC), row_id=known
            )

        return history.do(work)

    first = serve(before)
    history.do(lambda c: c.exec_driver_sql(f"UPDATE pin SET fingerprint_id = {first}"))
    assert listed(cli) == [(1, "holds")]
    serve(after)
    assert listed(cli) == [(1, "stale")]
    serve(before)
    assert listed(cli) == [(1, "holds")]


def test_a_pin_whose_date_has_passed_is_expired(
    cli: Command, history: History, pinned: Path
) -> None:
    history.do(lambda c: c.exec_driver_sql("UPDATE pin SET expires_at_us = 1"))
    assert listed(cli) == [(1, "expired")]


def test_a_pin_of_another_text_of_its_probe_is_told_apart(
    cli: Command, server: StandIn, pinned: Path
) -> None:
    write_config(pinned.parent, server.url, sky=PINNED.replace("max_tokens: 8", "max_tokens: 9"))
    assert listed(cli) == [(1, "other text")]


# ---- one, and two


def test_show_prints_every_field_and_the_accepted_answers(cli: Command, pinned: Path) -> None:
    ran = cli("pins", "show", "1")
    assert ran.code == 0
    assert {"reason", "author", "revision", "noise_nat", "prompt_tokens"} <= {
        line.split()[0] for line in ran.out.splitlines() if line
    }
    assert ran.out.endswith("2× stop, 2 tokens:\nYes\n")
    assert cli("pins", "show", "1", "--json").json["pins"][0]["outputs"][0]["text"] == "Yes"


@pytest.mark.parametrize(
    "words",
    [("show", "7"), ("expire", "7"), ("diff", "1", "7"), ("show", "99999999999999999999999")],
)
def test_a_pin_that_is_not_there_is_2(words: tuple[str, ...], cli: Command, pinned: Path) -> None:
    ran = cli("pins", *words)
    assert (ran.code, ran.out) == (2, "")


def test_diff_says_which_answers_came_and_went_and_how_far_the_rest_moved(
    cli: Command, pinned: Path
) -> None:
    assert cli("pins", "export", str(pinned)).code == 0
    told = yaml.safe_load(pinned.read_text())["pins"][0]
    other = {
        "outputs": [told["outputs"][0] | {"text": "Indeed"}],
        "prompt_tokens": told["prompt_tokens"] + 3,
    }
    assert cli("pins", "import", str(exported(cli, pinned, **other)), "--force").code == 0
    ran = cli("pins", "diff", "1", "2")
    assert ran.code == 0
    assert ran.out.splitlines()[:2] == ["- Yes", "+ Indeed"]
    assert "prompt tokens: " in ran.out
    [told] = cli("pins", "diff", "1", "1", "--json").json["differences"]
    assert (told["probe"], told["gone"], told["new"]) == ("sky", [], [])
    assert told["stayed"] == [{"text": "Yes", "logprob_shift": 0.0}]


def test_pins_of_two_probes_cannot_be_compared(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, a=PINNED, b=PINNED)
    cli("pin", "--reason", "checked", "--repeats", "1")
    ran = cli("pins", "diff", "1", "2")
    assert ran.code == 2
    assert "compare pins of one probe" in ran.err


# ---- export and import


def test_what_is_exported_is_plain_yaml_without_what_differs_from_machine_to_machine(
    cli: Command, pinned: Path
) -> None:
    text = cli("pins", "export").out
    [pin] = yaml.safe_load(text)["pins"]
    assert (pin["probe"], pin["reason"]) == ("sky", "checked")
    assert "id" not in pin
    told = cli("pins", "export", str(pinned), "--json")
    assert told.json == {"file": str(pinned), "exported": [1]}
    assert pinned.read_text() == text


def test_an_export_comes_back_as_it_was_and_the_pin_that_was_there_is_kept(
    cli: Command, pinned: Path
) -> None:
    before = cli("pins", "show", "1", "--json").json["pins"][0]
    ran = cli("pins", "import", str(exported(cli, pinned)), "--json")
    assert (ran.code, ran.json) == (0, {"imported": [2], "ended": [1]})
    after = cli("pins", "show", "2", "--json").json["pins"][0]
    assert {k: v for k, v in after.items() if k != "id"} == {
        k: v for k, v in before.items() if k != "id"
    }
    assert listed(cli, "--all") == [(2, "holds"), (1, "ended")]
    assert cli("probe", "--json").json["samples"][0]["verdict"] == "pass"


def test_an_export_from_before_more_was_known_of_what_is_served_comes_back_too(
    cli: Command, server: StandIn, history: History, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, sky=PINNED)
    server.state.system_fingerprint = None
    assert cli("pin", "--reason", "checked", "--repeats", "1").code == 0
    file = exported(cli, tmp_path / "pins.yaml")
    server.state.system_fingerprint = "vllm-0.32.0-bf6c1f39"
    assert cli("probe").code == 0
    named = cli("pins", "--json").json["pins"][0]["fingerprint"]
    assert named != yaml.safe_load(file.read_text())["pins"][0]["fingerprint"]
    assert cli("pins", "import", str(file), "--json").json == {"imported": [2], "ended": [1]}
    assert [pin["fingerprint"] for pin in cli("pins", "--json").json["pins"]] == [named]
    cli("pins", "expire", "2")
    assert "was retired in this history as pin" in cli("pins", "import", str(file)).err
    assert len(history.rows("SELECT * FROM fingerprint")) == 1


def test_of_two_pins_of_a_probe_in_one_file_the_later_one_holds(cli: Command, pinned: Path) -> None:
    data = yaml.safe_load(exported(cli, pinned).read_text())
    later = data["pins"][0] | {"created_at": "2036-01-01T00:00:00+00:00", "reason": "later"}
    pinned.write_text(yaml.safe_dump(data | {"pins": [later, *data["pins"]]}))
    assert cli("pins", "import", str(pinned)).code == 0
    assert [p["reason"] for p in cli("pins", "--json").json["pins"]] == ["later"]


def test_import_tells_whose_place_each_pin_takes(cli: Command, pinned: Path) -> None:
    told = cli("pins", "import", str(exported(cli, pinned))).out
    assert told.splitlines() == [
        "pin 2 of sky on local; replaces pin 1, now retired",
        "1 pins imported",
    ]


def test_an_import_does_not_undo_the_end_of_a_pin_unless_it_is_told_to(
    cli: Command, pinned: Path
) -> None:
    file = str(exported(cli, pinned))
    cli("pins", "expire", "1")
    ran = cli("pins", "import", file)
    assert ran.code == 2
    assert "the pin of sky was retired in this history as pin 1 (" in ran.err
    assert "nothing was imported (`--force` imports it anyway)" in ran.err
    assert listed(cli, "--all") == [(1, "ended")]
    assert cli("pins", "import", file, "--force").out.splitlines() == [
        "pin 2 of sky on local",
        "1 pins imported",
    ]
    assert listed(cli) == [(2, "holds")]


def test_an_import_does_not_put_an_older_pin_in_the_place_of_a_newer_one_unless_it_is_told_to(
    cli: Command, pinned: Path
) -> None:
    file = str(exported(cli, pinned))
    cli("pin", "--reason", "second", "--repeats", "1")
    ran = cli("pins", "import", file)
    assert (ran.code, listed(cli)) == (2, [(2, "holds")])
    assert "pin 2 of sky is active and newer (recorded 20" in ran.err
    assert cli("pins", "import", file, "--force", "--json").json == {"imported": [3], "ended": [2]}


def test_where_it_is_known_what_is_served_a_pin_that_does_not_say_it_is_not_taken(
    cli: Command, pinned: Path
) -> None:
    ran = cli("pins", "import", str(exported(cli, pinned, fingerprint=None)))
    assert ran.code == 2
    assert "does not name the configuration it was recorded under" in ran.err


REFUSED = {
    "expired": (
        {"expires_at": "2020-01-01T00:00:00+00:00"},
        "the pin of sky expired on 2020-01-01; nothing was imported",
    ),
    "another target": (
        {"target": "remote"},
        "the history has no target remote; nothing was imported",
    ),
    "another model": (
        {"fingerprint": "0123456789ab"},
        "was recorded under identity 0123456789ab, which local never had; is it another model? ",
    ),
    "another text": (
        {"revision": "gone"},
        "there is no probe sky of revision gone: its text has changed; nothing was imported",
    ),
    "another probe": ({"probe": "rain"}, "there is no probe rain of revision"),
    "no reason": ({"reason": " "}, "pin 1: has no reason"),
    "no answers": ({"outputs": []}, "pin 1: has no outputs"),
    "no zone": ({"expires_at": "2036-01-01T00:00:00"}, "need a time zone"),
    "no time": ({"created_at": "yesterday"}, "pin 1: created_at: "),
    "an answer without tokens": ({"outputs": [{"text": "Yes"}]}, "pin 1: outputs.0.tokens: "),
    "too few log-probabilities": (
        {
            "outputs": [
                {
                    "text": "Yes",
                    "tokens": ["Yes"],
                    "token_ids": [],
                    "logprobs": [],
                    "finish_reason": "stop",
                }
            ]
        },
        "has 1 tokens, 0 logprobs and 0 tops; give one for each token",
    ),
}


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED)
def test_a_pin_that_does_not_belong_here_is_2_with_the_reason_and_nothing_is_changed(
    changes: dict[str, Any], words: str, cli: Command, pinned: Path
) -> None:
    ran = cli("pins", "import", str(exported(cli, pinned, **changes)))
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err
    assert listed(cli, "--all") == [(1, "holds")]


def test_one_pin_that_does_not_fit_keeps_the_whole_file_out(cli: Command, pinned: Path) -> None:
    data = yaml.safe_load(exported(cli, pinned).read_text())
    pinned.write_text(
        yaml.safe_dump(data | {"pins": [*data["pins"], data["pins"][0] | {"target": "remote"}]})
    )
    assert cli("pins", "import", str(pinned)).code == 2
    assert listed(cli, "--all") == [(1, "holds")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: [", "pins.yaml:1: is not valid YAML"),
        ("version: 2\npins: []\n", "is not a pin file (version 1)"),
        ("just words", "is not a pin file (version 1)"),
        ("version: 1\npins: [17]\n", "pin 1: "),
        ("\xff", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_none_is_2(text: str | None, words: str, cli: Command, pinned: Path) -> None:
    if text is not None:
        pinned.write_text(text, encoding="latin-1")
    ran = cli("pins", "import", str(pinned))
    assert ran.code == 2
    assert words in ran.err


def test_a_place_that_cannot_be_written_is_3(cli: Command, pinned: Path) -> None:
    assert cli("pins", "export", str(pinned / "nowhere" / "pins.yaml")).code == 3


# ---- an end


def test_an_ended_pin_judges_no_more_and_is_kept(cli: Command, pinned: Path) -> None:
    assert cli("pins", "expire", "1", "--json").json == {"ended": [1]}
    assert listed(cli) == []
    assert listed(cli, "--all") == [(1, "ended")]
    assert cli("probe", "--json").json["samples"][0]["verdict"] == "unpinned"
    again = cli("pins", "expire", "1")
    assert again.code == 2
    assert "pin 1 is already retired" in again.err
