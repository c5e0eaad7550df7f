"""The stand-in answers as the real server did that was captured in tests/captures/vllm-0.32.0."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
import standin as standin_module
from standin import FAULTS, StandIn

Client = httpx.AsyncClient
CAPTURES = Path(__file__).parent / "captures" / "vllm-0.32.0"
SKY = "Is the sky blue? Answer yes or no."
INVOICE = "Extract the invoice as JSON: Invoice 1043 from Acme for 250.00 EUR due 2026-12-31."


@pytest.fixture
async def client(standin: StandIn) -> AsyncIterator[httpx.AsyncClient]:
    standin.state.ttft_s = standin.state.itl_s = 0.001
    async with httpx.AsyncClient(base_url=standin.url, timeout=10) as client:
        yield client


def chat(prompt: str, **options: Any) -> dict[str, Any]:
    options = {
        "stream": True,
        "max_tokens": 64,
        "stream_options": {"include_usage": True},
        **options,
    }
    return {
        "model": "tiny-canary",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        **options,
    }


def events(text: str) -> list[Any]:
    """The data of a stream: objects, and the closing [DONE] as text."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(item) if item.startswith("{") else item for item in data]


def shape(value: Any, name: str = "") -> Any:
    """Keys and types without the values; tokens as keys (log-probabilities of completions) count as
    values.
    """
    if isinstance(value, dict):
        return (
            {"token": "number"}
            if name == "top_logprobs" and "token" not in value
            else {key: shape(item, key) for key, item in value.items()}
        )
    if isinstance(value, list):
        return [shape(item, name) for item in value[:1]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return (
        value
        if name in {"role", "object", "finish_reason"} or value in (None, "[DONE]")
        else type(value).__name__
    )


def order(text: str) -> list[Any]:
    """The shapes of a stream's events in their order, repeated ones once."""
    return [key for key, _ in groupby(shape(event) for event in events(text))]


async def metrics(client: Client) -> dict[str, float]:
    """Values of /metrics by name, summed over labels."""
    values: dict[str, float] = {}
    for line in (await client.get("/metrics")).text.splitlines():
        if not line.startswith("#"):
            name, value = re.split(r"[{ ]", line)[0], float(line.rsplit(" ", 1)[1])
            values[name] = values.get(name, 0) + value
    return values


async def test_a_short_chat_answer_has_the_events_and_keys_of_the_captured_one(
    standin: StandIn, client: Client
) -> None:
    standin.state.per_request_metrics = standin.state.prompt_tokens_details = True
    text = (await client.post("/v1/chat/completions", json=chat(SKY))).text
    captured = (CAPTURES / "chat_stream_short.sse").read_text()
    assert [shape(event) for event in events(text)] == [shape(event) for event in events(captured)]
    assert (
        events(text)[-2]["usage"]["completion_tokens"] == 2
    )  # the end-of-text token counts, its chunk is empty


async def test_a_chat_answer_with_log_probabilities_has_the_events_and_keys_of_the_captured_one(
    standin: StandIn, client: Client
) -> None:
    standin.state.per_request_metrics = standin.state.prompt_tokens_details = True
    text = (
        await client.post("/v1/chat/completions", json=chat(INVOICE, logprobs=True, top_logprobs=5))
    ).text
    assert order(text) == order((CAPTURES / "chat_stream_logprobs.sse").read_text())


async def test_running_usage_has_the_events_and_keys_of_the_captured_one(
    standin: StandIn, client: Client
) -> None:
    body = chat(
        "Write a haiku about heat.",
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    standin.state.per_request_metrics = standin.state.prompt_tokens_details = True
    text = (await client.post("/v1/chat/completions", json=body)).text
    assert order(text) == order((CAPTURES / "chat_stream_continuous_usage.sse").read_text())


async def test_a_plain_completion_has_the_events_and_keys_of_the_captured_one(
    standin: StandIn, client: Client
) -> None:
    standin.state.per_request_metrics = standin.state.prompt_tokens_details = True
    body = {
        "prompt": "Translate to German: good morning",
        "logprobs": 3,
        "max_tokens": 8,
        "stream": True,
    }
    text = (
        await client.post(
            "/v1/completions", json=body | {"stream_options": {"include_usage": True}}
        )
    ).text
    captured = (CAPTURES / "completions_stream.sse").read_text()
    assert [shape(event) for event in events(text)] == [shape(event) for event in events(captured)]


async def test_an_engine_that_dies_says_what_the_captured_one_said(
    standin: StandIn, client: Client
) -> None:
    standin.state.stream_fault, standin.state.fault_after = "error_event", 0
    text = (await client.post("/v1/chat/completions", json=chat(SKY))).text
    assert events(text) == events((CAPTURES / "chat_stream_engine_killed.sse").read_text())


@pytest.mark.parametrize(
    ("body", "status", "capture"),
    [
        (chat(SKY, model="nope"), 404, "err_404.json"),
        (chat(SKY, max_tokens=99999), 400, "err_400_len.json"),
    ],
)
async def test_refusals_carry_the_captured_bodies(
    standin: StandIn, client: Client, body: dict[str, Any], status: int, capture: str
) -> None:
    standin.state.max_model_len = 1024
    response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()) == (
        status,
        json.loads((CAPTURES / capture).read_text()),
    )


@pytest.mark.parametrize(
    ("path", "capture"), [("/version", "version.json"), ("/v1/models", "v1_models.json")]
)
async def test_what_the_server_is_has_the_captured_keys(
    client: Client, path: str, capture: str
) -> None:
    assert shape((await client.get(path)).json()) == shape(
        json.loads((CAPTURES / capture).read_text())
    )


async def test_every_metric_exists_in_the_captured_page_with_its_type_and_labels(
    client: Client,
) -> None:
    def families(text: str) -> dict[str, tuple[str, set[str]]]:
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        rows = re.findall(
            r"^([\w:]+?)(?:_bucket|_count|_sum)?(?:\{(.*)\})? \S+$", text, re.MULTILINE
        )
        labels = {name: set(re.findall(r'(\w+)="', inner)) - {"le"} for name, inner in rows}
        return {name: (kind, labels.get(name, set())) for name, kind in kinds.items()}

    ours = families((await client.get("/metrics")).text)
    real = families((CAPTURES / "metrics_after_traffic.txt").read_text())
    cache = "vllm:cache_config_info"
    assert ours.keys() <= real.keys()
    assert {n: v for n, v in ours.items() if n != cache} == {n: real[n] for n in ours if n != cache}
    assert (
        ours[cache][1] <= real[cache][1]
    )  # labels of the caches that a monitor never reads are left out


async def test_counters_tell_what_a_request_did(client: Client) -> None:
    before = await metrics(client)
    usage = events((await client.post("/v1/chat/completions", json=chat(SKY))).text)[-2]["usage"]
    after = await metrics(client)
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert moved["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
    assert moved["vllm:generation_tokens_total"] == moved["vllm:iteration_tokens_total_count"] == 2
    assert (
        moved["vllm:request_success_total"] == moved["vllm:request_queue_time_seconds_count"] == 1
    )


async def test_another_template_and_another_length_show_in_tokenize(
    standin: StandIn, client: Client
) -> None:
    body = {"messages": [{"role": "user", "content": SKY}]}
    before = (await client.post("/tokenize", json=body)).json()
    standin.state.template_salt, standin.state.max_model_len = "You are kind.", 2048
    after = (await client.post("/tokenize", json=body)).json()
    assert shape(before) == shape(json.loads((CAPTURES / "tokenize.json").read_text()))
    assert before["tokens"] != after["tokens"]
    assert (before["max_model_len"], after["max_model_len"]) == (4096, 2048)


async def test_a_frozen_engine_sends_nothing_while_health_stays_good_and_goes_on_when_it_thaws(
    standin: StandIn, client: Client
) -> None:
    standin.state.frozen = True
    answer = asyncio.create_task(client.post("/v1/chat/completions", json=chat(SKY)))
    await asyncio.sleep(0.2)
    assert not answer.done()
    assert (await client.get("/health")).status_code == 200
    assert (await metrics(client))["vllm:iteration_tokens_total_count"] == 0
    standin.state.frozen = False
    assert events((await answer).text)[-1] == "[DONE]"


async def test_a_queue_shows_a_waiting_request_while_the_steps_move(
    standin: StandIn, client: Client
) -> None:
    standin.state.queue_s = 0.4
    answer = asyncio.create_task(client.post("/v1/chat/completions", json=chat(SKY)))
    await asyncio.sleep(0.2)
    page = await metrics(client)
    assert page["vllm:num_requests_waiting"] == 1
    assert page["vllm:iteration_tokens_total_count"] > 3
    await answer
    assert (await metrics(client))["vllm:request_queue_time_seconds_sum"] == pytest.approx(
        0.4, abs=0.1
    )


async def test_a_client_that_leaves_is_counted_as_no_success(
    standin: StandIn, client: Client
) -> None:
    standin.state.itl_s = 0.05
    async with client.stream("POST", "/v1/chat/completions", json=chat(INVOICE)) as response:
        await anext(response.aiter_lines())
    await asyncio.sleep(0.2)
    page = await metrics(client)
    assert page["vllm:num_requests_running"] == page["vllm:request_success_total"] == 0
    assert page["vllm:prompt_tokens_total"] > 0


async def test_a_new_process_start_begins_all_counters_anew(
    standin: StandIn, client: Client
) -> None:
    await client.post("/v1/chat/completions", json=chat(SKY))
    standin.restart(max_model_len=2048)
    page = await metrics(client)
    assert page["vllm:generation_tokens_total"] == 0
    assert page["process_start_time_seconds"] == pytest.approx(standin.state.process_start)


async def test_chunks_may_hold_several_tokens_with_the_first_one_alone(
    standin: StandIn, client: Client
) -> None:
    standin.state.tokens_per_chunk = 3
    text = (
        await client.post(
            "/v1/chat/completions", json=chat(INVOICE, max_tokens=8, return_token_ids=True)
        )
    ).text
    chunks = [choice["token_ids"] for event in events(text)[1:-1] for choice in event["choices"]]
    assert [len(ids) for ids in chunks] == [1, 3, 3, 1]  # as vLLM with --stream-interval 3


async def test_the_same_salt_finds_the_prefix_in_the_cache_and_a_new_one_does_not(
    standin: StandIn, client: Client
) -> None:
    standin.state.prompt_tokens_details = True
    cached = []
    for salt in ("a", "a", "b"):
        text = (
            await client.post("/v1/chat/completions", json=chat(INVOICE * 3, cache_salt=salt))
        ).text
        cached.append(events(text)[-2]["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 32, 0]


@pytest.mark.parametrize("fault", sorted({*FAULTS} - {"endless_drip", "null_content", "no_done"}))
async def test_no_faulty_stream_looks_like_a_good_answer(
    standin: StandIn, client: Client, fault: str
) -> None:
    standin.state.stream_fault = fault
    lines = []
    try:
        async with client.stream("POST", "/v1/chat/completions", json=chat(INVOICE)) as response:
            lines = [line async for line in response.aiter_lines()]
    except httpx.RemoteProtocolError:
        assert fault == "cut"
    good = [
        line
        for line in lines
        if '"finish_reason":"stop"' in line or '"finish_reason":"length"' in line
    ]
    text = re.findall(r'"content":"([^"]+)"', "\n".join(lines))
    assert not (good and text)


async def test_a_drip_without_end_goes_on_beyond_the_answer_without_an_end(
    standin: StandIn, client: Client
) -> None:
    standin.state.stream_fault, standin.state.itl_s = "endless_drip", 0.001
    lines: list[str] = []
    async with client.stream("POST", "/v1/chat/completions", json=chat(INVOICE)) as response:
        async for line in response.aiter_lines():
            lines += [line] if line else []
            if len(lines) >= 200:
                break
    assert all('"finish_reason":null' in line for line in lines)


async def test_a_key_is_asked_for_under_v1_only(standin: StandIn, client: Client) -> None:
    standin.state.api_key = "secret"
    refused = await client.get("/v1/models")
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert (await client.get("/metrics")).status_code == 200
    assert (
        await client.get("/v1/models", headers={"Authorization": "Bearer secret"})
    ).status_code == 200


async def test_a_stopped_server_refuses_and_comes_back_on_its_port(
    standin: StandIn, client: Client
) -> None:
    await standin.stop()
    with pytest.raises(httpx.ConnectError):
        await client.get("/health")
    await standin.start()
    assert (await client.get("/health")).status_code == 200


async def test_as_a_program_it_tells_its_port_obeys_the_control_and_ends_on_sigterm(
    tmp_path: Path,
) -> None:
    file = tmp_path / "port"
    options = ["--port-file", str(file), "--max-model-len", "1234", "--set", 'version="0.31.0"']
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", standin_module.__file__, *options
    )
    try:
        async with asyncio.timeout(20):
            while not file.exists():
                await asyncio.sleep(0.05)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{file.read_text().strip()}"
        ) as client:
            assert (await client.get("/version")).json() == {"version": "0.31.0"}
            assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] == 1234
            assert (await client.post("/-/control", json={"max_model_len": 512})).status_code == 200
            assert (await client.get("/-/control")).json()["max_model_len"] == 512
            assert (await client.post("/-/control", json={"no_such_field": 1})).status_code == 400
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
