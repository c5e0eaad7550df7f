"""What `check` finds out about a server before it is watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standin import StandIn

from monitor.measure.server import api
from monitor.measure.server import preflight as preflight_module
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.server.preflight import Check, Preflight, is_buffered
from monitor.measure.stream.answer import Answer
from monitor.measure.stream.client import client
from monitor.model import Probe

SKY = Probe(
    name="sky",
    traffic_class="chat",
    endpoint="chat",
    messages=({"role": "user", "content": "Is the sky blue? Answer yes or no."},),
    prompt=None,
    max_tokens=64,
    sampling={"temperature": 0.0, "seed": 0},
    every_s=60.0,
    cron=None,
    max_wait_s=5.0,
    timeout_s=20.0,
)


@pytest.fixture
async def preflight(standin: StandIn) -> AsyncIterator[Preflight]:
    async with client(standin.url, None) as http:
        yield Preflight(
            "local", http, MetricsPage(http, f"{standin.url}/metrics", timeout_s=0.3), "tiny-canary"
        )


def found(preflight: Preflight, what: str) -> Check:
    """The one finding about something."""
    (check,) = [check for check in preflight.checks if check.name == f"local: {what}"]
    return check


def states(preflight: Preflight) -> dict[str, str]:
    return {check.name.removeprefix("local: "): check.state for check in preflight.checks}


async def test_a_good_server_is_told_with_version_model_and_context(preflight: Preflight) -> None:
    await preflight.server(await api.models(preflight.http))
    assert states(preflight) == {"server": "good", "model": "good"}
    assert "vLLM 0.32.0" in found(preflight, "server").detail
    assert (
        found(preflight, "model").detail
        == "tiny-canary from models/tiny-canary, context 4096 tokens"
    )
    assert preflight.max_model_len == 4096


async def test_a_model_that_is_not_served_is_told_with_those_that_are(preflight: Preflight) -> None:
    preflight.model = "big"
    await preflight.server(await api.models(preflight.http))
    check = found(preflight, "model")
    assert (check.state, check.mend) == (
        "bad",
        "set `model:` to a model that it serves: tiny-canary",
    )
    assert preflight.max_model_len is None


async def test_a_whole_metrics_page_is_good(preflight: Preflight) -> None:
    page = await preflight.metrics()
    assert page.state == "ok"
    assert states(preflight) == {"metrics page": "good"}


@pytest.mark.parametrize(
    ("status", "state"), [(404, "http_error"), ("garbage", "unreadable"), ("slow", "timeout")]
)
async def test_a_metrics_page_that_does_not_come_is_bad_and_tells_what_stays_unknown(
    standin: StandIn, preflight: Preflight, status: int | str, state: str
) -> None:
    standin.state.metrics_status = status
    await preflight.metrics()
    check = found(preflight, "metrics page")
    assert (check.state, check.detail) == ("bad", f"could not be read ({state})")
    assert "hangs are unknown" in (check.mend or "")


@pytest.mark.parametrize(
    ("series", "figure"),
    [
        ("vllm:iteration_tokens_total", "engine_steps"),
        ("vllm:request_queue_time_seconds", "queue_count"),
    ],
)
async def test_a_figure_that_the_page_lacks_is_named(
    standin: StandIn, preflight: Preflight, series: str, figure: str
) -> None:
    standin.state.hide_metrics = [series]
    await preflight.metrics()
    check = found(preflight, "metrics page")
    assert (check.state, check.detail) == ("unknown", f"read, but without {figure}")


async def test_a_start_that_is_not_told_is_unknown_and_not_bad(
    standin: StandIn, preflight: Preflight
) -> None:
    standin.state.hide_metrics = ["process_start_time_seconds"]
    await preflight.metrics()
    assert states(preflight) == {"metrics page": "good", "process start": "unknown"}


async def test_a_sleeping_server_is_bad_with_the_way_to_wake_it(
    standin: StandIn, preflight: Preflight
) -> None:
    standin.state.sleeping = True
    await preflight.metrics()
    assert (found(preflight, "engine").state, found(preflight, "engine").mend) == (
        "bad",
        "wake it: POST /wake_up",
    )


async def test_a_probe_that_fits_is_told_with_its_length(
    preflight: Preflight, tmp_path: Path
) -> None:
    preflight.max_model_len = 4096
    await preflight.probe_lengths([SKY], tmp_path)
    length = preflight.lengths["sky"]
    assert length > 8
    assert found(preflight, "probe sky") == Check(
        "local: probe sky", "good", f"{length} prompt and up to 64 answer tokens of 4096"
    )
    assert preflight.misfits == []


async def test_a_probe_that_just_fits_is_good_and_one_token_more_is_bad(
    preflight: Preflight, tmp_path: Path
) -> None:
    length = await api.prompt_length(preflight.http, SKY, "tiny-canary")
    preflight.max_model_len = length + 64
    await preflight.probe_lengths([SKY, replace(SKY, name="longer", max_tokens=65)], tmp_path)
    assert states(preflight) == {"probe sky": "good", "probe longer": "bad"}
    assert len(preflight.misfits) == 1


async def test_a_length_that_cannot_be_told_is_unknown(
    preflight: Preflight, tmp_path: Path
) -> None:
    preflight.model = "big"
    await preflight.probe_lengths([SKY], tmp_path)
    assert found(preflight, "probe sky").state == "unknown"
    assert preflight.lengths == {}


@pytest.mark.parametrize(("told", "state"), [(True, "good"), (False, "unknown")])
async def test_one_short_answer_shows_what_the_server_tells_of_itself(
    standin: StandIn, preflight: Preflight, told: bool, state: str
) -> None:
    standin.state.per_request_metrics = standin.state.prompt_tokens_details = told
    await preflight.answer_details(SKY, await preflight.page.read())
    assert states(preflight) == {
        "answer": "good",
        "per-request metrics": state,
        "cached tokens": state,
    }
    assert standin.state.requests[0]["max_tokens"] <= 16


async def test_a_model_that_reasons_first_is_told_with_what_to_do_about_it(
    standin: StandIn, preflight: Preflight
) -> None:
    standin.state.reasoning_tokens = 99
    await preflight.answer_details(SKY, await preflight.page.read())
    check = found(preflight, "reasoning")
    assert (check.state, "chat_template_kwargs" in (check.mend or "")) == ("unknown", True)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"http_status": 500}, "HTTP 500"),
        ({"stream_fault": "html"}, "not an event stream"),
        ({"sleeping": True}, "sleeps"),
        ({"stream_fault": "empty"}, "no text"),
    ],
)
async def test_an_answer_that_fails_is_bad_with_the_reason_and_ends_the_examination(
    standin: StandIn, preflight: Preflight, state: dict[str, Any], told: str
) -> None:
    standin.set(state)
    await preflight.answer_details(SKY, await preflight.page.read())
    assert states(preflight) == {"answer": "bad"}
    assert told in found(preflight, "answer").detail


async def test_a_trial_has_the_patience_of_a_cold_start(
    standin: StandIn, preflight: Preflight
) -> None:
    standin.state.queue_s = 0.4
    measured = await preflight.trial(replace(SKY, max_wait_s=0.1), await preflight.page.read())
    assert measured.sample.outcome.value == "ok"


MS = 1_000_000


@pytest.mark.parametrize(
    ("arrivals_ms", "buffered"),
    [
        ([5.0] * 16, True),  # all in one piece
        ([5 + n * 0.03 for n in range(16)], True),  # in a few pieces, one straight after the other
        ([n // 4 * 20.0 for n in range(16)], True),  # in heaps of four, as a proxy's blocks
        ([n * 5.0 for n in range(16)], False),
        ([n * 0.5 for n in range(16)], False),  # 2,000 tokens a second
        ([n // 4 * 20.0 + n % 4 * 0.5 for n in range(16)], False),
        ([0, *[20.0] * 3, *[40.0 + n * 5 for n in range(12)]], False),  # one hiccup
        ([5.0] * 4, False),  # several tokens a chunk: too few chunks to tell
        ([], False),
    ],
)
def test_tokens_in_heaps_have_been_held_back_on_the_way(
    arrivals_ms: list[float], buffered: bool
) -> None:
    assert is_buffered(Answer(arrivals_ns=[round(ms * MS) for ms in arrivals_ms])) is buffered


@asynccontextmanager
async def proxy(standin: StandIn, block: int | None) -> AsyncIterator[str]:
    """A proxy before the stand-in that hands on what comes (block 1), only full blocks, or only the
    whole answer (None).
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", standin.port)
        request = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(v.split(b":")[1])
                for v in request.lower().split(b"\r\n")
                if v.startswith(b"content-length")
            ),
            0,
        )
        request = request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1).replace(
            b"Connection: keep-alive\r\n", b""
        )
        up_writer.write(request + await reader.readexactly(length))
        held = b""
        try:
            while data := await up_reader.read(65_536):
                held += data
                if block is not None and len(held) >= block:
                    writer.write(held)
                    await writer.drain()
                    held = b""
            writer.write(held)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            up_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("block", "state"),
    [(None, "bad"), (4096, "bad"), (1, None)],
    ids=["whole", "blocks", "at once"],
)
async def test_a_proxy_that_buffers_the_stream_is_said(
    standin: StandIn, block: int | None, state: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # how busy this machine is has a test of its own
    monkeypatch.setattr(preflight_module, "BUSY_MS", float("inf"))
    standin.state.itl_s = 0.04
    asked = replace(SKY, sampling={"temperature": 0.0, "seed": 0, "logprobs": 5})
    async with proxy(standin, block) as url, client(url, None) as http:
        flight = Preflight("local", http, MetricsPage(http, f"{url}/metrics"), "tiny-canary")
        await flight.answer_details(asked, await flight.page.read())
    assert states(flight)["answer"] == "good"
    assert states(flight).get("stream") == state
    if state == "bad":
        assert "proxy_buffering off" in next(
            check.mend or "" for check in flight.checks if check.name == "local: stream"
        )


async def test_heaps_that_a_busy_machine_may_have_made_itself_are_not_held_against_the_way(
    preflight: Preflight,
) -> None:
    measured = await preflight.trial(SKY, await preflight.page.read())
    heap = replace(measured.answer, arrivals_ns=[5] * 16)
    for lag_ms, state in ((1.0, "bad"), (150.0, "unknown")):
        preflight.checks.clear()
        preflight._stream(
            replace(measured, answer=heap, sample=replace(measured.sample, observer_lag_ms=lag_ms))
        )
        assert states(preflight) == {"stream": state}
