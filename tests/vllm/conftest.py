"""Fixtures for the tests against a real vLLM server. A start takes 25 to 50 s, so all tests share
one bed, in order.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from vllm_bed import (
    MODEL,
    Bed,
    Canary,
    VllmServer,
    WebhookReceiver,
    free_port,
    say,
    vllm_environment,
)

HERE = Path(__file__).parent
#: The second module needs what the first one leaves: a monitored server that has died.
ORDER = ("test_main_job", "test_change_to_alert", "test_quality_gate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the modules of this folder into the order in which they share the server; other tests
    keep their places.
    """
    ours = [index for index, item in enumerate(items) if item.path.parent == HERE]
    place = {name: number for number, name in enumerate(ORDER)}
    in_order = sorted(
        (items[index] for index in ours), key=lambda item: place.get(item.path.stem, len(ORDER))
    )
    for index, item in zip(ours, in_order, strict=True):
        items[index] = item


@pytest.fixture(scope="session")
def venv() -> Path:
    """The environment with vLLM, installed if missing; a failure and not a skip without it."""
    try:
        return vllm_environment()
    except subprocess.CalledProcessError as error:
        pytest.fail(f"vLLM cannot be installed:\n{error.stderr[-2000:]}", pytrace=False)


@pytest.fixture(scope="session")
def bed(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """A copy of the model (a test replaces its weights), a running receiver, and a daemon that is
    not started yet.
    """
    work = tmp_path_factory.mktemp("bed")
    model_dir = work / "tiny-canary"
    shutil.copytree(MODEL, model_dir)
    receiver, port = WebhookReceiver(), free_port()
    receiver.up()
    home = work / "canary"
    home.mkdir()
    canary = Canary(home, f"http://127.0.0.1:{port}", model_dir, receiver.url)
    bed = Bed(venv, work, model_dir, receiver, canary, port)
    try:
        yield bed
    finally:
        canary.kill()
        bed.stop_server()
        receiver.down()
        for name, figure in bed.figures.items():
            say(f"measured: {name}: {figure}")


@pytest.fixture
def server(bed: Bed) -> VllmServer:
    """The running server, started by the first test that needs it."""
    return bed.server if bed.server is not None and bed.server.running else bed.start_server()


@pytest.fixture(scope="session")
def sure() -> Sequence[tuple[str, str]]:
    """The twelve prompts for which the tiny model has one answer each."""
    canaries = json.loads((MODEL / "canaries.json").read_text(encoding="utf-8"))
    return [
        (entry["prompt"], entry["expected"][0]) for entry in canaries if len(entry["expected"]) == 1
    ]
