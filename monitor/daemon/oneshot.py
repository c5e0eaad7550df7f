"""A watch for a command that measures once: opened under its lease, and closed cleanly."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from monitor.config.settings import Settings
from monitor.config.target import TargetSettings
from monitor.daemon.gpus import GpuWatches
from monitor.daemon.identity import Keeps
from monitor.daemon.lanes import lease_name, leased
from monitor.daemon.watch import TargetWatch
from monitor.model import Probe
from monitor.store.database import open_writer
from monitor.store.writer import Writer

LOAD_SETTLE_S = 0.5


@asynccontextmanager
async def watching(
    settings: Settings,
    target: TargetSettings,
    probes: Sequence[Probe],
    lease_wait_s: float,
    keeps: Keeps = Keeps.UNWATCHED,
) -> AsyncIterator[TargetWatch]:
    """Yields a watch of one target for one command, alone on its lane. Raises UserError if the
    server, the database or the lease is not available.
    """
    writer = Writer(open_writer(settings.database), patient=False)
    gpus = GpuWatches([target.watches_gpus])
    gpus.start()
    watch = TargetWatch(target, probes, writer, gpus.of(target.watches_gpus), keeps=keeps)
    try:
        await watch.load()
        await gpus.first_reading()  # what is kept of the identity names them
        await watch.find_model()
        async with leased(writer, lease_name(target.name, capped=True), lease_wait_s):
            yield watch
    finally:
        await watch.close()
        gpus.stop()
        await asyncio.to_thread(writer.close)


@asynccontextmanager
async def under_load(watch: TargetWatch, requests: int) -> AsyncIterator[None]:
    """Keeps some long requests running meanwhile: with other requests in the batch, near ties
    show.
    """
    if requests == 0:
        yield
        return
    tasks = [asyncio.create_task(_long_request(watch, number)) for number in range(requests)]
    await asyncio.sleep(LOAD_SETTLE_S)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _long_request(watch: TargetWatch, number: int) -> None:
    """Sends one request after another until it is cancelled, each short enough for any context."""
    while True:
        body: dict[str, Any] = {
            "prompt": f"Tell a long story, number {number}.",
            "max_tokens": 256,
            "ignore_eos": True,
            "min_tokens": 256,
            "temperature": 0,
            "stream": True,
            "cache_salt": uuid.uuid4().hex,
        }
        if watch.canary.model is not None:
            body["model"] = watch.canary.model
        try:
            async with watch.canary.http.stream("POST", "/v1/completions", json=body) as response:
                async for _ in response.aiter_raw():
                    pass
        except httpx.HTTPError:
            await asyncio.sleep(LOAD_SETTLE_S)
