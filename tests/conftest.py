"""Fixtures that tests of several parts share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from standin import StandIn


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    """A running stand-in for a vLLM server; its behaviour is set by `standin.state`."""
    async with StandIn() as server:
        yield server
