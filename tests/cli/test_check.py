"""`check`: one screen that says what is there, what is missing, and what that costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from histories import History
from standin import StandIn

from .conftest import PROBE, Command, Ran, write_config


def states(ran: Ran) -> dict[str, str]:
    """The state of each thing by its name, the target's name left out."""
    return {c["name"].removeprefix("local: "): c["state"] for c in ran.json["checks"]}


def detail(ran: Ran, name: str) -> str:
    """What is said about one thing, with its mend."""
    found = next(c for c in ran.json["checks"] if c["name"].removeprefix("local: ") == name)
    return f"{found['detail']} | {found['mend']}"


def test_all_that_is_needed_is_looked_at(cli: Command, config: Path, server: StandIn) -> None:
    server.state.per_request_metrics = server.state.prompt_tokens_details = True
    ran = cli("check", "--json")
    assert ran.code == 0
    found = states(ran)
    wanted = (
        "configuration",
        "database",
        "server",
        "model",
        "metrics page",
        "probe sky",
        "answer",
        "per-request metrics",
        "cached tokens",
    )
    assert {name: found.get(name) for name in wanted} == dict.fromkeys(wanted, "good")
    assert {"GPU", "alerts"} <= set(found)
    assert set(ran.json["checks"][0]) == {"name", "state", "detail", "mend"}


def test_nothing_is_stored(cli: Command, config: Path, tmp_path: Path) -> None:
    before = sorted(p.name for p in tmp_path.rglob("*"))
    cli("check")
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_on_one_screen_each_thing_has_its_state_and_mend(cli: Command, config: Path) -> None:
    ran = cli("check")
    assert "--enable-per-request-metrics" in ran.out
    assert "will be created" in ran.out
    assert ran.err == ""


def test_what_the_server_does_not_tell_is_unknown_with_the_option_that_helps(
    cli: Command, config: Path
) -> None:
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["per-request metrics"], states(ran)["cached tokens"]) == (
        0,
        "unknown",
        "unknown",
    )
    assert "--enable-per-request-metrics" in detail(ran, "per-request metrics")
    assert "--enable-prompt-tokens-details" in detail(ran, "cached tokens")


def test_a_server_that_is_not_there_is_3(cli: Command, tmp_path: Path) -> None:
    write_config(tmp_path, "http://127.0.0.1:9")
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["server"]) == (3, "bad")


def test_a_wrong_key_is_2(cli: Command, config: Path, server: StandIn) -> None:
    server.state.api_key = "sk-right"
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["server"]) == (2, "bad")
    assert "api_key_env" in detail(ran, "server")


def test_a_key_that_is_not_set_is_2(
    cli: Command, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY_TEST_KEY", raising=False)
    write_config(tmp_path, server.url, "    api_key_env: CANARY_TEST_KEY\n")
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["connection"]) == (2, "bad")
    assert "CANARY_TEST_KEY is not set" in detail(ran, "connection")


def test_a_model_that_is_not_served_is_2_with_those_that_are(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, "    model: llama\n")
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["model"]) == (2, "bad")
    assert "tiny-canary" in detail(ran, "model")


def test_several_models_are_2_with_the_list(cli: Command, config: Path, server: StandIn) -> None:
    server.state.extra_models = [{"id": "other", "root": "models/other", "parent": None}]
    ran = cli("check", "--json")
    assert ran.code == 2
    assert "tiny-canary, other" in detail(ran, "server")


def test_a_probe_that_cannot_fit_is_2_with_file_line_and_mend(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.max_model_len = 16
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["probe sky"]) == (2, "bad")
    assert f"{config.parent / 'probes' / 'sky.yaml'}:6: needs" in detail(ran, "probe sky")


def test_a_metrics_page_that_is_not_there_is_bad_but_canaries_still_run(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.metrics_status = 404
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["metrics page"], states(ran)["answer"]) == (0, "bad", "good")


def test_a_request_that_fails_is_3(cli: Command, config: Path, server: StandIn) -> None:
    server.state.http_status = 500
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["answer"]) == (3, "bad")


def test_a_database_of_a_newer_version_is_2(cli: Command, config: Path, history: History) -> None:
    history.do(lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["database"]) == (2, "bad")


def test_a_database_that_cannot_be_read_is_3(cli: Command, config: Path, tmp_path: Path) -> None:
    (tmp_path / "history.db").mkdir()
    ran = cli("check", "--json")
    assert (ran.code, states(ran)["database"]) == (3, "bad")


def test_a_broken_configuration_is_told_whole_and_2(cli: Command, config: Path) -> None:
    config.write_text(config.read_text() + "colour: red\nsize: 7\n")
    ran = cli("check")
    assert (ran.code, ran.out) == (2, "")
    assert [line.split(":")[1] for line in ran.err.splitlines()] == ["6", "7"]


def test_broken_probes_are_told_whole_and_2(cli: Command, server: StandIn, tmp_path: Path) -> None:
    write_config(tmp_path, server.url, a=PROBE + "colour: red\n", b=PROBE.replace("60s", "60"))
    ran = cli("check")
    assert ran.code == 2
    assert [line.split(": ")[0].rsplit("/", 1)[1] for line in ran.err.splitlines()] == [
        "a.yaml:9",
        "b.yaml:2",
    ]


def test_no_configuration_at_all_says_how_to_get_one(cli: Command) -> None:
    ran = cli("check")
    assert ran.code == 2
    assert "vllm-canary init" in ran.err


def test_an_address_alone_is_enough_and_the_file_here_is_not_read(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("this is: [broken")
    assert cli("check", "--url", server.url).code == 0


@pytest.mark.parametrize("url", ["nonsense", "http://[::1", ""])
def test_an_address_that_is_nonsense_is_2_and_one_sentence(
    url: str, cli: Command, config: Path
) -> None:
    ran = cli("check", "--url", url)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "--url" in ran.err


def test_a_channel_without_its_address_is_bad_and_the_rest_is_still_looked_at(
    cli: Command, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY_TEST_HOOK", raising=False)
    write_config(
        tmp_path,
        server.url,
        rest="channels: [{name: ops, kind: webhook, url_env: CANARY_TEST_HOOK}]\n",
    )
    found = states(cli("check", "--json"))
    assert (found["channel ops"], found["answer"]) == ("bad", "good")


def test_an_error_text_of_the_server_cannot_steer_the_terminal(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.served_name = "evil\x1b[31m\x1b]0;title\x07"
    assert "\x1b" not in cli("check").out
