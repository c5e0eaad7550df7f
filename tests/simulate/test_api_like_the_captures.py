"""The simulated server answers as the real one did that was captured in tests/captures/vllm-0.32.0,
so that it cannot drift from it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest

from monitor.simulate.api.server import SimulatedServer

Client = httpx.AsyncClient
CAPTURES = Path(__file__).parent.parent / "captures" / "vllm-0.32.0"
SKY = "Is the sky blue? Answer yes or no."
INVOICE = "Extract the invoice as JSON: Invoice 1043 from Acme for 250.00 EUR due 2026-12-31."
MORNING = "<|user|>Translate to German: good morning<|assistant|>"


def captured(name: str) -> str:
    return (CAPTURES / name).read_text()


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
    """Keys in their order, and types, without the values. Keys that are tokens or their ids count
    as values.
    """
    if isinstance(value, dict):
        if (
            value
            and (name in {"top_logprobs", "prompt_logprobs"})
            and not value.keys() & {"token", "content"}
        ):
            return {"a token": shape(next(iter(value.values())))}
        return [(key, shape(item, key)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item, name) for item in [v for v in value if v is not None][:1]]
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


# -- streams


async def test_a_short_chat_answer(client: Client) -> None:
    text = (await client.post("/v1/chat/completions", json=chat(SKY))).text
    assert [shape(event) for event in events(text)] == [
        shape(event) for event in events(captured("chat_stream_short.sse"))
    ]
    # the end-of-text token counts, its chunk is empty
    assert events(text)[-2]["usage"]["completion_tokens"] == 2


async def test_a_chat_answer_with_log_probabilities(client: Client) -> None:
    text = (
        await client.post("/v1/chat/completions", json=chat(INVOICE, logprobs=True, top_logprobs=5))
    ).text
    assert order(text) == order(captured("chat_stream_logprobs.sse"))
    tops = [
        len(c["logprobs"]["content"][0]["top_logprobs"])
        for e in events(text)[1:-2]
        for c in e["choices"]
    ]
    assert set(tops) == {5}


async def test_running_usage(client: Client) -> None:
    body = chat(
        "Write a haiku about heat.",
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    text = (await client.post("/v1/chat/completions", json=body)).text
    assert order(text) == order(captured("chat_stream_continuous_usage.sse"))


async def test_a_plain_completion(client: Client) -> None:
    body = {
        "prompt": MORNING,
        "logprobs": 3,
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text = (await client.post("/v1/completions", json=body)).text
    real = events(captured("completions_stream.sse"))
    assert [shape(event) for event in events(text)] == [shape(event) for event in real]
    assert [c["text"] for e in events(text)[:-1] for c in e["choices"]] == [
        c["text"] for e in real[:-1] for c in e["choices"]
    ]
    offsets = [c["logprobs"]["text_offset"] for e in events(text)[:-1] for c in e["choices"]]
    assert offsets == [c["logprobs"]["text_offset"] for e in real[:-1] for c in e["choices"]]


async def test_log_probabilities_of_a_prompt(client: Client) -> None:
    body = {"prompt": f"{MORNING}Guten Morgen", "max_tokens": 1, "prompt_logprobs": 1}
    answer = (await client.post("/v1/completions", json=body)).json()
    real = json.loads(captured("completions_prompt_logprobs.json"))
    assert shape(answer) == shape(real)
    ours, theirs = (a["choices"][0]["prompt_logprobs"] for a in (answer, real))
    assert [place and len(place) for place in ours] == [place and len(place) for place in theirs]
    assert answer["usage"] == real["usage"]


async def test_an_engine_that_dies_in_mid_stream(server: SimulatedServer, client: Client) -> None:
    server.world.set("frozen", True)
    answer = asyncio.create_task(client.post("/v1/chat/completions", json=chat(SKY)))
    while server.world.engine.running == 0:
        await asyncio.sleep(0.01)
    server.world.set("dead", True)
    assert (await answer).text == captured("chat_stream_engine_killed.sse").rstrip("\n") + "\n\n"
    assert (await client.get("/health")).status_code == 503


# -- refusals and what the server is


@pytest.mark.parametrize(
    ("body", "status", "capture"),
    [
        (json.dumps(chat(SKY, model="nope")), 404, "err_404.json"),
        (json.dumps(chat(SKY, max_tokens=99999)), 400, "err_400_len.json"),
        (json.dumps({"messages": "x"}), 400, "err_400_field.json"),
        ('{"model":}', 400, "err_400_json.json"),
    ],
)
async def test_refusals_carry_the_captured_bodies(
    client: Client, body: str, status: int, capture: str
) -> None:
    response = await client.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()) == (status, json.loads(captured(capture)))


@pytest.mark.parametrize(
    ("path", "capture"), [("/version", "version.json"), ("/v1/models", "v1_models.json")]
)
async def test_what_the_server_is_has_the_captured_keys(
    client: Client, path: str, capture: str
) -> None:
    assert shape((await client.get(path)).json()) == shape(json.loads(captured(capture)))


async def test_tokenize_has_the_captured_keys_and_agrees_with_usage(client: Client) -> None:
    tokens = (await client.post("/tokenize", json={"messages": chat(SKY)["messages"]})).json()
    usage = events((await client.post("/v1/chat/completions", json=chat(SKY))).text)[-2]["usage"]
    real = json.loads(captured("tokenize.json"))
    assert shape(tokens) == shape(real)
    # <s>, user; assistant
    assert (tokens["tokens"][:2], tokens["tokens"][-1]) == (
        real["tokens"][:2],
        real["tokens"][-1],
    )
    assert tokens["count"] == len(tokens["tokens"]) == usage["prompt_tokens"]
    assert (await client.post("/detokenize", json={"tokens": tokens["tokens"]})).json() == {
        "prompt": f"<s><|user|>{SKY}<|assistant|>"
    }


# -- the metrics page


def families(text: str) -> dict[str, tuple[str, str]]:
    """Type and help by name, in the page's order."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    return {name: (kind, helps[name]) for name, kind in kinds.items()}


def rows(text: str) -> dict[str, list[str]]:
    """The label sets of each sample name in the page's order; values of labels that name a route or
    a model left out.
    """
    found: dict[str, list[str]] = {}
    values = re.compile(r'(handler|method|status|model_name|patchlevel|minor|version)="[^"]*"')
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels = re.match(r"([\w:]+)(?:\{(.*)\})? \S+$", line).groups()  # type: ignore[union-attr]
            found.setdefault(name, []).append(values.sub(r"\1", labels or ""))
    return found


async def worked(client: Client) -> str:
    """The page after both endpoints have answered and refused, as in the capture."""
    await client.post("/v1/chat/completions", json=chat(SKY))
    await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 3})
    return (await client.get("/metrics")).text


async def test_the_page_has_the_captured_families_in_their_order_with_type_and_help(
    client: Client,
) -> None:
    assert list(families(await worked(client)).items()) == list(
        families(captured("metrics_after_traffic.txt")).items()
    )


async def test_the_page_has_the_captured_samples_with_the_same_labels_and_edges(
    client: Client,
) -> None:
    ours, real = rows(await worked(client)), rows(captured("metrics_after_traffic.txt"))
    cache = "vllm:cache_config_info"
    assert ours.keys() == real.keys()
    core = [name for name in real if name.startswith("vllm:") and name != cache]
    assert {name: ours[name] for name in core} == {name: real[name] for name in core}
    others = [
        name for name in real if not name.startswith("vllm:") and not name.startswith("python_gc")
    ]
    assert {name: set(ours[name]) for name in others} == {name: set(real[name]) for name in others}
    assert re.findall(r'(\w+)="', ours[cache][0]) == re.findall(r'(\w+)="', real[cache][0])


async def test_with_several_api_servers_the_page_has_what_the_captured_one_had(
    server: SimulatedServer, client: Client
) -> None:
    server.world.set("api_servers", 2)
    ours, real = families(await worked(client)), families(captured("metrics_two_api_servers.txt"))
    assert {name: kind for name, (kind, _) in ours.items()} == {
        name: kind for name, (kind, _) in real.items()
    }


async def test_the_page_is_written_as_prometheus_client_writes_it(client: Client) -> None:
    page = await client.get("/metrics")
    assert page.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    starts = Counter(line.split(" ")[0] for line in page.text.splitlines())
    assert starts["#"] == 2 * len(families(page.text))
    assert re.search(r"^process_start_time_seconds 1\.\d+e\+09$", page.text, re.MULTILINE)
