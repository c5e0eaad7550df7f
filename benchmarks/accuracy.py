"""How exactly the product's own stream client sees an answer whose true times are known
(reference_server.py).
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from common import PAGE, Section, load, percentile, served

from monitor.daemon.service import SWITCH_INTERVAL_S
from monitor.measure.canary import Canary
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.client import client
from monitor.model import Outcome, Phase, Probe, Sample
from monitor.store import record
from monitor.store.database import open_writer
from monitor.store.writer import Writer

TTFT_P95_MS, TTFT_MEDIAN_MS, RATE_P95_PERCENT = 1.0, 0.5, 0.5
OTHER_TARGETS, OTHER_EVERY_S = 50, 60.0
PROBE = Probe(
    name="reference",
    traffic_class="chat",
    endpoint="chat",
    messages=({"role": "user", "content": "What is the capital of France?"},),
    prompt=None,
    max_tokens=50,
    sampling={},
    every_s=60.0,
    cron=None,
    max_wait_s=2.0,
    timeout_s=300.0,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the measuring process has to do besides, and how the answer ends."""

    name: str
    others: int = 0
    busy: bool = False
    eos: bool = False


SCENARIOS = (
    Scenario("alone"),
    Scenario("alone, answers end with an end-of-text stop", eos=True),
    Scenario(
        f"beside {OTHER_TARGETS} other targets, one canary a minute each", others=OTHER_TARGETS
    ),
    Scenario(
        "while the metrics page is parsed and the database written without a pause", busy=True
    ),
)


@dataclass(frozen=True, slots=True)
class Errors:
    """How far the client was from the truth, canary by canary."""

    ttft_ms: list[float]
    rate_percent: list[float]
    lag_ms: list[float]
    load: float

    @property
    def met(self) -> bool:
        """Whether all three limits hold."""
        ttft, rate = [abs(e) for e in self.ttft_ms], [abs(e) for e in self.rate_percent]
        good_ttft = (
            percentile(ttft, 0.95) <= TTFT_P95_MS and statistics.median(ttft) <= TTFT_MEDIAN_MS
        )
        return good_ttft and percentile(rate, 0.95) <= RATE_P95_PERCENT

    def cells(self, name: str) -> tuple[str, ...]:
        """A row of the table."""
        ttft, rate = [abs(e) for e in self.ttft_ms], [abs(e) for e in self.rate_percent]
        return (
            name,
            str(len(ttft)),
            f"{statistics.median(ttft):.2f} ms",
            f"{percentile(ttft, 0.95):.2f} ms",
            f"{max(ttft):.2f} ms",
            f"{percentile(rate, 0.95):.3f} %",
            f"{percentile(self.lag_ms, 0.95):.2f} ms",
            f"{self.load:.1f}",
            "yes" if self.met else "**no**",
        )


def reference(truth: Path, eos: bool = False) -> AbstractContextManager[str]:
    """The server that is the measure; where we may, it comes before everything else on this
    machine, so that it is on time.
    """
    return served(
        "reference_server.py", "--punctual", "--truth", str(truth), *(["--eos"] if eos else [])
    )


def run_scenario(scenario: Scenario, canaries: int) -> Errors:
    """Measure `canaries` answers one after the other in this process, with the thread settings of
    the daemon.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    load_before = load()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        truth = folder / "truth.jsonl"
        url = stack.enter_context(reference(truth, scenario.eos))
        crowd = None
        if (
            scenario.others or scenario.busy
        ):  # apart, so that it does not disturb the times of the server that is the measure
            crowd = stack.enter_context(
                served("reference_server.py", "--truth", "/dev/null", "--page", str(PAGE))
            )
        samples = asyncio.run(_measure(scenario, canaries, url, crowd, folder))
        true = [json.loads(line) for line in truth.read_text().splitlines()]
    return _compared(samples, true[1:], max(load_before, load()))


def _compared(samples: list[Sample], true: list[dict[str, float]], load_seen: float) -> Errors:
    """One canary at a time: the answers stand in the truth file in the order of the samples."""
    bad = [s.outcome.value for s in samples if s.outcome is not Outcome.OK]
    if bad or len(samples) != len(true):
        raise RuntimeError(
            f"the reference server answered {len(true)} of {len(samples)} canaries; not ok: {bad}"
        )
    ttft, rate, lag = [], [], []
    for sample, answer in zip(samples, true, strict=True):
        assert sample.ttft_ms is not None
        assert sample.decode_tok_s is not None
        assert sample.observer_lag_ms is not None
        true_rate = (answer["n"] - 1) / (answer["last"] - answer["ttft"])
        ttft.append(sample.ttft_ms - answer["ttft"] * 1000)
        rate.append((sample.decode_tok_s / true_rate - 1) * 100)
        lag.append(sample.observer_lag_ms)
    return Errors(ttft, rate, lag, load_seen)


async def _measure(
    scenario: Scenario, canaries: int, url: str, crowd: str | None, folder: Path
) -> list[Sample]:
    """The first answer warms both sides up and is left out, here and in the truth."""
    async with AsyncExitStack() as stack:
        canary = await stack.enter_async_context(_canary("reference", url))
        await _one(canary)
        work: list[Coroutine[Any, Any, None]] = []
        if crowd is not None:
            others = [
                await stack.enter_async_context(_canary(f"other-{i}", crowd))
                for i in range(max(1, scenario.others))
            ]
            work = (
                [_now_and_then(other) for other in others]
                if scenario.others
                else [_parse(others[0].page)]
            )
        if scenario.busy:
            work.append(_write(stack.enter_context(_writer(folder))))
        tasks = [asyncio.create_task(each) for each in work]
        samples = [await _one(canary) for _ in range(canaries)]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ended:
        if isinstance(end, Exception):
            raise end
    return samples


@asynccontextmanager
async def _canary(name: str, url: str) -> AsyncIterator[Canary]:
    """Put together as the daemon does it."""
    async with client(url, None) as http:
        yield Canary(name, http, MetricsPage(http, f"{url}/metrics"), "ref")


async def _one(canary: Canary) -> Sample:
    before = await canary.page.read()
    return (await canary.measure(PROBE, Phase.WARM, before, None)).sample


async def _now_and_then(other: Canary) -> None:
    """Another target of the same process, its start somewhere in the minute."""
    await asyncio.sleep(random.uniform(0, OTHER_EVERY_S))
    while True:
        await _one(other)
        await asyncio.sleep(OTHER_EVERY_S)


async def _parse(page: MetricsPage) -> None:
    """Fetch and parse a real page, again and again."""
    while True:
        read = await page.read()
        if read.engine_steps is None:
            raise RuntimeError(f"the page could not be read: {read.state}")


async def _write(writer: Writer) -> None:
    """Store a sample, each in a transaction of its own, again and again."""
    now = datetime.now(UTC)
    target = await asyncio.wrap_future(
        writer.submit(lambda c: record.ensure_target(c, "reference", "http://127.0.0.1", now))
    )
    revision = await asyncio.wrap_future(
        writer.submit(lambda c: record.ensure_revision(c, PROBE, now))
    )
    sample = Sample(
        "reference",
        PROBE.name,
        PROBE.traffic_class,
        now,
        Phase.WARM,
        Outcome.OK,
        output="tok",
        ttft_ms=150.0,
    )
    insert = partial(
        record.insert_sample,
        target_id=target,
        revision_id=revision,
        process_start_id=None,
        fingerprint_id=None,
        detail=None,
    )
    while True:
        await asyncio.wrap_future(
            writer.submit(partial(insert, sample=replace(sample, started_at=datetime.now(UTC))))
        )


@contextmanager
def _writer(folder: Path) -> Iterator[Writer]:
    writer = Writer(open_writer(str(folder / "history.db")))
    try:
        yield writer
    finally:
        writer.close()


def section(canaries: int) -> Section:
    """All scenarios."""
    rows = []
    for scenario in SCENARIOS:
        print(f"accuracy: {scenario.name} …", flush=True)
        rows.append(run_scenario(scenario, canaries).cells(scenario.name))
        print("  " + " | ".join(rows[-1]), flush=True)
    text = (
        "The stream client of the daemon against `benchmarks/reference_server.py`, which "
        "writes down when each token really left: role "
        "chunk after 50 ms, first token after 150 ms, then 50 tokens 20 ms apart. An error is "
        "the absolute difference between what the "
        "sample says and what the server wrote; it holds the way of the request and of the "
        "answer through the network stack. "
        "Where Linux tells when a packet came (docs/units.md), its time is taken, and not that "
        "of our reading. Limits: time to first "
        f"token (TTFT) median ≤ {TTFT_MEDIAN_MS:g} ms and p95 ≤ {TTFT_P95_MS:g} ms, decode "
        f"rate p95 ≤ {RATE_P95_PERCENT:g} %."
    )
    head = (
        "canaries measured",
        "n",
        "TTFT median",
        "TTFT p95",
        "TTFT worst",
        "decode rate p95",
        "observer lag p95",
        "load",
        "met",
    )
    return Section("Accuracy", text, head, rows, [])


if __name__ == "__main__":
    print(section(int(sys.argv[1]) if len(sys.argv) > 1 else 40).markdown())
