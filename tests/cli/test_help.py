"""The command line as a whole."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from histories import History
from processes import clean_environment

from monitor.cli import COMMANDS, main

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
    assert loaded([["--help"], ["--version"]], HEAVY) == ([0, 0], [])


def test_the_help_of_no_command_loads_anything_heavy() -> None:
    heavy = tuple(name for name in HEAVY if name != "asyncio")
    assert loaded([[name, "--help"] for name in COMMANDS], heavy) == ([0] * len(COMMANDS), [])


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


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_reader_that_has_seen_enough_is_no_error(
    form: str, buffered: bool, history: History
) -> None:
    history.sample()
    command = f"{sys.executable} -m monitor.cli history --db {history.path} --format {form}"
    shell = ["bash", "-c", f"{{ {command}; echo code $? >&2; }} | true"]
    environment = clean_environment(PYTHONUNBUFFERED="" if buffered else "1")
    done = subprocess.run(
        shell, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.stderr.strip() == "code 0"


def test_interrupting_a_command_ends_it_with_130_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("monitor.cli.history.run", interrupted)
    assert main(["history"]) == 130
    assert capsys.readouterr().err == ""
