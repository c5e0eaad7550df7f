"""Errors of the product's stream client on answers whose true times are known
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

from common import METRICS_PAGE, Section, load, met_cell, percentile, served

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
    """Other work of the measuring process, and how the answer ends."""

    name: str
    other_targets: int = 0
    busy: bool = False
    eos: bool = False


SCENARIOS = (
    Scenario("alone"),
    Scenario("alone, answers end with an end-of-text stop", eos=True),
    Scenario(
        f"with {OTHER_TARGETS} other targets, one canary a minute each",
        other_targets=OTHER_TARGETS,
    ),
    Scenario("while the metrics page is parsed and the database written continuously", busy=True),
)


@dataclass(frozen=True, slots=True)
class Errors:
    """The client's errors, one per canary."""

    ttft_ms: list[float]
    rate_percent: list[float]
    lag_ms: list[float]
    load: float

    @property
    def met(self) -> bool:
        """Whether all three limits are met."""
        ttft, rate = [abs(e) for e in self.ttft_ms], [abs(e) for e in self.rate_percent]
        good_ttft = (
            percentile(ttft, 0.95) <= TTFT_P95_MS and statistics.median(ttft) <= TTFT_MEDIAN_MS
        )
        return good_ttft and percentile(rate, 0.95) <= RATE_P95_PERCENT

    def cells(self, name: str) -> tuple[str, ...]:
        """The cells of a row of the table."""
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
            met_cell(self.met),
        )


def reference(truth: Path, eos: bool = False) -> AbstractContextManager[str]:
    """Runs the reference server, with real-time scheduling where that is allowed."""
    return served(
        "reference_server.py", "--punctual", "--truth", str(truth), *(["--eos"] if eos else [])
    )


def run_scenario(scenario: Scenario, canaries: int) -> Errors:
    """Measures `canaries` answers one after another in this process, with the daemon's thread
    settings.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    load_before = load()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        truth = folder / "truth.jsonl"
        url = stack.enter_context(reference(truth, scenario.eos))
        other_url = None
        if scenario.other_targets or scenario.busy:
            # a second server, so that the reference server's times are not disturbed
            arguments = ("--truth", "/dev/null", "--page", str(METRICS_PAGE))
            other_url = stack.enter_context(served("reference_server.py", *arguments))
        samples = asyncio.run(_measure(scenario, canaries, url, other_url, folder))
        true = [json.loads(line) for line in truth.read_text().splitlines()]
    return _compared(samples, true[1:], max(load_before, load()))


def _compared(samples: list[Sample], true: list[dict[str, float]], load_seen: float) -> Errors:
    """Compares each sample with its answer; canaries go one at a time, so both have one order."""
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
    scenario: Scenario, canaries: int, url: str, other_url: str | None, folder: Path
) -> list[Sample]:
    """Measures the canaries. The first answer warms up both sides and is not counted."""
    async with AsyncExitStack() as stack:
        canary = await stack.enter_async_context(_canary("reference", url))
        await _one(canary)
        work: list[Coroutine[Any, Any, None]] = []
        others: list[Canary] = []
        if other_url is not None:
            others = [
                await stack.enter_async_context(_canary(f"other-{i}", other_url))
                for i in range(max(1, scenario.other_targets))
            ]
            work = [_measure_periodically(other) for other in others[: scenario.other_targets]]
        if scenario.busy:
            work.append(_parse_continuously(others[0].page))
            work.append(_write_continuously(stack.enter_context(_writer(folder))))
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
    """A canary, assembled as in the daemon."""
    async with client(url, None) as http:
        yield Canary(name, http, MetricsPage(http, f"{url}/metrics"), "ref")


async def _one(canary: Canary) -> Sample:
    before = await canary.page.read()
    return (await canary.measure(PROBE, Phase.WARM, before, None)).sample


async def _measure_periodically(other: Canary) -> None:
    """Measures another target, starting at a random time of the minute."""
    await asyncio.sleep(random.uniform(0, OTHER_EVERY_S))
    while True:
        await _one(other)
        await asyncio.sleep(OTHER_EVERY_S)


async def _parse_continuously(page: MetricsPage) -> None:
    """Fetches and parses a real page without a pause."""
    while True:
        read = await page.read()
        if read.engine_steps is None:
            raise RuntimeError(f"the page could not be read: {read.state}")


async def _write_continuously(writer: Writer) -> None:
    """Stores samples without a pause, each in its own transaction."""
    now = datetime.now(UTC)
    target = await asyncio.wrap_future(
        writer.submit(lambda c: record.ensure_target(c, "reference", "http://127.0.0.1", now))
    )
    revision = await asyncio.wrap_future(
        writer.submit(lambda c: record.ensure_revision(c, PROBE, now))
    )
    sample = Sample(
        target="reference",
        probe=PROBE.name,
        traffic_class=PROBE.traffic_class,
        started_at=now,
        phase=Phase.WARM,
        outcome=Outcome.OK,
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
    """Measures all scenarios."""
    rows = []
    for scenario in SCENARIOS:
        print(f"accuracy: {scenario.name} …", flush=True)
        rows.append(run_scenario(scenario, canaries).cells(scenario.name))
        print("  " + " | ".join(rows[-1]), flush=True)
    text = (
        "The daemon's stream client against `benchmarks/reference_server.py`, which records when "
        "each token was sent: role chunk after 50 ms, first token after 150 ms, then 50 tokens "
        "20 ms apart. An error is the absolute difference between the sample and the server's "
        "record; it includes the network path of request and answer. Where Linux provides receive "
        "timestamps (docs/units.md), they are used instead of the time of the read. Limits: time "
        f"to first token (TTFT) median ≤ {TTFT_MEDIAN_MS:g} ms and p95 ≤ {TTFT_P95_MS:g} ms, "
        f"decode rate p95 ≤ {RATE_P95_PERCENT:g} %."
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
