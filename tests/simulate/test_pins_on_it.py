"""`pin` on a healthy simulated server: its pins must be as firm as a real server's, or no judge
finds anything by them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli import main
from monitor.config import shipped_probes_dir
from monitor.simulate.api.server import SimulatedServer
from monitor.simulate.engine.costs import EngineConfig
from monitor.simulate.identity import Identity
from monitor.simulate.world import World

FIRM_NAT = 0.05
SHIPPED = ("chat-short", "chat-history", "coding", "extraction-json")
OWN = {
    "plain-text": "endpoint: completions\nprompt: What is the capital of Japan?\n",
    "untaught": "messages: [{role: user, content: Something nobody taught}]\n",
    "near-tie": "messages: [{role: user, content: Pick a fruit.}]\n",
    "fixed-length": "messages: [{role: user, content: Name a season.}]\n",
}


@pytest.fixture
def url() -> Iterator[str]:
    """A simulated server on a thread of its own, whose steps take a millisecond: commands have
    event loops of theirs.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    config = EngineConfig(decode_base_s=0.001, host_s=0.0001, num_gpu_blocks=2000)
    server = SimulatedServer(World(config, Identity(max_model_len=1024)))
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(5)
    yield server.url
    asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_the_pins_of_a_healthy_simulated_server_are_firm(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "probes").mkdir()
    for name in SHIPPED:
        shutil.copy(shipped_probes_dir() / f"{name}.yaml", tmp_path / "probes")
    for name, text in OWN.items():
        sampling = "{logprobs: 5, ignore_eos: true}" if name == "fixed-length" else "{logprobs: 5}"
        whole = text + (
            f"class: chat\nevery: 60s\nmax_tokens: 60\nexpect: [{{pinned: true}}]\nsampling: "
            f"{sampling}\n"
        )
        (tmp_path / "probes" / f"{name}.yaml").write_text(whole)
    (tmp_path / "config.yaml").write_text(
        f"database: h.db\nprobes: probes\ntargets: [{{name: sim, url: '{url}', gpus: none}}]\n"
    )
    assert (
        main(
            [
                "pin",
                "--reason",
                "healthy",
                "--repeats",
                "2",
                "--json",
                "-c",
                str(tmp_path / "config.yaml"),
            ]
        )
        == 0
    )
    noise = {
        one["probe"]: one["pin"]["noise_nat"] for one in json.loads(capfd.readouterr().out)["pins"]
    }
    assert set(noise) == {*SHIPPED, *OWN}
    assert {probe: nat for probe, nat in noise.items() if nat is None or nat >= FIRM_NAT} == {}
