"""The wheel in an empty environment outside the checkout is the whole product."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import ChildStandIn

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`vllm-canary` from a wheel of this checkout, in a virtual environment of its own."""
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(place), str(ROOT)], check=True, timeout=120
    )
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True, timeout=60)
    wheel = next(place.glob("vllm_canary-*.whl"))
    inside = [
        str(place / "venv" / "bin" / "python"),
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*inside, "install", str(wheel)], check=True, timeout=240)
    return place / "venv" / "bin" / "vllm-canary"


@dataclass(frozen=True, slots=True)
class Installed:
    """The installed command, in an environment without our variables."""

    command: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder)}

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """The output of a command, which must exit with one of `codes`."""
        done = subprocess.run(
            [str(self.command), *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in codes, done.stdout + done.stderr
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts a command that keeps running."""
        return subprocess.Popen(
            [str(self.command), *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.mark.timeout(300)
def test_an_installed_wheel_writes_a_configuration_checks_it_and_monitors_a_server(
    command: Path, child_standin: ChildStandIn, tmp_path: Path
) -> None:
    canary = Installed(command, tmp_path)
    assert "prompt and answer tokens an hour" in canary.run(
        "init", "--url", child_standin.url, "watch"
    )
    config = tmp_path / "watch" / "config.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:9462", "127.0.0.1:0"))
    checks = json.loads(canary.run("check", "-c", str(config), "--json"))["checks"]
    states = {check["name"]: check["state"] for check in checks}
    assert states["local: server"] == "good"
    assert states["local: probe chat-short"] == "good"

    daemon = canary.start("run", "-c", str(config))
    try:
        address = _address_printed_by(daemon)
        samples = _wait_for_samples(canary, config, at_least=3)
        assert urllib.request.urlopen(f"{address}/readyz", timeout=5).status == 200
    finally:
        daemon.send_signal(signal.SIGTERM)
        output, _ = daemon.communicate(timeout=20)
    assert daemon.returncode == 0, output
    assert {sample["outcome"] for sample in samples} == {"ok"}
    assert "chat" in canary.run("summary", "-c", str(config))


def _address_printed_by(daemon: subprocess.Popen[str]) -> str:
    assert daemon.stdout is not None
    for line in daemon.stdout:
        if "health and metrics on " in line:
            return line.split("health and metrics on ")[1].strip()
    raise AssertionError("the daemon did not print the address of its health page")


def _wait_for_samples(canary: Installed, config: Path, at_least: int) -> list[dict[str, object]]:
    for _ in range(60):
        # exit code 3: the database does not exist yet
        printed = canary.run("history", "-c", str(config), "--json", codes=(0, 3))
        found: list[dict[str, object]] = json.loads(printed or "{}").get("samples", [])
        if len(found) >= at_least:
            return found
        time.sleep(0.5)
    raise AssertionError("the daemon stored no samples")
