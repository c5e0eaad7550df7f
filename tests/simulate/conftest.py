"""A simulated server in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from monitor.simulate.api.server import SimulatedServer
from monitor.simulate.engine.costs import EngineConfig
from monitor.simulate.identity import Identity
from monitor.simulate.world import World


@pytest.fixture
async def server() -> AsyncIterator[SimulatedServer]:
    """A healthy server without GPUs whose steps take a millisecond: tests wait for it in real
    time.
    """
    config = EngineConfig(decode_base_s=0.001, host_s=0.0001, num_gpu_blocks=2000)
    async with SimulatedServer(World(config, Identity(max_model_len=1024))) as started:
        yield started


@pytest.fixture
async def client(server: SimulatedServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=10) as http:
        yield http
