"""What is sent for one canary."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from monitor.measure.stream.request import canary_request, tokenize_body
from monitor.model import Probe

CHAT = Probe(
    name="sky",
    traffic_class="chat",
    endpoint="chat",
    messages=({"role": "user", "content": "Is the sky blue?"},),
    prompt=None,
    max_tokens=8,
    sampling={"temperature": 0.0, "seed": 7, "logprobs": 5},
    every_s=60.0,
    cron=None,
    max_wait_s=2.0,
    timeout_s=30.0,
)
PLAIN = replace(CHAT, endpoint="completions", messages=None, prompt="The sky is")


def test_a_chat_asks_for_a_stream_with_usage_and_token_ids_at_the_probes_settings() -> None:
    request = canary_request(CHAT, "tiny", "canary-1", "salt-1")
    assert (request.path, request.request_id) == ("/v1/chat/completions", "canary-1")
    assert request.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Is the sky blue?"}],
        "max_tokens": 8,
        "temperature": 0.0,
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "cache_salt": "salt-1",
    }


def test_a_completion_has_a_prompt_and_its_own_way_to_ask_for_log_probabilities() -> None:
    request = canary_request(PLAIN, "tiny", "canary-1", "salt-1")
    assert request.path == "/v1/completions"
    assert (request.body["prompt"], request.body["logprobs"]) == ("The sky is", 5)
    assert not {"messages", "top_logprobs"} & set(request.body)


@pytest.mark.parametrize("probe", [CHAT, PLAIN])
def test_what_a_probe_does_not_set_is_not_sent(probe: Probe) -> None:
    body = canary_request(replace(probe, sampling={}), None, "canary-1", "salt-1").body
    assert not {"model", "priority", "logprobs", "top_logprobs"} & set(body)


def test_no_alternatives_are_asked_for_as_such_and_not_left_out() -> None:
    body = canary_request(replace(CHAT, sampling={"logprobs": 0}), None, "r", "s").body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 0)


def test_a_priority_of_zero_is_sent() -> None:
    assert canary_request(replace(CHAT, priority=0), None, "r", "s").body["priority"] == 0


def test_the_request_is_json_and_shares_nothing_with_the_probe() -> None:
    body = canary_request(CHAT, "tiny", "r", "s").body
    assert json.loads(json.dumps(body)) == body
    body["messages"][0]["content"] = "changed"
    body["temperature"] = 1.0
    assert CHAT.messages is not None
    assert (CHAT.messages[0]["content"], CHAT.sampling["temperature"]) == ("Is the sky blue?", 0.0)


def test_a_prompt_is_counted_through_the_template_settings_it_is_sent_with() -> None:
    kwargs = {"enable_thinking": False}
    body = tokenize_body(
        replace(CHAT, sampling={"chat_template_kwargs": kwargs, "seed": 1}), "tiny"
    )
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Is the sky blue?"}],
        "chat_template_kwargs": kwargs,
    }
    assert tokenize_body(PLAIN, None) == {"prompt": "The sky is"}
