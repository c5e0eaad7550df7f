"""`demo`: the whole product in two minutes without a GPU: the daemon watches a simulated server
whose GPU heats up.
"""

from __future__ import annotations

import signal
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from monitor.cli.common import CommandError
from monitor.cli.demo_history import History
from monitor.cli.demo_parts import Child, Receiver, Simulator
from monitor.cli.demo_story import Story

THERMAL_SPEED = 30
GPU_STEP_S = 5  # instead of a minute: temperatures change that much faster here
GPU = "h100"
PROBES = {
    "chat": """\
class: chat
every: 3s
messages:
  - role: user
    content: What is the capital of France?
max_tokens: 32
expect:
  - contains: Paris
""",
    "chat-uncapped": """\
class: chat
every: 15s
messages:
  - role: user
    content: What is the capital of France?
max_tokens: 32
max_wait: none
""",
    "decode": """\
class: batch
every: 5s
messages:
  - role: user
    content: Count from one to thirty in words.
max_tokens: 96
max_wait: 2s
sampling:
  ignore_eos: true
  min_tokens: 96
""",
}


def run(args: Namespace) -> int:
    """Starts everything, tells the story, and exits."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # our children must not outlive us
    folder = _folder(None if args.dir is None else Path(args.dir))
    receiver, children = Receiver(), list[Child]()
    try:
        _begin(folder, receiver, children).tell(args.keep)
    except KeyboardInterrupt:
        return 130
    finally:
        for child in reversed(children):
            child.stop()
        receiver.stop()
    return 0


def _folder(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="vllm-canary-demo-"))
    config = wanted / "config.yaml"
    if config.exists():
        raise CommandError(f"{config} already exists; choose another directory, or remove it first")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{wanted} cannot be created: {error.strerror}") from None
    return wanted.resolve()


def _begin(folder: Path, receiver: Receiver, children: list[Child]) -> Story:
    """Starts the simulated server, then the daemon that watches it."""
    options = ["--gpu", GPU, "--thermal-speed", str(THERMAL_SPEED), "--seed", "7"]
    server = Child("server", ["simulate", *options], folder)
    children.append(server)
    gpus_url = server.printed_after("as a DCGM exporter shows them: ")
    url = server.printed_after(f"{GPU} on ").split(";")[0]
    simulator = Simulator(url)
    simulator.set(traffic__rate_per_s=0.0, max_num_seqs=4, batch__output_tokens=150)
    _write(folder, url, gpus_url, receiver.url)
    daemon = Child("daemon", ["run", "-c", str(folder / "config.yaml")], folder)
    children.append(daemon)
    _introduce(folder, url, gpus_url, daemon.printed_after("health and metrics on "))
    return Story(
        folder=folder,
        simulator=simulator,
        history=History(str(folder / "history.db")),
        receiver=receiver,
        children=children,
        began_s=time.monotonic(),
    )


def _write(folder: Path, url: str, gpus_url: str, webhook_url: str) -> None:
    """Writes the daemon's configuration and probes."""
    (folder / "probes").mkdir(exist_ok=True)
    for name, text in PROBES.items():
        (folder / "probes" / f"{name}.yaml").write_text(text)
    (folder / "config.yaml").write_text(f"""\
database: history.db
listen: 127.0.0.1:0
probes: probes
targets:
  - name: demo
    url: {url}
    gpus: {{dcgm: {gpus_url}}}
    token_budget_per_hour: 1000000
channels:
  - name: demo
    kind: webhook
    url: {webhook_url}
detector:
  card_step: {GPU_STEP_S}s
  grace: 2s
""")


def _introduce(folder: Path, url: str, gpus_url: str, pages: str) -> None:
    text = f"""\
A simulated vLLM server with one {GPU} listens on {url}, its DCGM exporter on {gpus_url};
the daemon watches them and serves its pages on {pages}; the history is {folder / "history.db"}.
Time scale: requests and tokens are in real time, temperatures change {THERMAL_SPEED} times faster,
and so the GPU is judged every {GPU_STEP_S} s instead of every minute.
Every figure below is one that the daemon has measured over HTTP and stored."""
    print(text, flush=True)
