"""Commands run in this process, away from any configuration of the person who runs the tests."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from standin import StandIn

from monitor.cli import main

PROBE = """\
class: chat
every: 60s
messages:
  - role: user
    content: Is the sky blue? Answer yes or no.
max_tokens: 8
expect:
  - contains: "Yes"
"""


@dataclass(frozen=True)
class Ran:
    """What a command printed and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on standard output."""
        return json.loads(self.out)


Command = Callable[..., Ran]


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs `vllm-canary WORDS`; no word of it may be a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("VLLM_CANARY_CONFIG", raising=False)
    monkeypatch.setattr("monitor.config.places.CONFIG_PLACES", (Path("config.yaml"),))

    def run(*words: str) -> Ran:
        capfd.readouterr()
        code = main(list(words))
        ran = Ran(code, *capfd.readouterr())
        assert "Traceback" not in ran.out + ran.err
        return ran

    return run


@pytest.fixture
def server() -> Iterator[StandIn]:
    """A quick stand-in on a thread of its own: commands have event loops of theirs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    made = StandIn(ttft_s=0.002, itl_s=0.0002)
    asyncio.run_coroutine_threadsafe(made.start(), loop).result(5)
    yield made
    asyncio.run_coroutine_threadsafe(made.stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


@pytest.fixture
def config(tmp_path: Path, server: StandIn) -> Path:
    """A configuration with one short probe against the stand-in."""
    return write_config(tmp_path, server.url)


@pytest.fixture
def few_probes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the shipped probes alone, where all of them would only take longer."""
    from monitor.config import places

    shipped, folder = places.data_dir, tmp_path_factory.mktemp("few") / "probes"
    folder.mkdir()
    for name in ("chat-short", "decode-fixed"):
        shutil.copy(shipped("probes") / f"{name}.yaml", folder)
    monkeypatch.setattr(
        places, "data_dir", lambda name: folder if name == "probes" else shipped(name)
    )


def write_config(folder: Path, url: str, target: str = "", rest: str = "", **probes: str) -> Path:
    """config.yaml and probes/; `target` and `rest` are more lines of it."""
    path = folder / "config.yaml"
    path.write_text(
        f"targets:\n  - name: local\n    url: {url}\n    gpus: none\n{target}listen: "
        f"127.0.0.1:0\n{rest}"
    )
    (folder / "probes").mkdir(exist_ok=True)
    for name, text in (probes or {"sky": PROBE}).items():
        (folder / "probes" / f"{name}.yaml").write_text(text)
    return path
