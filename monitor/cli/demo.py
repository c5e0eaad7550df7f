"""`demo`: the whole product in two minutes, without a GPU: a simulated server with a GPU that
heats up, and the daemon against it.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from monitor.cli.common import CommandError
from monitor.cli.demo_parts import Child, GpuLook, History, Receiver, Simulator, middle, now, told
from monitor.errors import UNMEASURED
from monitor.model import Outcome, Phase, Sample

T = TypeVar("T")
THERMAL_SPEED = 30
ALL_S = 140.0  # the demo gives up then; it ends within 150 s
GPU_STEP_S = 5  # instead of a minute: heat is that much faster here
GPU = "h100"
COOLING_LOST = 8.0  # thermal resistance of heat sink and air against healthy
PROBES = {
    "chat": "class: chat\nevery: 3s\nmessages:\n  - role: user\n    content: What is the "
    "capital of France?\nmax_tokens: 32\n"
    "expect:\n  - contains: Paris\n",
    "chat-uncapped": "class: chat\nevery: 15s\nmessages:\n  - role: user\n    content: What is "
    "the capital of France?\nmax_tokens: 32\n"
    "max_wait: none\n",
    "decode": "class: batch\nevery: 5s\nmessages:\n  - role: user\n    content: Count from one "
    "to thirty in words.\nmax_tokens: 96\n"
    "max_wait: 2s\nsampling:\n  ignore_eos: true\n  min_tokens: 96\n",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave server and daemon running at the end, until Ctrl-C",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="keep configuration, history and logs there (default: a new folder)",
    )


def run(args: argparse.Namespace) -> int:
    """Start everything, tell the story, and end by itself."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # our children must not outlive us
    folder = _folder(args.dir)
    receiver, children = Receiver(), list[Child]()
    try:
        story = _begin(folder, receiver, children)
        for chapter in (story.reference, story.batch_job, story.heat, story.configuration):
            chapter()
        story.ending(args.keep)
        while args.keep:
            story.check()
            time.sleep(0.5)
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
    if (wanted / "config.yaml").exists():
        raise CommandError(
            f"{wanted / 'config.yaml'} is there already; choose another folder, or remove it first"
        )
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"{wanted} cannot be made: {error.strerror}") from None
    return wanted.resolve()


def _begin(folder: Path, receiver: Receiver, children: list[Child]) -> Story:
    """The simulated server, then the daemon that watches it."""
    options = ["--gpu", GPU, "--thermal-speed", str(THERMAL_SPEED), "--seed", "7"]
    server = Child("server", ["simulate", *options], folder)
    children.append(server)
    gpus_url = server.said_after("as a DCGM exporter shows them: ")
    url = server.said_after(f"{GPU} on ").split(";")[0]
    simulator = Simulator(url)
    simulator.set(traffic__rate_per_s=0.0, max_num_seqs=4, batch__output_tokens=150)
    (folder / "probes").mkdir(exist_ok=True)
    for name, text in PROBES.items():
        (folder / "probes" / f"{name}.yaml").write_text(text)
    (folder / "config.yaml").write_text(
        "database: history.db\nlisten: 127.0.0.1:0\nprobes: probes\n"
        f"targets:\n  - name: demo\n    url: {url}\n    gpus: {{dcgm: {gpus_url}}}\n    "
        f"token_budget_per_hour: 1000000\n"
        f"channels:\n  - name: demo\n    kind: webhook\n    url: {receiver.url}\n"
        f"detector:\n  card_step: {GPU_STEP_S}s\n  grace: 2s\n"
    )
    daemon = Child("daemon", ["run", "-c", str(folder / "config.yaml")], folder)
    children.append(daemon)
    pages = daemon.said_after("health and metrics on ")
    print(
        f"A simulated vLLM server with one {GPU} listens on {url}, its DCGM exporter on {gpus_url};"
    )
    print(
        f"the daemon watches them, its pages are on {pages}; the history is "
        f"{folder / 'history.db'}."
    )
    print(
        f"Time scale: requests and tokens move in real time, heat moves {THERMAL_SPEED} "
        "times faster,"
    )
    print(f"and so the GPU is judged every {GPU_STEP_S} s instead of every minute.")
    print(
        "Every figure below is one that the daemon has measured over HTTP and stored.", flush=True
    )
    story = Story(folder, simulator, History(str(folder / "history.db")), receiver, children)
    story.wait(story.history.is_there, "the daemon's history")
    return story


@dataclass
class Story:
    """The chapters, in their order; each tells what the daemon has stored."""

    folder: Path
    simulator: Simulator
    history: History
    receiver: Receiver
    children: list[Child]
    began_s: float = field(default_factory=time.monotonic)

    def reference(self) -> None:
        """1: how it is when all is well."""
        self._chapter(
            "1. Warm reference", "nobody else is on the server; the daemon learns what is normal"
        )
        since = now()
        warm = self.wait(
            lambda: self._at_least(5, "chat", since, Phase.WARM), "five warm chat canaries"
        )
        decode = self.wait(lambda: self._at_least(2, "decode", since, None), "two decode canaries")
        gpu = self.wait(lambda: self._gpu(since), "a reading of the GPU")[-1]
        self.reference_ttft_ms = middle([s.ttft_ms for s in warm])
        self._say(
            f"chat: first token after {told(self.reference_ttft_ms, 1)} ms (median of "
            f"{len(warm)} warm canaries)"
        )
        self._say(
            f"decode: {told(middle([s.decode_tok_s for s in decode]), 1)} tokens/s; GPU: {_of(gpu)}"
        )

    def batch_job(self) -> None:
        """2: chat waits behind a batch."""
        self._chapter(
            "2. A batch job arrives",
            "24 clients without patience take all four places of the batch",
        )
        since = now()
        self.simulator.set(batch__clients=24)
        capped = self.wait(
            lambda: self._at_least(2, "chat", since, None, Outcome.QUEUE_CAP),
            "two chat canaries that were cut short",
        )
        true = self.wait(
            lambda: self._at_least(1, "chat-uncapped", since, None),
            "the canary that waits as long as it takes",
        )
        waiting = told(middle([s.waiting for s in capped]))
        self._say(
            f"chat: queue_cap, {len(capped)} canaries were cancelled after 2 s without a first "
            f"token; {waiting} requests waited"
        )
        longest = max(s.ttft_ms or 0.0 for s in true)
        self._say(
            f"the true wait, from the canary without a cap: {told(longest)} ms (reference "
            f"{told(self.reference_ttft_ms, 1)} ms)"
        )
        self.simulator.set(batch__clients=3)

    def heat(self) -> None:
        """3: the GPU heats, throttles and slows down; then it is cooled again."""
        self._chapter(
            "3. The GPU heats",
            "three clients stay, so chat has a place again; then the heat sink is blocked",
        )
        since = now()
        before = self.wait(
            lambda: self._at_least(2, "decode", since, None),
            "two decode canaries beside the batch job",
        )
        cool = self._gpu(since)[-1:] or self.wait(lambda: self._gpu(since), "a reading of the GPU")
        self._say(
            f"before: decode {told(middle([s.decode_tok_s for s in before]), 1)} tokens/s; "
            f"GPU: {_of(cool[-1])}"
        )
        blocked = now()
        self.simulator.set(card__cooling=COOLING_LOST)
        hot = self.wait(lambda: _throttled(self._gpu(blocked)), "the GPU throttles")
        settled = now()
        during = self.wait(
            lambda: self._at_least(2, "decode", settled, None), "two decode canaries on a hot GPU"
        )
        hot = _throttled(self._gpu(blocked)) or hot
        throttled_s = ((hot[-1].thermal_ns or 0) - (hot[0].thermal_ns or 0)) / 1e9
        self._say(
            f"hot: GPU {_of(hot[-1])}; throttled for heat during {told(throttled_s, 1)} s "
            "(counted by the GPU)"
        )
        slow, fast = (
            middle([s.decode_tok_s for s in during]),
            middle([s.decode_tok_s for s in before]),
        )
        change = None if slow is None or not fast else (slow / fast - 1) * 100
        self._say(f"decode fell to {told(slow, 1)} tokens/s ({told(change, 1)} %)")
        incident = self.wait(lambda: self.history.incident("thermal"), "an incident about the GPU")
        self._say(
            f"incident {incident.id} is open: {incident.kind}, {incident.severity}, cause "
            f"{incident.cause or 'unknown'}"
        )
        self._say(f"  {incident.summary}")
        freed = now()
        self.simulator.set(card__cooling=1.0, batch__clients=0)
        cooled = self.wait(lambda: _cooled(self._gpu(freed), cool[-1]), "the GPU is cool again")
        self._say(f"cooled: GPU {_of(cooled)}")

    def configuration(self) -> None:
        """4: a changed context length opens an incident, and the webhook is told."""
        self._chapter(
            "4. The configuration changes",
            "the server is started again with half the context length",
        )
        changed_s = time.monotonic()
        self.simulator.set(max_model_len=4096, restart=1.0)
        incident = self.wait(
            lambda: self.history.incident("config_change"), "an incident about the configuration"
        )
        delivery = self.wait(lambda: self.receiver.first("opened", "config_change"), "the webhook")
        took_s = time.monotonic() - changed_s
        changes = "; ".join(f"{c.field} {c.before} → {c.after}" for c in incident.changes)
        self._say(
            f"incident {incident.id} is open, {told(took_s, 1)} s after the restart: {changes}"
        )
        self._say(
            f"the webhook received: {delivery['event']} {delivery['incident']['kind']}: "
            f"{delivery['incident']['summary']}"
        )

    def check(self) -> None:
        """Raises CommandError where the server or the daemon has ended."""
        for child in self.children:
            child.must_run()

    def ending(self, keep: bool) -> None:
        """Where to look now."""
        config = self.folder / "config.yaml"
        print(
            f"\nThat took {time.monotonic() - self.began_s:.0f} s. The history stays in "
            f"{self.folder}; to look into it:"
        )
        for command in ("status", "history --limit 30", "summary", "incidents"):
            print(f"  vllm-canary {command} -c {config}")
        print(
            "Server and daemon keep running; Ctrl-C ends them."
            if keep
            else "Server and daemon are stopped.",
            flush=True,
        )

    # -- telling
    # ------------------------------------------------------------------------------------------------------

    def _chapter(self, title: str, what: str) -> None:
        print(f"\n{title}: {what}", flush=True)

    def _say(self, text: str) -> None:
        print(f"  [{time.monotonic() - self.began_s:5.1f} s] {text}", flush=True)

    def wait(self, look: Callable[[], T | None], what: str) -> T:
        """The first true answer. Raises CommandError when the demo's time is over."""
        while not (found := look()):
            self.check()
            if time.monotonic() - self.began_s > ALL_S:
                raise CommandError(
                    (
                        f"the demo gave up after {ALL_S:g} s waiting for: {what}; logs are in "
                        f"{self.folder}"
                    ),
                    UNMEASURED,
                )
            time.sleep(0.25)
        return found

    def _at_least(
        self,
        count: int,
        probe: str,
        since: datetime,
        phase: Phase | None,
        outcome: Outcome = Outcome.OK,
    ) -> list[Sample]:
        found = self.history.samples(probe, since, outcome, phase)
        return found if len(found) >= count else []

    def _gpu(self, since: datetime) -> list[GpuLook]:
        return [look for look in self.history.gpu(since) if look.temp_c is not None]


def _of(gpu: GpuLook) -> str:
    return f"{told(gpu.temp_c)} °C, {told(gpu.clock_mhz)} MHz, {told(gpu.power_w)} W"


def _throttled(looks: list[GpuLook]) -> list[GpuLook]:
    """All of them once the counter of thermal throttling has grown between two; before that
    none.
    """
    counted = [look.thermal_ns for look in looks if look.thermal_ns is not None]
    return looks if counted and counted[-1] > counted[0] else []


def _cooled(looks: list[GpuLook], cool: GpuLook) -> GpuLook | None:
    """The last look, once the GPU is no warmer than it was and has stopped throttling."""
    if (
        len(looks) < 2
        or (looks[-1].temp_c or 0.0) > (cool.temp_c or 0.0)
        or looks[-1].thermal_ns != looks[-2].thermal_ns
    ):
        return None
    return looks[-1]
