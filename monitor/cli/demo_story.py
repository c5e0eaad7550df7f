"""The story of `demo`, chapter by chapter: something happens to the simulated server, and what the
daemon has stored about it is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from monitor.cli.common import CommandError, now_utc
from monitor.cli.demo_history import GpuRow, History, middle
from monitor.cli.demo_parts import Child, Receiver, Simulator
from monitor.errors import UNMEASURED
from monitor.model import Outcome, Phase, Sample
from monitor.show.terminal import number

T = TypeVar("T")
ALL_S = 140.0  # the demo gives up then; it ends within 150 s
COOLING_LOST = 8.0  # thermal resistance of heat sink and air against healthy
CLIENTS, REMAINING_CLIENTS = 24, 3  # of the batch job; the server has four places


@dataclass(slots=True)
class Story:
    """The chapters, in their order."""

    folder: Path
    simulator: Simulator
    history: History
    receiver: Receiver
    children: Sequence[Child]
    began_s: float
    reference_ttft_ms: float | None = None

    def tell(self, keep: bool) -> None:
        """All chapters; with `keep` it then waits for Ctrl-C."""
        self._wait(self.history.exists, "the daemon's history")
        self._reference()
        self._batch_job()
        self._heat()
        self._configuration()
        self._ending(keep)
        while keep:
            self._check_children()
            time.sleep(0.5)

    def _reference(self) -> None:
        """Chapter 1: the healthy server."""
        self._chapter(
            "1. Warm reference", "the server has no other load; the daemon learns the baseline"
        )
        since = now_utc()
        warm = self._wait(
            lambda: self._at_least(5, "chat", since, phase=Phase.WARM), "five warm chat canaries"
        )
        decode = self._wait(lambda: self._at_least(2, "decode", since), "two decode canaries")
        gpu = self._gpu_since(since)[-1]
        self.reference_ttft_ms = middle([s.ttft_ms for s in warm])
        self._say(
            f"chat: first token after {number(self.reference_ttft_ms, 1)} ms (median of "
            f"{len(warm)} warm canaries)"
        )
        self._say(f"decode: {_rate(decode)} tokens/s; GPU: {gpu}")

    def _batch_job(self) -> None:
        """Chapter 2: chat waits behind a batch job."""
        self._chapter(
            "2. A batch job arrives",
            f"{CLIENTS} batch clients take all four places of the batch",
        )
        since = now_utc()
        self.simulator.set(batch__clients=CLIENTS)
        capped = self._wait(
            lambda: self._at_least(2, "chat", since, outcome=Outcome.QUEUE_CAP),
            "two chat canaries cancelled at their cap",
        )
        uncapped = self._wait(
            lambda: self._at_least(1, "chat-uncapped", since), "the canary without a cap"
        )
        waiting = number(middle([s.waiting for s in capped]))
        self._say(
            f"chat: queue_cap, {len(capped)} canaries were cancelled after 2 s without a first "
            f"token; {waiting} requests waited"
        )
        longest = max(s.ttft_ms or 0.0 for s in uncapped)
        self._say(
            f"the true wait, from the canary without a cap: {number(longest)} ms (reference "
            f"{number(self.reference_ttft_ms, 1)} ms)"
        )
        self.simulator.set(batch__clients=REMAINING_CLIENTS)

    def _heat(self) -> None:
        """Chapter 3: the GPU heats up and is throttled; then it is cooled again."""
        self._chapter(
            "3. The GPU heats up",
            "three batch clients stay, so chat has a place again; then the heat sink is blocked",
        )
        since = now_utc()
        before = self._wait(
            lambda: self._at_least(2, "decode", since), "two decode canaries during the batch job"
        )
        cool = self._gpu_since(since)[-1]
        self._say(f"before: decode {_rate(before)} tokens/s; GPU: {cool}")
        self._overheat(before)
        incident = self._wait(lambda: self.history.incident("thermal"), "an incident about the GPU")
        self._say(
            f"incident {incident.id} is open: {incident.kind}, {incident.severity}, cause "
            f"{incident.cause or 'unknown'}"
        )
        self._say(f"  {incident.summary}")
        freed = now_utc()
        self.simulator.set(gpu__cooling=1.0, batch__clients=0)
        cooled = self._wait(lambda: _cooled(self.history.gpu(freed), cool), "the GPU to cool down")
        self._say(f"cooled: GPU {cooled}")

    def _overheat(self, before: Sequence[Sample]) -> None:
        blocked = now_utc()
        self.simulator.set(gpu__cooling=COOLING_LOST)
        self._wait(lambda: _throttled(self.history.gpu(blocked)), "the GPU to be throttled")
        throttled = now_utc()
        during = self._wait(
            lambda: self._at_least(2, "decode", throttled), "two decode canaries on a hot GPU"
        )
        hot = self.history.gpu(blocked)
        throttled_s = ((hot[-1].thermal_ns or 0) - (hot[0].thermal_ns or 0)) / 1e9
        self._say(
            f"hot: GPU {hot[-1]}; thermally throttled for {number(throttled_s, 1)} s "
            "(counted by the GPU)"
        )
        slow, fast = (middle([s.decode_tok_s for s in samples]) for samples in (during, before))
        change = None if slow is None or not fast else (slow / fast - 1) * 100
        self._say(f"decode fell to {number(slow, 1)} tokens/s ({number(change, 1)} %)")

    def _configuration(self) -> None:
        """Chapter 4: a changed context length opens an incident and reaches the webhook."""
        self._chapter(
            "4. The configuration changes", "the server is restarted with half the context length"
        )
        changed_s = time.monotonic()
        self.simulator.set(max_model_len=4096, restart=1.0)
        incident = self._wait(
            lambda: self.history.incident("config_change"), "an incident about the configuration"
        )
        delivery = self._wait(lambda: self.receiver.first("opened", "config_change"), "the webhook")
        took_s = time.monotonic() - changed_s
        changes = "; ".join(f"{c.field} {c.before} → {c.after}" for c in incident.changes)
        self._say(
            f"incident {incident.id} is open, {number(took_s, 1)} s after the restart: {changes}"
        )
        part = delivery["incident"]
        self._say(f"the webhook received: {delivery['event']} {part['kind']}: {part['summary']}")

    def _ending(self, keep: bool) -> None:
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

    def _chapter(self, title: str, what: str) -> None:
        print(f"\n{title}: {what}", flush=True)

    def _say(self, text: str) -> None:
        print(f"  [{time.monotonic() - self.began_s:5.1f} s] {text}", flush=True)

    def _wait(self, condition: Callable[[], T | None], what: str) -> T:
        """The first true result. Raises CommandError when the demo's time is up."""
        while not (found := condition()):
            self._check_children()
            if time.monotonic() - self.began_s > ALL_S:
                raise CommandError(
                    f"the demo gave up after {ALL_S:g} s waiting for: {what}; logs are in "
                    f"{self.folder}",
                    UNMEASURED,
                )
            time.sleep(0.25)
        return found

    def _check_children(self) -> None:
        """Raises CommandError if the server or the daemon has ended."""
        for child in self.children:
            child.must_run()

    def _at_least(
        self,
        count: int,
        probe: str,
        since: datetime,
        outcome: Outcome = Outcome.OK,
        phase: Phase | None = None,
    ) -> list[Sample]:
        found = self.history.samples(probe, since, outcome, phase)
        return found if len(found) >= count else []

    def _gpu_since(self, since: datetime) -> list[GpuRow]:
        return self._wait(lambda: self.history.gpu(since), "a reading of the GPU")


def _rate(samples: Sequence[Sample]) -> str:
    return number(middle([s.decode_tok_s for s in samples]), 1)


def _throttled(rows: Sequence[GpuRow]) -> bool:
    """Whether the counter of thermal throttling has grown."""
    counted = [row.thermal_ns for row in rows if row.thermal_ns is not None]
    return bool(counted) and counted[-1] > counted[0]


def _cooled(rows: Sequence[GpuRow], cool: GpuRow) -> GpuRow | None:
    """The last row, once the GPU is no warmer than `cool` and no longer throttled."""
    if len(rows) < 2:
        return None
    before, last = rows[-2:]
    warmer = (last.temp_c or 0.0) > (cool.temp_c or 0.0)
    return None if warmer or last.thermal_ns != before.thermal_ns else last
