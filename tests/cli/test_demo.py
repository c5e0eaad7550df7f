"""`demo` told from its begin to its end: each chapter is there, in order, with figures that the
daemon has stored (two minutes).
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import clean_environment

from monitor.cli import main


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "monitor.cli", *arguments]


@dataclass(frozen=True)
class Told:
    """One run of the demo."""

    folder: Path
    code: int
    text: str
    took_s: float

    def number(self, pattern: str) -> float:
        """The figure in the first group of a pattern."""
        found = re.search(pattern, self.text)
        assert found is not None, f"{pattern} is not in:\n{self.text}"
        return float(found[1].replace(",", ""))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    began_s = time.monotonic()
    done = subprocess.run(
        command("demo", "--dir", str(folder)),
        capture_output=True,
        text=True,
        timeout=170,
        env=clean_environment(),
        check=False,
    )
    return Told(folder, done.returncode, done.stdout + done.stderr, time.monotonic() - began_s)


@pytest.mark.demo
@pytest.mark.timeout(200)
class TestDemo:
    def test_it_ends_by_itself_within_150_seconds_with_exit_code_0(self, demo: Told) -> None:
        assert demo.code == 0, demo.text
        assert demo.took_s < 150
        assert "Traceback" not in demo.text

    def test_its_chapters_come_in_order_and_the_time_scale_is_said(self, demo: Told) -> None:
        marks = [
            "temperatures change 30 times faster",
            "1. Warm reference",
            "2. A batch job arrives",
            "queue_cap",
            "3. The GPU heats up",
            "hot: GPU",
        ]
        marks += ["decode fell to", "thermal, warning, cause heat", "cooled: GPU"]
        marks += [
            "4. The configuration changes",
            "max_model_len 8192 → 4096",
            "webhook received: opened",
        ]
        places = [demo.text.find(mark) for mark in marks]
        assert -1 not in places, demo.text
        assert places == sorted(places)

    def test_the_figures_tell_the_story(self, demo: Told) -> None:
        reference_ms = demo.number(r"first token after ([\d.,]+) ms")
        assert reference_ms < 500
        assert demo.number(r"the true wait, from the canary without a cap: ([\d.,]+) ms") > max(
            2000, 10 * reference_ms
        )
        before, hot = (
            demo.number(r"before: decode ([\d.,]+) tokens/s"),
            demo.number(r"decode fell to ([\d.,]+) tokens/s"),
        )
        assert hot < 0.95 * before
        assert demo.number(r"hot: GPU (\d+) °C") >= 84
        assert demo.number(r"hot: GPU \d+ °C, ([\d,]+) MHz") < 1700
        assert demo.number(r"thermally throttled for ([\d.,]+) s") > 1
        assert demo.number(r"cooled: GPU \d+ °C, ([\d,]+) MHz") > 1900

    def test_the_figures_are_those_of_the_history_that_it_leaves(self, demo: Told) -> None:
        with sqlite3.connect(demo.folder / "history.db") as connection:
            outcomes = dict(
                connection.execute(
                    "SELECT outcome, count(*) FROM sample GROUP BY outcome"
                ).fetchall()
            )
            assert outcomes["queue_cap"] >= 2
            longest = connection.execute(
                "SELECT max(s.ttft_ms) FROM sample s JOIN probe_revision r ON r.id = "
                "s.revision_id JOIN probe p ON p.id = r.probe_id "
                "WHERE p.name = 'chat-uncapped'"
            ).fetchone()[0]
        assert (
            demo.number(r"the true wait, from the canary without a cap: ([\d.,]+) ms")
            <= longest + 1
        )

    def test_the_commands_that_it_prints_work(self, demo: Told) -> None:
        printed = [
            line.split() for line in demo.text.splitlines() if line.startswith("  vllm-canary ")
        ]
        assert [words[1] for words in printed] == ["status", "history", "summary", "incidents"]
        for words in printed:
            done = subprocess.run(
                command(*words[1:], "--json"),
                capture_output=True,
                text=True,
                timeout=60,
                env=clean_environment(),
                check=False,
            )
            assert done.returncode in ({0, 1, 3} if words[1] == "status" else {0}), done.stderr
            assert json.loads(done.stdout)

    def test_nothing_of_it_runs_on(self, demo: Told) -> None:
        left = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue  # it has ended meanwhile
            if str(demo.folder).encode() in line:
                left.append(line)
        assert left == []


def test_a_folder_that_holds_a_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("")
    assert main(["demo", "--dir", str(tmp_path)]) == 2
    config = tmp_path / "config.yaml"
    told = f"{config} already exists; choose another directory, or remove it first\n"
    assert capsys.readouterr().err == told
