"""Whatever is sent to the simulated server is answered or refused; nothing breaks it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.simulate.api.control import change
from monitor.simulate.api.server import SimulatedServer
from monitor.simulate.api.validation import ApiError, read_request
from monitor.simulate.assemble import make_world
from monitor.simulate.identity import Identity
from monitor.simulate.settings import SettingError
from monitor.simulate.world import World

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)
# fmt: off
FIELDS = [
    "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "stop", "stream",
    "stream_options", "n", "temperature",
    "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "cache_salt", "priority",
    "ignore_eos", "model",
    "add_special_tokens", "response_format",
]
# fmt: on


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4), st.booleans())
def test_any_body_is_read_or_refused(changes: dict[str, Any], chat: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "prompt": "hi",
        "max_tokens": 4,
        **changes,
    }
    try:
        ask = read_request(body, chat, {}, Identity(), "healthy")
    except ApiError as refused:
        assert 400 <= refused.status < 500
    else:
        assert 1 <= ask.limits.max_tokens <= 8192 - len(ask.prompt.ids)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(make_world(["h100"]).settable), ANYTHING)
def test_any_setting_is_taken_or_refused_and_the_server_still_answers(
    name: str, value: Any
) -> None:
    world = make_world(["h100"])
    try:
        change(world, {name: value})
    except ApiError as refused:
        assert refused.status == 400
    else:
        assert name in {"restart", "driver_version"} or "." in name or world.get(name) == value
    SimulatedServer(world)
    world.advance(5.0)


async def test_bodies_that_are_no_json_objects_are_refused(client: httpx.AsyncClient) -> None:
    for content in (
        b"",
        b"[1]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": "\\ud800", "max_tokens": 2}',
    ):
        response = await client.post(
            "/v1/completions", content=content, headers={"content-type": "application/json"}
        )
        assert response.status_code == (200 if b"ud800" in content else 400)
    assert (
        await client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    ).status_code == 400
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("frozn", True, "there is no setting 'frozn'"),
        ("frozen", "yes", "frozen cannot be 'yes': input should be a valid boolean"),
        ("block_size", 0, "block_size cannot be 0: input should be greater than or equal to 1"),
        ("gpu.cooling", 2.0, "there is no setting 'gpu.cooling'"),
        ("template", "rude", "input should be 'plain' or 'polite'"),
    ],
)
def test_a_wrong_setting_is_told_with_what_would_be_right(name: str, value: Any, said: str) -> None:
    with pytest.raises(SettingError, match=re.escape(said)):
        World().set(name, value)
