"""`probe`: a round now, stored like any other, told by its exit code."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from histories import History
from processes import clean_environment
from standin import StandIn

from monitor.cli.probe import exit_code
from monitor.model import SAMPLE_FIELDS, Outcome, Verdict
from monitor.store import record

from .conftest import PROBE, Command, write_config

REGRESSIONS = ["queue_cap", "hung", "truncated", "stream_error", "malformed", "empty"]
UNMEASURED = ["refused", "timeout", "http_error", "rejected", "asleep", "cancelled"]
CAPPED = PROBE + "max_wait: 100ms\n"


def codes(*outcomes: str, verdict: Verdict = Verdict.UNKNOWN) -> int:
    """The exit code of a round with these outcomes."""
    from histories import a_sample

    return exit_code([a_sample(outcome=Outcome(o), verdict=verdict) for o in outcomes])


def test_all_good_is_0() -> None:
    assert codes("ok", "ok") == 0


@pytest.mark.parametrize("outcome", REGRESSIONS)
def test_a_regression_is_1_and_beats_3(outcome: str) -> None:
    assert codes("ok", outcome) == 1
    assert codes("refused", outcome) == 1


@pytest.mark.parametrize("outcome", UNMEASURED)
def test_what_could_not_be_measured_is_3(outcome: str) -> None:
    assert codes("ok", outcome) == 3


def test_every_outcome_has_one_of_the_codes() -> None:
    assert {o.value for o in Outcome} == {"ok", *REGRESSIONS, *UNMEASURED}


def test_a_failed_verdict_is_1() -> None:
    assert codes("ok", verdict=Verdict.FAIL) == 1


def test_nothing_measured_is_not_good() -> None:
    assert codes() == 3


def test_a_good_round_prints_and_stores_what_was_measured(cli: Command, config: Path) -> None:
    ran = cli("probe", "--json")
    assert (ran.code, ran.err) == (0, "")
    [sample] = ran.json["samples"]
    assert list(sample) == [*SAMPLE_FIELDS, "detail"]
    assert (sample["probe"], sample["outcome"], sample["verdict"], sample["output"]) == (
        "sky",
        "ok",
        "pass",
        "Yes",
    )
    stored = cli("show", str(sample["id"]), "--json").json["samples"][0]
    assert {name: stored[name] for name in sample} == sample


def test_an_unexpected_answer_is_1_and_says_why(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.answers = {"Is the sky blue? Answer yes or no.": "No"}
    ran = cli("probe")
    assert ran.code == 1
    assert "expected 'Yes' in the answer, got 'No'" in ran.out


def test_a_wait_beyond_the_cap_is_1(cli: Command, server: StandIn, tmp_path: Path) -> None:
    write_config(tmp_path, server.url, sky=CAPPED)
    assert cli("probe").code == 0  # the first answer is cold and has no cap
    server.state.queue_s = 5.0
    ran = cli("probe", "--json")
    assert (ran.code, ran.json["samples"][0]["outcome"]) == (1, "queue_cap")


def test_a_server_that_is_not_there_is_3_and_kept_in_the_history(
    cli: Command, tmp_path: Path
) -> None:
    write_config(tmp_path, "http://127.0.0.1:9")
    assert cli("probe").code == 3
    assert [s["outcome"] for s in cli("history", "--json").json["samples"]] == ["refused"]


def test_a_wrong_key_is_2_with_the_mend(cli: Command, config: Path, server: StandIn) -> None:
    server.state.api_key = "sk-right"
    ran = cli("probe")
    assert ran.code == 2
    assert "api_key_env" in ran.err


def test_a_key_that_is_not_set_is_2_and_names_the_variable(
    cli: Command, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CANARY_TEST_KEY", raising=False)
    server.state.api_key = "sk-right"
    write_config(tmp_path, server.url, "    api_key_env: CANARY_TEST_KEY\n")
    ran = cli("probe")
    assert ran.code == 2
    assert "CANARY_TEST_KEY is not set" in ran.err


def test_a_model_that_is_not_served_is_2(cli: Command, server: StandIn, tmp_path: Path) -> None:
    write_config(tmp_path, server.url, "    model: llama\n")
    ran = cli("probe")
    assert ran.code == 2
    assert "llama" in ran.out + ran.err


def test_several_models_are_2_with_the_list(cli: Command, config: Path, server: StandIn) -> None:
    server.state.extra_models = [{"id": "other", "root": "models/other", "parent": None}]
    ran = cli("probe")
    assert ran.code == 2
    assert "tiny-canary, other" in ran.err


def test_a_probe_that_cannot_fit_is_2_with_file_and_line_and_nothing_is_sent(
    cli: Command, config: Path, server: StandIn
) -> None:
    server.state.max_model_len = 16
    ran = cli("probe")
    assert ran.code == 2
    assert f"{config.parent / 'probes' / 'sky.yaml'}:6: needs" in ran.err
    assert server.state.requests == []


def test_a_server_that_is_full_is_3(cli: Command, config: Path, server: StandIn) -> None:
    server.state.http_status = 503
    ran = cli("probe", "--json")
    assert (ran.code, ran.json["samples"][0]["outcome"]) == (3, "rejected")


def test_only_the_named_probes_run(cli: Command, server: StandIn, tmp_path: Path) -> None:
    write_config(tmp_path, server.url, a=PROBE, b=PROBE)
    assert [s["probe"] for s in cli("probe", "b", "--json").json["samples"]] == ["b"]


def test_an_unknown_probe_or_target_is_2_with_those_that_are_there(
    cli: Command, config: Path, server: StandIn
) -> None:
    probe, target = cli("probe", "rain"), cli("probe", "--target", "remote")
    assert (probe.code, target.code) == (2, 2)
    assert "known probes: sky" in probe.err
    assert "there is no target 'remote'; configured targets: local" in target.err
    assert server.state.requests == []


def test_a_spent_budget_is_said_on_standard_error_and_json_stays_one_object(
    cli: Command, server: StandIn, tmp_path: Path
) -> None:
    write_config(tmp_path, server.url, "    token_budget_per_hour: 5\n")
    ran = cli("probe", "--json")
    assert (ran.code, ran.json) == (3, {"samples": []})
    assert "sky was skipped: the budget" in ran.err


def test_an_address_alone_is_enough_and_the_history_is_in_the_state_folder(
    cli: Command, server: StandIn, tmp_path: Path, few_probes: None
) -> None:
    (tmp_path / "config.yaml").write_text("this is: [broken")
    assert cli("probe", "--url", server.url, "chat-short").code == 0
    (tmp_path / "config.yaml").unlink()
    assert len(cli("history", "--json").json["samples"]) == 1
    assert (tmp_path / "state" / "vllm-canary" / "history.db").exists()


def test_another_process_that_measures_is_waited_for_and_then_3(
    cli: Command, config: Path, server: StandIn, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.cli.probe.LEASE_WAIT_S", 0.2)
    now = datetime.now(UTC)
    history.do(
        lambda c: record.take_lease(c, "local", "elsewhere:1", now, now + timedelta(seconds=30))
    )
    ran = cli("probe")
    assert ran.code == 3
    assert "another process has been measuring local" in ran.err
    assert server.state.requests == []


def test_a_lease_that_ends_while_we_wait_is_taken(
    cli: Command, config: Path, history: History
) -> None:
    now = datetime.now(UTC)
    history.do(
        lambda c: record.take_lease(c, "local", "elsewhere:1", now, now + timedelta(seconds=1))
    )
    assert cli("probe").code == 0
    assert history.rows("SELECT * FROM lease") == []


@pytest.mark.parametrize(
    "made",
    [lambda p: p.mkdir(), lambda p: p.write_text("no database" * 100)],
    ids=["folder", "text"],
)
def test_a_database_that_cannot_be_written_is_3_and_nothing_is_sent(
    made: object, cli: Command, config: Path, server: StandIn
) -> None:
    made(config.parent / "history.db")  # type: ignore[operator]
    ran = cli("probe")
    assert ran.code == 3
    assert len(ran.err.splitlines()) == 1
    assert server.state.requests == []


def test_a_database_of_a_newer_version_is_2_and_nothing_is_sent(
    cli: Command, config: Path, server: StandIn, history: History
) -> None:
    history.do(lambda c: c.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'"))
    ran = cli("probe")
    assert ran.code == 2
    assert "upgrade vllm-canary" in ran.err
    assert server.state.requests == []


def test_a_database_that_stays_locked_is_3(
    cli: Command, config: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.store.database.BUSY_TIMEOUT_S", 0.1)
    with sqlite3.connect(history.path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        ran = cli("probe")
        other.execute("ROLLBACK")
    other.close()
    assert ran.code == 3
    assert "database is locked" in ran.err


@pytest.mark.parametrize("place", ["env", "file"])
def test_a_key_is_in_no_output_and_in_no_byte_of_the_database(
    place: str, cli: Command, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-d0-n0t-sh0w"
    server.state.api_key = key
    monkeypatch.setenv("CANARY_TEST_KEY", key)
    (tmp_path / "key").write_text(key + "\n")
    write_config(
        tmp_path,
        server.url,
        f"    api_key_{place}: {'CANARY_TEST_KEY' if place == 'env' else 'key'}\n",
    )
    printed = "".join(
        ran.out + ran.err
        for ran in (cli("check"), cli("probe"), cli("fingerprint"), cli("probe", "--json"))
    )
    server.state.api_key = "another"
    printed += "".join(
        ran.out + ran.err for ran in (cli("check"), cli("probe"), cli("fingerprint"))
    )
    assert '"outcome": "ok"' in printed
    assert key not in printed
    assert [
        p.name for p in tmp_path.rglob("*") if p.is_file() and key.encode() in p.read_bytes()
    ] == ["key"]


@pytest.mark.parametrize("key", ["two\nlines-s3cret", "schlüssel-s3cret"])
def test_a_key_that_no_header_can_carry_is_2_and_not_shown(
    key: str, cli: Command, server: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(key)
    server.state.api_key = "sk-right"
    write_config(tmp_path, server.url, "    api_key_file: key\n")
    for command in ("check", "probe", "fingerprint"):
        ran = cli(command)
        assert ran.code == 2
        assert "s3cret" not in ran.out + ran.err


def test_an_answer_that_would_steer_the_terminal_is_stored_as_it_is_and_shown_harmless(
    cli: Command, config: Path, server: StandIn
) -> None:
    answer = "Yes\x1b[31m red \x1b]8;;http://evil\x07link [bold]b[/bold] :warning:"
    server.state.answers = {"Is the sky blue? Answer yes or no.": answer}
    config.parent.joinpath("probes", "sky.yaml").write_text(
        PROBE.replace("max_tokens: 8", "max_tokens: 30")
    )
    [sample] = cli("probe", "--json").json["samples"]
    assert sample["output"] == answer
    shown = cli("show", str(sample["id"])).out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]b[/bold] :warning:" in shown


def test_in_a_pipe_there_is_no_progress_and_no_colour(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "monitor.cli", "probe", "-c", str(config)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 2
