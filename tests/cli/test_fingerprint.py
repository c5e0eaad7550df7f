"""`fingerprint`: every field of what is served, where it was read, or why it is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standin import StandIn

from monitor.model import DERIVED_FIELDS, ROOT_FIELDS, SOFT_FIELDS

from .conftest import Command, write_config


def fields(cli: Command, *words: str) -> dict[str, dict[str, Any]]:
    """The fields by name."""
    ran = cli("fingerprint", "--json", *words)
    assert ran.code == 0, ran.err
    return {field["name"]: field for field in ran.json["fingerprints"][0]["fields"]}


def test_every_field_is_there_with_a_value_and_source_or_a_reason(
    cli: Command, config: Path
) -> None:
    found = fields(cli)
    assert list(found) == [*ROOT_FIELDS, *DERIVED_FIELDS, *SOFT_FIELDS]
    for field in found.values():
        assert set(field) == {"name", "role", "value", "source", "reason"}
        assert (
            (field["value"] is None) == (field["source"] is None) == (field["reason"] is not None)
        ), field


def test_what_the_server_tells_is_read(cli: Command, config: Path, server: StandIn) -> None:
    found = fields(cli)
    assert found["vllm_version"]["value"] == "0.32.0"
    assert found["max_model_len"]["value"] == 4096
    assert found["served_models"]["value"] == ["tiny-canary"]
    assert found["template_hash"]["value"] != found["tokenizer_hash"]["value"]
    assert found["system_fingerprint"]["value"] is None


def test_a_changed_template_changes_its_hash_and_the_digest_alone(
    cli: Command, config: Path, server: StandIn
) -> None:
    def read() -> dict[str, Any]:
        one: dict[str, Any] = cli("fingerprint", "--json").json["fingerprints"][0]
        return one

    before = read()
    assert read()["digest"] == before["digest"]
    server.state.template_salt = "You are a canary."
    after = read()
    changed = [
        a["name"]
        for a, b in zip(before["fields"], after["fields"], strict=True)
        if a["value"] != b["value"]
    ]
    assert changed == ["template_hash"]
    assert after["digest"] != before["digest"]


def test_nothing_is_stored(cli: Command, config: Path, tmp_path: Path) -> None:
    cli("fingerprint")
    assert not (tmp_path / "history.db").exists()


def test_it_prints_a_table_with_the_reason_for_what_is_unknown(cli: Command, config: Path) -> None:
    printed = cli("fingerprint").out
    assert "digest" in printed
    assert "unknown: no GPU is watched for this target" in printed


def test_an_address_alone_is_enough(cli: Command, server: StandIn) -> None:
    assert fields(cli, "--url", server.url)["vllm_version"]["value"] == "0.32.0"


def test_a_server_that_is_not_there_is_3_and_a_wrong_key_2(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, "http://127.0.0.1:9")
    assert cli("fingerprint").code == 3
    server.state.api_key = "sk-right"
    write_config(tmp_path, server.url)
    assert cli("fingerprint").code == 2


def test_a_key_that_is_not_set_is_2_and_one_sentence(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, "    api_key_file: missing\n")
    ran = cli("fingerprint")
    assert ran.code == 2
    assert "missing" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_an_error_of_the_server_cannot_steer_the_terminal(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.extra_models = [
        {"id": "evil\x1b]0;title\x07", "root": "models/other", "parent": None}
    ]
    ran = cli("fingerprint")
    assert ran.code == 2
    assert "\x1b" not in ran.err
    assert "\x07" not in ran.err


def test_an_unknown_target_is_2(cli: Command, config: Path) -> None:
    assert cli("fingerprint", "--target", "remote").code == 2
