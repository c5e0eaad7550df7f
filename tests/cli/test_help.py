"""The command line as a whole."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path

import pytest
from histories import History, a_sample
from processes import clean_environment

from monitor.cli import entry_of, main
from monitor.cli.parsers import COMMANDS, whole_parser
from monitor.cli.parsers.samples import OUTCOMES
from monitor.model import Outcome

HEAVY = (
    "sqlalchemy",
    "alembic",
    "httpx",
    "pydantic",
    "rich",
    "uvicorn",
    "starlette",
    "apscheduler",
    "pynvml",
    "yaml",
    "asyncio",
)
WHAT_IS_LOADED = """
import contextlib, io, json, sys
from monitor.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    codes = [main(words) for words in json.loads(sys.argv[1])]
print(json.dumps([codes, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


def loaded(words: list[list[str]], names: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Exit codes of some commands run in a fresh process, and which of the modules they loaded."""
    command = [sys.executable, "-c", WHAT_IS_LOADED, json.dumps(words), json.dumps(names)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=clean_environment()
    )
    codes, found = json.loads(done.stdout)
    return codes, found


def test_the_overview_loads_nothing_heavy() -> None:
    assert loaded([["--help"], ["--version"]], (*HEAVY, "pathlib", "dataclasses")) == ([0, 0], [])


def test_the_help_of_no_command_loads_anything_heavy() -> None:
    commands = [[name, "--help"] for name in COMMANDS]
    assert loaded(commands, HEAVY) == ([0] * len(COMMANDS), [])


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["history", "--colour"],
        ["show"],
        ["show", "seven"],
        ["history", "--outcome", "fine"],
    ],
)
def test_what_is_no_command_is_a_sentence_and_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert (printed.out + printed.err).strip()
    assert "Traceback" not in printed.err


def test_each_command_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: vllm-canary {name}")


def test_the_module_can_be_run_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "monitor.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("vllm-canary ")


def broken_pipe(words: str, reader: str, buffered: bool) -> str:
    """What a command prints on standard error, with its exit code, when its reader leaves early."""
    command = f"{sys.executable} -m monitor.cli {words}"
    shell = ["bash", "-c", f"{{ {command}; echo code $? >&2; }} | {reader}"]
    environment = clean_environment(PYTHONUNBUFFERED="" if buffered else "1")
    done = subprocess.run(
        shell, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    return done.stderr.strip()


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "words", ["--help", "--version", "history --help", "pins list --help", "completion bash"]
)
def test_help_is_silent_when_its_reader_has_left(words: str, buffered: bool) -> None:
    assert broken_pipe(words, "true", buffered) == "code 0"


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("reader", ["true", "head -c1 >/dev/null"])
@pytest.mark.parametrize(
    "words",
    [
        "history --limit 0",
        "history --limit 0 --format csv",
        "history --limit 0 --json",
        "summary --since 100d",
        "show 1 --json",
        "incidents",
    ],
)
def test_a_command_is_silent_when_its_reader_has_seen_enough(
    words: str, reader: str, buffered: bool, history: History
) -> None:
    history.samples([a_sample()] * 300)  # more than a pipe holds
    assert broken_pipe(f"{words} --db {history.path}", reader, buffered) == "code 0"


def test_an_error_is_silent_when_its_reader_has_left() -> None:
    command = f"{sys.executable} -m monitor.cli frobnicate"
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>&1 | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def into(words: str, redirection: str, **environment: str) -> tuple[int, str]:
    """The exit code and standard error of a command whose output goes elsewhere."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m monitor.cli {words} {redirection}"],
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**environment),
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr.strip()


def test_a_full_disk_behind_the_output_is_one_sentence() -> None:
    expected = 3, "the output cannot be written: No space left on device"
    assert into("--help", ">/dev/full") == expected


def test_a_closed_output_and_a_narrow_encoding_are_no_errors() -> None:
    assert into("--help", ">&-") == (0, "")
    assert into("check --help", ">/dev/null", PYTHONIOENCODING="ascii") == (0, "")


def leaves(parser: ArgumentParser) -> list[ArgumentParser]:
    """A parser, and those of its actions."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            found += [leaf for sub in action.choices.values() for leaf in leaves(sub)]
    return found


def test_every_command_and_action_names_a_function_that_exists() -> None:
    places = {leaf.get_default("entry") for leaf in leaves(whole_parser())} - {None}
    assert len(places) > len(COMMANDS)
    assert all(callable(entry_of(place)) for place in places)


def test_the_choices_of_outcome_are_all_outcomes() -> None:
    assert [outcome.value for outcome in Outcome] == list(OUTCOMES)


def test_reading_commands_load_no_more_than_they_need(history: History) -> None:
    number = str(history.sample())
    words = [["history"], ["show", number], ["summary"], ["incidents"]]
    unneeded = ("pydantic", "httpx", "alembic", "yaml", "uvicorn", "apscheduler")
    database = ["--db", str(history.path)]
    assert loaded([[*command, *database] for command in words], unneeded) == ([0] * 4, [])


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_completion_script_knows_every_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in script] == []


def test_bash_completes_commands_actions_and_options(tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    with script.open("w") as out:
        subprocess.run(
            [sys.executable, "-m", "monitor.cli", "completion", "bash"],
            stdout=out,
            check=True,
            env=clean_environment(),
        )

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in ("vllm-canary", *words))
        ask = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
            'f=$(complete -p vllm-canary); f=${f#*-F }; ${f%% *}; echo "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("inc") == ["incidents"]
    assert completed("pins", "ex") == ["export", "expire"]
    assert completed("history", "--form") == ["--format"]


def test_interrupting_a_command_ends_it_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("monitor.cli.history.run", interrupted)
    assert main(["history"]) == 130
    assert capsys.readouterr().err == ""
