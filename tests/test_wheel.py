"""The wheel, in an empty environment and outside the checkout, is the whole product."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`vllm-canary` from a wheel of this checkout in a virtual environment that holds nothing
    else.
    """
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a stand-in in a process of its own."""
    port_file = tmp_path / "port"
    process = subprocess.Popen(
        [
            sys.executable,
            str(ROOT / "tests" / "standin.py"),
            "--port",
            "0",
            "--port-file",
            str(port_file),
        ]
    )
    try:
        for _ in range(200):
            if port_file.exists() and port_file.read_text().strip():
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.timeout(300)
def test_an_installed_wheel_writes_a_configuration_checks_it_watches_and_tells(
    command: Path, server: str, tmp_path: Path
) -> None:
    def run(*words: str, may_be_early: bool = False) -> str:
        done = subprocess.run(
            [str(command), *words],
            cwd=tmp_path,
            env=clean,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if may_be_early and done.returncode == 3:  # the database is not there yet
            return '{"samples": []}'
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    assert "prompt and answer tokens an hour" in run("init", "--url", server, "watch")
    config = tmp_path / "watch" / "config.yaml"
    config.write_text(config.read_text().replace("127.0.0.1:9462", "127.0.0.1:0"))
    states = {
        check["name"]: check["state"]
        for check in json.loads(run("check", "-c", str(config), "--json"))["checks"]
    }
    assert states["local: server"] == "good"
    assert states["local: probe chat-short"] == "good"

    daemon = subprocess.Popen(
        [str(command), "run", "-c", str(config)],
        cwd=tmp_path,
        env=clean,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = _address_printed_by(daemon)
        samples = _samples_when_there_are(
            lambda: run("history", "-c", str(config), "--json", may_be_early=True), at_least=3
        )
        assert urllib.request.urlopen(f"{address}/readyz", timeout=5).status == 200
    finally:
        daemon.send_signal(signal.SIGTERM)
        output, _ = daemon.communicate(timeout=20)
    assert daemon.returncode == 0, output
    assert {sample["outcome"] for sample in samples} == {"ok"}
    assert "chat" in run("summary", "-c", str(config))


def _address_printed_by(daemon: subprocess.Popen[str]) -> str:
    assert daemon.stdout is not None
    for line in daemon.stdout:
        if "health and metrics on " in line:
            return line.split("health and metrics on ")[1].strip()
    raise AssertionError("the daemon did not say where it serves its health")


def _samples_when_there_are(history: Callable[[], str], at_least: int) -> list[dict[str, object]]:
    for _ in range(60):
        found: list[dict[str, object]] = json.loads(history())["samples"]
        if len(found) >= at_least:
            return found
        time.sleep(0.5)
    raise AssertionError("the daemon stored no samples")
