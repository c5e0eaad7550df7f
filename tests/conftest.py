"""Fixtures shared by the tests of several packages."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest
from histories import History
from processes import ChildStandIn
from standin import StandIn
from webhooks import Receiver

# CI uses the same examples in every run; developers' machines also search for new ones.
hypothesis.settings.register_profile("ci", derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture
async def standin() -> AsyncIterator[StandIn]:
    """A running stand-in for a vLLM server; `standin.state` controls its behaviour."""
    async with StandIn() as server:
        yield server


@pytest.fixture
def child_standin(tmp_path: Path) -> Iterator[ChildStandIn]:
    """A stand-in in its own process, for tests that block or run a command as a process."""
    server = ChildStandIn(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """An empty history."""
    made = History(tmp_path / "history.db")
    yield made
    made.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks."""
    listening = Receiver()
    yield listening
    listening.stop()
