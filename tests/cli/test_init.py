"""`init`: a folder that works as it stands, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin import StandIn

from monitor.config import load_probes, load_settings

from .conftest import Command

pytestmark = pytest.mark.usefixtures("few_probes")
LORA = {"id": "lora", "root": "adapters/lora", "parent": "tiny-canary"}
SECOND = {"id": "other", "root": "models/other", "parent": None}


def left(folder: Path) -> list[str]:
    """What stands in a folder, with everything below."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_what_it_writes_checks_well_and_measures_at_once(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    made = cli("init", "--url", server.url, "watch")
    assert made.code == 0, made.err
    config = str(tmp_path / "watch" / "config.yaml")
    assert cli("check", "-c", config).code == 0
    assert cli("probe", "-c", config, "chat-short").code == 0
    assert (tmp_path / "watch" / "history.db").exists()


def test_it_says_what_the_canaries_cost_an_hour_and_what_comes_next(
    cli: Command, server: StandIn
) -> None:
    printed = cli("init", "--url", server.url, "watch").out
    assert "tokens an hour" in printed
    assert "vllm-canary check -c watch/config.yaml" in printed


def test_in_json_it_is_one_object_and_nothing_on_standard_error(
    cli: Command, server: StandIn
) -> None:
    made = cli("init", "--url", server.url, "watch", "--json")
    assert made.json["config"] == "watch/config.yaml"
    assert made.json["tokens_per_hour"] == pytest.approx(
        sum(p["tokens_per_hour"] or 0 for p in made.json["probes"])
    )
    assert {p["written"] for p in made.json["probes"]} == {True}
    assert made.err == ""


def test_each_probe_is_tried_once(cli: Command, server: StandIn, tmp_path: Path) -> None:
    cli("init", "--url", server.url, "watch")
    questions = [body["messages"][0]["content"] for body in server.state.requests]
    assert questions == ["What is the capital of France?", "Count from one to thirty in words."]


def test_a_short_context_shortens_the_probes_that_would_not_fit(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    server.state.max_model_len = 64
    made = cli("init", "--url", server.url, "watch", "--json")
    assert made.code == 0, made.err
    settings = load_settings(tmp_path / "watch" / "config.yaml")
    probes = {p.name: p for p in load_probes(Path(settings.probes), settings)}
    assert probes["chat-short"].max_tokens == 32
    assert 8 <= probes["decode-fixed"].max_tokens < 64
    assert probes["decode-fixed"].sampling["min_tokens"] == probes["decode-fixed"].max_tokens
    assert cli("check", "-c", str(tmp_path / "watch" / "config.yaml")).code == 0


def test_an_expectation_that_this_model_does_not_meet_is_left_out_and_said(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    server.state.answers = {"What is the capital of France?": "I do not know."}
    made = cli("init", "--url", server.url, "watch", "--json")
    notes = {p["name"]: p["note"] for p in made.json["probes"]}
    assert "expectation was left out" in notes["chat-short"]
    settings = load_settings(tmp_path / "watch" / "config.yaml")
    probes = {p.name: p for p in load_probes(Path(settings.probes), settings)}
    assert probes["chat-short"].expect == ()
    assert "# expect:" in (tmp_path / "watch" / "probes" / "chat-short.yaml").read_text()


def test_a_server_that_is_not_there_is_3_and_nothing_is_written(
    cli: Command, tmp_path: Path
) -> None:
    made = cli("init", "--url", "http://127.0.0.1:9", "watch")
    assert (made.code, made.out) == (3, "")
    assert "http://127.0.0.1:9" in made.err
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "url", ["nonsense", "http://[::1", "ftp://h", "", "http://127.0.0.1:8000:1"]
)
def test_an_address_that_is_nonsense_is_2_and_nothing_is_written(
    url: str, cli: Command, tmp_path: Path
) -> None:
    made = cli("init", "--url", url, "watch")
    assert made.code == 2
    assert len(made.err.splitlines()) == 1
    assert left(tmp_path) == []


def test_a_wrong_key_is_2_and_says_how_to_give_one_and_the_right_key_works(
    cli: Command, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.state.api_key = "sk-right"
    without = cli("init", "--url", server.url, "watch")
    assert without.code == 2
    assert "api_key_env" in without.err
    monkeypatch.setenv("CANARY_TEST_KEY", "sk-wr0ng")
    wrong = cli("init", "--url", server.url, "--api-key-env", "CANARY_TEST_KEY", "watch")
    assert wrong.code == 2
    assert "401" in wrong.err
    assert "sk-wr0ng" not in wrong.err
    assert left(tmp_path) == []
    monkeypatch.setenv("CANARY_TEST_KEY", "sk-right")
    right = cli("init", "--url", server.url, "--api-key-env", "CANARY_TEST_KEY", "watch")
    assert right.code == 0
    texts = "".join(p.read_text() for p in (tmp_path / "watch").rglob("*.yaml"))
    assert "api_key_env: CANARY_TEST_KEY" in texts
    assert "sk-right" not in texts + right.out + right.err


def test_a_key_that_is_not_set_is_2_and_names_the_variable(
    cli: Command, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY_TEST_KEY", raising=False)
    made = cli("init", "--url", server.url, "--api-key-env", "CANARY_TEST_KEY", "watch")
    assert made.code == 2
    assert "CANARY_TEST_KEY is not set" in made.err


def test_a_model_that_is_not_served_is_2_with_those_that_are(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    made = cli("init", "--url", server.url, "--model", "llama", "watch")
    assert made.code == 2
    assert "llama" in made.err
    assert "tiny-canary" in made.err
    assert left(tmp_path) == []


def test_several_models_are_2_with_the_list_and_the_chosen_one_is_written(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    server.state.extra_models = [SECOND]
    made = cli("init", "--url", server.url, "watch")
    assert made.code == 2
    assert all(name in made.err for name in ("tiny-canary", "other"))
    assert cli("init", "--url", server.url, "--model", "other", "watch").code == 0
    assert load_settings(tmp_path / "watch" / "config.yaml").targets[0].model == "other"


def test_an_adapter_beside_its_base_is_no_second_model(cli: Command, server: StandIn) -> None:
    server.state.extra_models = [LORA]
    assert cli("init", "--url", server.url, "watch").code == 0


def test_a_folder_with_a_configuration_is_left_as_it_is(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "config.yaml").write_text("mine")
    made = cli("init", "--url", server.url, "watch")
    assert made.code == 2
    assert (
        made.err
        == "watch/config.yaml already exists; choose another directory, or remove it first\n"
    )
    assert (tmp_path / "watch" / "config.yaml").read_text() == "mine"
    assert server.state.requests == []


def test_a_folder_with_a_probe_of_mine_is_left_as_it_is(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    mine = tmp_path / "watch" / "probes" / "chat-short.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    made = cli("init", "--url", server.url, "watch")
    assert made.code == 2
    assert str(mine.relative_to(tmp_path)) in made.err
    assert left(tmp_path / "watch") == ["probes", "probes/chat-short.yaml"]
    assert mine.read_text() == "mine"


def test_a_folder_with_other_things_in_it_may_be_used(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert cli("init", "--url", server.url, ".").code == 0
    assert (tmp_path / "config.yaml").exists()


def test_a_file_in_the_place_of_the_folder_is_a_sentence(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "watch").write_text("a file")
    made = cli("init", "--url", server.url, "watch")
    assert made.code in {2, 3}
    assert "watch" in made.err
    assert (tmp_path / "watch").read_text() == "a file"


@pytest.mark.parametrize("name", ["1", "on", "null"])
def test_a_name_that_yaml_would_read_as_something_else_stays_a_name(
    name: str, cli: Command, server: StandIn, tmp_path: Path
) -> None:
    assert cli("init", "--url", server.url, "--name", name, "watch").code == 0
    assert load_settings(tmp_path / "watch" / "config.yaml").targets[0].name == name


def test_a_server_that_answers_with_errors_alone_is_3_and_nothing_is_written(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    server.state.http_status = 500
    made = cli("init", "--url", server.url, "watch")
    assert made.code == 3
    assert left(tmp_path) == []
