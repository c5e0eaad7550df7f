"""The plain JSON endpoints, and how their failures read."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from standin import StandIn

from monitor.config.values import Secret
from monitor.measure.server import api
from monitor.measure.stream.client import client
from monitor.model import Probe

CAPTURES = Path(__file__).parents[1] / "captures" / "vllm-0.32.0"
KEY = "sk-4f1d-never-shown"
CHAT = Probe(
    name="sky",
    traffic_class="chat",
    endpoint="chat",
    messages=({"role": "user", "content": "Is the sky blue?"},),
    prompt=None,
    max_tokens=8,
    sampling={},
    every_s=60.0,
    cron=None,
    max_wait_s=2.0,
    timeout_s=30.0,
)


@pytest.fixture
async def http(standin: StandIn) -> AsyncIterator[httpx.AsyncClient]:
    async with client(standin.url, None) as http:
        yield http


def answering(body: Any, status: int = 200) -> httpx.AsyncClient:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content))
    return httpx.AsyncClient(base_url="http://server", transport=transport)


async def test_version_and_models_are_read(standin: StandIn, http: httpx.AsyncClient) -> None:
    standin.state.extra_models = [{"id": "lora-a", "root": "adapters/a", "parent": "tiny-canary"}]
    assert await api.version(http) == "0.32.0"
    base, lora = await api.models(http)
    assert base == api.ServedModel("tiny-canary", "models/tiny-canary", None, 4096)
    assert (base.is_base, lora.is_base) == (True, False)


async def test_the_gpus_of_two_calls_are_equal_though_the_server_dates_each_anew() -> None:
    first = json.loads((CAPTURES / "v1_models.json").read_text())
    second = json.loads(json.dumps(first))
    second["data"][0]["created"] += 5
    second["data"][0]["permission"][0]["id"] = "modelperm-other"
    async with answering(first) as one, answering(second) as other:
        assert await api.models(one) == await api.models(other)


async def test_a_prompt_has_the_length_that_the_server_will_see(
    standin: StandIn, http: httpx.AsyncClient
) -> None:
    chat = await api.prompt_length(http, CHAT, "tiny-canary")
    standin.state.template_salt = "You are kind."
    assert await api.prompt_length(http, CHAT, "tiny-canary") == chat + 3
    plain = replace(CHAT, endpoint="completions", messages=None, prompt="The sky is")
    assert await api.prompt_length(http, plain, "tiny-canary") == 4


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (api.models, {"object": "list"}),
        (api.models, []),
        (api.version, b"<html>login</html>"),
        (lambda http: api.tokenize(http, {}), {"tokens": [1]}),
    ],
    ids=["no list", "a list", "html", "no count"],
)
async def test_an_answer_of_another_shape_is_refused_with_a_sentence(
    call: Callable[..., Any], body: Any
) -> None:
    async with answering(body) as http:
        with pytest.raises(api.ServerRefusedError, match="answers"):
            await call(http)


async def test_a_version_that_is_not_told_is_unknown() -> None:
    async with answering({"v": 1}) as http:
        assert await api.version(http) is None


async def test_a_gpu_without_length_or_root_leaves_them_unknown() -> None:
    async with answering({"data": [{"id": "m"}, {"no": "id"}, "text"]}) as http:
        assert await api.models(http) == (api.ServedModel("m", None, None, None),)


async def test_a_missing_key_is_told_with_its_mend_and_as_the_users_to_mend(
    standin: StandIn, http: httpx.AsyncClient
) -> None:
    standin.state.api_key = KEY
    with pytest.raises(api.ServerRefusedError) as told:
        await api.models(http)
    assert str(told.value) == (
        "the server answered HTTP 401: Unauthorized; give the API key with api_key_env or "
        "api_key_file"
    )
    assert (told.value.status, told.value.exit_code) == (401, 2)


@pytest.mark.parametrize(
    ("status", "exit_code"), [(401, 2), (403, 2), (404, 2), (429, 3), (500, 3), (503, 3)]
)
async def test_what_the_user_can_mend_ends_with_2_and_the_rest_with_3(
    status: int, exit_code: int
) -> None:
    async with answering({"error": {"message": "no"}}, status) as http:
        with pytest.raises(api.ServerRefusedError) as told:
            await api.version(http)
    assert (told.value.status, told.value.exit_code) == (status, exit_code)


async def test_an_error_page_is_told_in_one_line() -> None:
    async with answering(b"<html>\n<h1>502 Bad Gateway</h1>\n</html>", 502) as http:
        with pytest.raises(
            api.ServerRefusedError,
            match=r"^the server answered HTTP 502: <html> <h1>502 Bad Gateway</h1> </html>$",
        ):
            await api.version(http)


async def test_a_server_that_is_gone_is_unreachable_at_its_address(
    standin: StandIn, http: httpx.AsyncClient
) -> None:
    await standin.stop()
    with pytest.raises(
        api.ServerUnreachableError, match=f"the server at {standin.url}.* cannot be reached"
    ) as told:
        await api.version(http)
    assert told.value.exit_code == 3


async def test_a_server_that_does_not_answer_is_given_up(unanswering: str) -> None:
    async with client(unanswering, None) as http:
        with pytest.raises(
            api.ServerUnreachableError, match=r"no answer to /version within 0\.2 s"
        ):
            await api.get_json(http, "/version", timeout_s=0.2)


@pytest.fixture
async def unanswering() -> AsyncIterator[str]:
    """The address of a server that listens and says nothing."""
    writers = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for writer in writers:
        writer.close()
    server.close()
    await server.wait_closed()


async def test_the_key_opens_the_api_and_is_shown_nowhere(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    standin.state.api_key = KEY
    async with client(standin.url, Secret(KEY)) as http:
        assert await api.models(http)
        shown = [repr(http), str(http), repr(http.headers), str(vars(http))]
        standin.state.api_key = "another"
        with pytest.raises(api.ServerRefusedError) as refused:
            await api.models(http)
        await standin.stop()
        with pytest.raises(api.ServerUnreachableError) as unreachable:
            await api.models(http)
    shown += [
        str(refused.value),
        repr(refused.value),
        str(unreachable.value),
        repr(unreachable.value),
        caplog.text,
    ]
    assert not [text for text in shown if KEY in text]


async def test_a_key_that_no_header_can_carry_fails_without_being_shown(standin: StandIn) -> None:
    async with client(standin.url, Secret(f"{KEY}\nsecond line")) as http:
        with pytest.raises(api.ServerUnreachableError, match="key") as told:
            await api.models(http)
    assert "sk-4f1d" not in str(told.value)
    assert told.value.__cause__ is None


# ---- what no server should send


@pytest.mark.parametrize(
    "body",
    [
        {"count": 3, "tokens": 5},
        {"count": 3, "tokens": None},
        {"count": 3, "tokens": [True, "1", 10**400, -1]},
        {"count": 3, "max_model_len": 10**400},
    ],
)
async def test_token_ids_of_another_shape_are_unknown(body: Any) -> None:
    async with answering(body) as http:
        assert await api.tokenize(http, {}) == api.Tokens(3, (), None)


@pytest.mark.parametrize("count", [True, -1, 10**400, "3", None])
async def test_a_count_that_is_none_is_refused(count: Any) -> None:
    async with answering({"count": count}) as http:
        with pytest.raises(api.ServerRefusedError, match="without a count"):
            await api.tokenize(http, {})


async def test_names_of_models_are_texts_that_can_be_kept() -> None:
    gpus = [
        {"id": {"a": 1}},
        {"id": None},
        {"id": "m\ud83d\x00", "root": ["x"], "max_model_len": 10**400},
    ]
    async with answering({"data": gpus}) as http:
        assert await api.models(http) == (api.ServedModel("m\ufffd\ufffd", None, None, None),)


async def test_a_servers_own_words_are_told_short_and_printable() -> None:
    async with answering({"error": {"message": "\x1b[2J\n" + "x" * 1_000_000}}, 500) as http:
        with pytest.raises(api.ServerRefusedError) as told:
            await api.version(http)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 400
    gpus = tuple(
        api.ServedModel(f"\x1b[2J{n}" + "x" * 1000, str(n), None, None) for n in range(1000)
    )
    with pytest.raises(api.SeveralModelsError) as several:
        api.the_one_model("http://server", gpus)
    assert str(several.value).isprintable()
    assert len(str(several.value)) < 2000


async def test_an_answer_that_drips_for_ever_is_given_up_when_its_time_is_over() -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=drip()))
    async with httpx.AsyncClient(base_url="http://server", transport=transport) as http:
        with pytest.raises(
            api.ServerUnreachableError, match=r"no answer to /version within 0\.2 s"
        ):
            await api.get_json(http, "/version", timeout_s=0.2)


async def test_an_answer_that_is_a_flood_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "LONGEST_BODY", 1 << 20)
    async with answering(b"[" + b"1," * (1 << 20)) as http:
        with pytest.raises(api.ServerRefusedError, match="more than 1 MiB"):
            await api.version(http)
