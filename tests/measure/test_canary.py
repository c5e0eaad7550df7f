"""One canary from the look before it to the finished sample: every outcome that a server can cause,
and every figure of a good answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from standin import StandIn

from monitor.measure.canary import Canary, Measurement
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream import patience
from monitor.measure.stream.client import client
from monitor.model import Expectation, GpuReading, Marks, Outcome, Phase, Probe, ServerPage

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
COUNT = replace(SKY, messages=({"role": "user", "content": "Count from one to thirty in words."},))
STEPS = "vllm:iteration_tokens_total"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "READ_EVERY_S", 0.05)


@pytest.fixture
async def http(standin: StandIn) -> AsyncIterator[httpx.AsyncClient]:
    async with client(standin.url, None) as http:
        yield http


@pytest.fixture
def canary(standin: StandIn, http: httpx.AsyncClient) -> Canary:
    """A canary that calls an engine hung after 0.4 s."""
    return Canary(
        "local", http, MetricsPage(http, f"{standin.url}/metrics"), "tiny-canary", hang_after_s=0.4
    )


async def measured(
    canary: Canary,
    probe: Probe = SKY,
    phase: Phase = Phase.WARM,
    idle_before_s: float | None = None,
) -> Measurement:
    return await canary.measure(probe, phase, await canary.page.read(), idle_before_s)


def soon(seconds: float, do: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)


@pytest.mark.parametrize(
    ("state", "limits", "outcome", "told"),
    [
        ({}, {}, Outcome.OK, None),
        ({"queue_s": 30.0}, {"max_wait_s": 0.2}, Outcome.QUEUE_CAP, "no first token within 0.2 s"),
        ({"frozen": True}, {"max_wait_s": 0.2}, Outcome.HUNG, "stood still for 0.4 s"),
        ({"frozen": True}, {"max_wait_s": None}, Outcome.HUNG, "stood still for 0.4 s"),
        (
            {"frozen": True, "hide_metrics": [STEPS]},
            {"max_wait_s": 0.2},
            Outcome.TIMEOUT,
            "no step counter",
        ),
        (
            {"frozen": True, "metrics_status": 404},
            {"max_wait_s": 0.2},
            Outcome.TIMEOUT,
            "no step counter",
        ),
        ({"sleeping": True}, {}, Outcome.ASLEEP, "sleeps"),
        ({"http_status": 429}, {}, Outcome.REJECTED, "HTTP 429: Rate limit"),
        ({"http_status": 503}, {}, Outcome.REJECTED, "HTTP 503: The engine is currently busy"),
        ({"http_status": 500}, {}, Outcome.HTTP_ERROR, "HTTP 500: EngineCore"),
        ({"api_key": "secret"}, {}, Outcome.HTTP_ERROR, "HTTP 401: Unauthorized"),
        (
            {"served_name": "other"},
            {},
            Outcome.HTTP_ERROR,
            "HTTP 404: The model `tiny-canary` does not exist",
        ),
        ({}, {"max_tokens": 99_999}, Outcome.HTTP_ERROR, "HTTP 400: max_tokens=99999"),
        (
            {"stream_fault": "error_event"},
            {},
            Outcome.STREAM_ERROR,
            "EngineCore encountered an issue",
        ),
        (
            {"stream_fault": "error_event", "fault_after": 0},
            {},
            Outcome.STREAM_ERROR,
            "EngineCore encountered an issue",
        ),
        ({"stream_fault": "abort"}, {}, Outcome.STREAM_ERROR, "finish_reason abort"),
        ({"stream_fault": "cut"}, {}, Outcome.STREAM_ERROR, "broke off"),
        ({"stream_fault": "no_done"}, {}, Outcome.TRUNCATED, "[DONE]"),
        ({"stream_fault": "html"}, {}, Outcome.MALFORMED, "502 Bad Gateway"),
        ({"stream_fault": "malformed"}, {}, Outcome.MALFORMED, "not JSON"),
        ({"stream_fault": "empty"}, {}, Outcome.EMPTY, "no text"),
        ({"stream_fault": "null_content"}, {}, Outcome.EMPTY, "no text"),
    ],
)
async def test_what_a_server_does_becomes_an_outcome_with_a_sentence(
    standin: StandIn,
    canary: Canary,
    state: dict[str, Any],
    limits: dict[str, Any],
    outcome: Outcome,
    told: str | None,
) -> None:
    standin.set(state)
    result = await measured(canary, replace(COUNT, **limits))
    assert result.sample.outcome is outcome
    assert (told in (result.detail or "")) if told else result.detail is None


async def test_a_port_where_nobody_listens_is_refused(standin: StandIn, canary: Canary) -> None:
    before = await canary.page.read()
    await standin.stop()
    result = await canary.measure(SKY, Phase.WARM, before, None)
    assert (result.sample.outcome, result.after) == (Outcome.REFUSED, None)


async def test_an_engine_that_freezes_in_its_answer_is_hung_and_the_first_token_stays_measured(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.itl_s = 0.05
    soon(0.3, lambda: standin.set({"frozen": True}))
    sample = (await measured(canary, COUNT)).sample
    assert sample.outcome is Outcome.HUNG
    assert sample.ttft_ms is not None
    assert sample.output is not None


async def test_a_drip_without_end_is_ended_by_the_answers_limit(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.stream_fault = "endless_drip"
    sample = (await measured(canary, replace(COUNT, timeout_s=0.6))).sample
    assert sample.outcome is Outcome.TIMEOUT
    assert sample.ttft_ms is not None
    assert sample.e2e_ms is not None
    assert 600 <= sample.e2e_ms - sample.ttft_ms < 1500


async def test_a_queue_that_ends_before_max_wait_is_just_a_long_wait(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.queue_s = 0.6
    sample = (await measured(canary, replace(SKY, max_wait_s=3.0))).sample
    assert sample.outcome is Outcome.OK
    assert sample.ttft_ms is not None
    assert sample.ttft_ms >= 600


async def test_an_uncapped_probe_waits_as_long_as_the_engine_moves(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.queue_s = 0.8
    assert (await measured(canary, replace(SKY, max_wait_s=None))).sample.outcome is Outcome.OK


async def test_an_engine_that_moves_again_before_it_counts_as_hung_is_waited_for(
    standin: StandIn, canary: Canary
) -> None:
    canary.hang_after_s = 2.0
    standin.state.frozen = True
    soon(0.5, lambda: standin.set({"frozen": False}))
    sample = (await measured(canary, replace(SKY, max_wait_s=0.2))).sample
    assert sample.outcome in {Outcome.OK, Outcome.QUEUE_CAP}


async def test_a_cold_canary_has_no_max_wait_and_more_patience_for_a_still_engine(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.frozen = True
    soon(0.8, lambda: standin.set({"frozen": False}))
    sample = (await measured(canary, replace(SKY, max_wait_s=0.1), Phase.COLD)).sample
    assert (sample.outcome, sample.phase) == (Outcome.OK, Phase.COLD)


async def test_to_a_sleeping_server_nothing_is_sent(standin: StandIn, canary: Canary) -> None:
    standin.state.sleeping = True
    result = await measured(canary)
    assert standin.state.requests == []
    assert (result.marks, result.sample.ttft_ms, result.sample.e2e_ms) == (Marks(), None, None)


@pytest.mark.parametrize("fault", ["cut", "empty", "error_event"])
async def test_a_failure_is_a_result_and_is_never_sent_again(
    standin: StandIn, canary: Canary, fault: str
) -> None:
    standin.state.stream_fault = fault
    await measured(canary)
    assert len(standin.state.requests) == 1


async def test_a_sample_carries_who_was_measured_and_when(canary: Canary) -> None:
    now = datetime.now(UTC)
    sample = (
        await measured(canary, replace(SKY, priority=-1), Phase.IDLE, idle_before_s=12.5)
    ).sample
    assert (sample.target, sample.probe, sample.traffic_class, sample.priority) == (
        "local",
        "sky",
        "chat",
        -1,
    )
    assert (sample.phase, sample.idle_before_s) == (Phase.IDLE, 12.5)
    assert 0 <= (sample.started_at - now).total_seconds() < 2


async def test_a_good_sample_holds_times_tokens_and_text(standin: StandIn, canary: Canary) -> None:
    standin.state.ttft_s = 0.1
    sample = (await measured(canary, COUNT)).sample
    assert sample.output == standin.state.answers["Count from one to thirty in words."]
    assert (sample.finish_reason, sample.completion_tokens) == (
        "stop",
        31,
    )  # thirty words and the end-of-text token
    assert sample.prompt_tokens == len(standin._prompt({"messages": list(COUNT.messages or ())}))
    assert sample.ttft_ms is not None
    assert sample.ttft_ms >= 100
    assert sample.ttft_visible_ms == sample.ttft_ms
    assert sample.e2e_ms is not None
    assert sample.e2e_ms > sample.ttft_ms
    assert sample.connect_ms is not None
    assert sample.observer_lag_ms is not None
    assert sample.cached_tokens is None  # the server does not tell


@pytest.mark.parametrize("tokens_per_chunk", [1, 5])
async def test_the_decode_rate_is_of_tokens_however_many_come_in_a_chunk(
    standin: StandIn, canary: Canary, tokens_per_chunk: int
) -> None:
    standin.state.itl_s, standin.state.tokens_per_chunk = 0.02, tokens_per_chunk
    result = await measured(canary, COUNT)
    first, last = result.marks.first_token, result.marks.last_token
    assert first is not None
    assert last is not None
    assert result.sample.decode_tok_s == pytest.approx(30 / ((last - first) / 1e9))
    assert 25 < result.sample.decode_tok_s < 50
    assert len(result.answer.arrivals_ns) == 1 + 30 // tokens_per_chunk


async def test_a_short_answer_has_no_decode_rate(canary: Canary) -> None:
    assert (await measured(canary)).sample.decode_tok_s is None


async def test_a_broken_answer_has_no_decode_rate(standin: StandIn, canary: Canary) -> None:
    standin.state.stream_fault, standin.state.fault_after = "cut", 20
    sample = (await measured(canary, COUNT)).sample
    assert sample.completion_tokens == 20  # by their ids; usage never came
    assert sample.decode_tok_s is None


async def test_reasoning_comes_first_and_is_not_the_answer(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.reasoning_tokens, standin.state.itl_s = 10, 0.01
    sample = (await measured(canary, COUNT)).sample
    assert sample.ttft_ms is not None
    assert sample.ttft_visible_ms is not None
    assert sample.ttft_visible_ms > sample.ttft_ms + 50
    assert sample.output is not None
    assert sample.output.startswith(" eleven")


async def test_a_model_that_reasons_until_its_tokens_are_used_up_is_said_not_to_have_answered(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.reasoning_tokens = 99
    asked = replace(COUNT, max_tokens=8, expect=(Expectation(contains="thirty"),))
    result = await measured(canary, asked)
    assert (result.sample.outcome, result.sample.output, result.sample.ttft_visible_ms) == (
        Outcome.OK,
        None,
        None,
    )
    assert "still reasoning after 8 tokens" in (result.detail or "")
    assert (
        await measured(canary, replace(asked, expect=()))
    ).detail is None  # where only speed is asked for, nothing is missing
    standin.state.reasoning_tokens = 3
    assert (await measured(canary, asked)).detail is None  # it was answering


async def test_each_canary_has_a_salt_and_a_name_of_its_own(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.prompt_tokens_details = True
    long = replace(SKY, messages=({"role": "user", "content": "sing " * 40},))
    samples = [(await measured(canary, long)).sample for _ in range(2)]
    one, two = standin.state.requests
    assert one["cache_salt"] != two["cache_salt"]
    assert len(one["cache_salt"]) <= 128
    assert {sample.cached_tokens for sample in samples} == {0}
    assert standin.state.headers[0]["x-request-id"] != standin.state.headers[1]["x-request-id"]


async def test_a_completion_is_measured_like_a_chat(canary: Canary) -> None:
    plain = replace(
        SKY,
        endpoint="completions",
        messages=None,
        prompt="Translate to German: good morning",
        sampling={"logprobs": 3},
    )
    result = await measured(canary, plain)
    assert (result.sample.outcome, result.sample.output) == (Outcome.OK, "Guten Morgen")
    assert [entry.token for entry in result.answer.logprobs] == ["Guten", " Morgen", "</s>"]


async def test_the_servers_own_timing_is_taken_from_the_answer(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.per_request_metrics, standin.state.queue_s = True, 0.1
    sample = (await measured(canary)).sample
    assert sample.server_timing == "response"
    assert sample.queue_ms is not None
    assert sample.queue_ms >= 100


async def test_alone_the_timing_is_taken_from_the_metrics_page(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.ttft_s = 0.05
    sample = (await measured(canary)).sample
    assert sample.server_timing == "metrics"
    assert sample.queue_ms is not None
    assert sample.prefill_ms is not None
    assert sample.ttft_ms is not None
    assert 0 <= sample.queue_ms < 50
    assert 50 <= sample.prefill_ms < sample.ttft_ms
    assert (sample.other_prompt_tokens, sample.other_generation_tokens) == (0.0, 0.0)


async def test_when_another_request_finished_too_the_timing_is_unknown_and_its_tokens_are_counted(
    standin: StandIn, canary: Canary, http: httpx.AsyncClient
) -> None:
    standin.state.ttft_s = 0.15
    body = {
        "messages": [{"role": "user", "content": "Is the sky blue? Answer yes or no."}],
        "max_tokens": 64,
    }
    before = await canary.page.read()
    other = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    sample = (await canary.measure(COUNT, Phase.WARM, before, None)).sample
    usage = (await other).json()["usage"]
    assert (sample.server_timing, sample.queue_ms, sample.prefill_ms, sample.decode_ms) == (
        None,
        None,
        None,
        None,
    )
    assert sample.other_prompt_tokens == usage["prompt_tokens"]
    assert sample.other_generation_tokens == usage["completion_tokens"]


async def test_work_for_others_is_told_also_when_our_canary_got_no_token(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.queue_s, standin.state.other_running, standin.state.other_waiting = 30.0, 4, 7
    soon(0.1, lambda: standin.set({"other_generation_tokens": 500, "preemptions": 2}))
    sample = (await measured(canary, replace(SKY, max_wait_s=0.3))).sample
    assert sample.outcome is Outcome.QUEUE_CAP
    assert (sample.running, sample.waiting, sample.preemptions) == (4.0, 7.0, 2.0)
    assert sample.other_generation_tokens is not None
    assert sample.other_generation_tokens >= 500


async def test_a_restart_during_the_canary_leaves_the_growth_unknown(
    standin: StandIn, canary: Canary
) -> None:
    await measured(canary, COUNT)
    standin.state.ttft_s = 0.2
    soon(0.1, standin.restart)
    sample = (await measured(canary)).sample
    assert (sample.other_prompt_tokens, sample.other_generation_tokens, sample.server_timing) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize("status", [404, "garbage", "slow"])
async def test_without_a_metrics_page_the_answer_is_measured_and_the_load_is_unknown(
    standin: StandIn, canary: Canary, status: int | str
) -> None:
    standin.state.metrics_status = status
    canary.page = MetricsPage(canary.http, f"{standin.url}/metrics", timeout_s=0.1)
    started = time.monotonic()
    sample = (await measured(canary)).sample
    assert sample.outcome is Outcome.OK
    assert (
        sample.running,
        sample.other_prompt_tokens,
        sample.other_generation_tokens,
        sample.server_timing,
    ) == (None, None, None, None)
    assert time.monotonic() - started < 2


class LatePage:
    """A metrics page that shows the old counters once more after the answer."""

    def __init__(self, page: MetricsPage, stale: ServerPage) -> None:
        self.page, self.stale, self.reads = page, stale, 0

    async def read(self) -> ServerPage:
        self.reads += 1
        return self.stale if self.reads == 1 else await self.page.read()


async def test_a_page_that_lags_behind_the_answer_is_read_once_more(canary: Canary) -> None:
    before = await canary.page.read()
    canary.page = late = LatePage(canary.page, before)  # type: ignore[assignment]
    sample = (await canary.measure(SKY, Phase.WARM, before, None)).sample
    assert late.reads == 2
    assert (sample.server_timing, sample.other_generation_tokens) == ("metrics", 0.0)


class Gpus:
    """One GPU that gets warmer by five degrees."""

    def before(self, monotonic_ns: int) -> dict[str, GpuReading]:
        at = datetime.now(UTC)
        return {
            "GPU-a": GpuReading(at, monotonic_ns - 1_000_000, "GPU-a", temp_c=60.0, energy_j=100.0)
        }

    async def after(self, monotonic_ns: int, timeout_s: float = 0.5) -> dict[str, GpuReading]:
        at = datetime.now(UTC)
        return {
            "GPU-a": GpuReading(at, monotonic_ns + 1_000_000, "GPU-a", temp_c=65.0, energy_j=112.0)
        }


async def test_the_gpu_of_the_same_moment_is_in_the_sample(canary: Canary) -> None:
    canary.gpus = Gpus()
    sample = (await measured(canary)).sample
    assert (sample.gpu_uuid, sample.gpu_temp_c, sample.energy_j, sample.power_w) == (
        "GPU-a",
        65.0,
        12.0,
        None,
    )


async def test_without_a_watched_gpu_its_figures_are_unknown(canary: Canary) -> None:
    sample = (await measured(canary)).sample
    assert (sample.gpu_uuid, sample.gpu_temp_c, sample.energy_j) == (None, None, None)


async def test_a_cancelled_canary_leaves_no_task_behind_and_frees_the_server(
    standin: StandIn, canary: Canary
) -> None:
    standin.state.ttft_s = 30.0
    before = asyncio.all_tasks()
    running = asyncio.create_task(measured(canary))
    while not standin.counters.running:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(2):
        while standin.counters.running:
            await asyncio.sleep(0.01)
    assert [task for task in asyncio.all_tasks() - before if "standin" not in repr(task)] == []


async def test_a_capped_canary_is_taken_off_the_server(standin: StandIn, canary: Canary) -> None:
    standin.state.queue_s = 30.0
    await measured(canary, replace(SKY, max_wait_s=0.1))
    async with asyncio.timeout(2):
        while standin.counters.waiting:
            await asyncio.sleep(0.01)


async def test_holding_off_ends_when_the_server_has_dropped_the_request(
    standin: StandIn, canary: Canary
) -> None:
    started = time.monotonic()
    standin.state.other_waiting = 3
    soon(0.1, lambda: standin.set({"other_waiting": 2}))
    await canary.hold_off(3.0, limit_s=3.0)
    assert 0.1 <= time.monotonic() - started < 2.0


@pytest.mark.parametrize("state", [{"other_waiting": 3}, {"metrics_status": 500}])
async def test_holding_off_ends_at_its_limit_where_the_queue_does_not_fall(
    standin: StandIn, canary: Canary, state: dict[str, Any]
) -> None:
    standin.set(state)
    started = time.monotonic()
    await canary.hold_off(3.0, limit_s=0.3)
    assert 0.3 <= time.monotonic() - started < 1.5
