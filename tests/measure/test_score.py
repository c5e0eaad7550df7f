"""The pinned answer scored by a server that gave another one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from histories import a_probe

from monitor.measure.score import MOST_TOKENS, score, scored_tokens
from monitor.measure.server.api import ServerRefusedError, ServerUnreachableError
from monitor.model import PinnedOutput

CAPTURE = (
    Path(__file__).parent.parent / "captures" / "vllm-0.32.0" / "completions_prompt_logprobs.json"
)
PROMPT = [1, 3, 640, 421, 656, 31, 661, 662, 4]
GUTEN_MORGEN = PinnedOutput(
    "Guten Morgen", ("Guten", " Morgen"), (633, 657), (-0.002, -0.0018), "stop"
)
PROBE = a_probe(sampling={"logprobs": 5})


class Server:
    """Tokenises to PROMPT and scores as the capture does; remembers what it was asked."""

    def __init__(self, answer: Any = None, status: int = 200, prompt: list[int] = PROMPT) -> None:
        self.answer = json.loads(CAPTURE.read_text()) if answer is None else answer
        self.status, self.prompt = status, prompt
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if request.url.path == "/tokenize":
            return httpx.Response(
                200, json={"count": len(self.prompt), "tokens": self.prompt, "max_model_len": 1024}
            )
        self.asked.append(body)
        return httpx.Response(self.status, json=self.answer)

    @property
    def http(self) -> httpx.AsyncClient:
        """A client of it."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://server")


async def test_the_pinned_answer_is_sent_after_the_prompt_and_its_tokens_come_back_scored() -> None:
    server = Server()
    async with server.http as http:
        found = await score(http, PROBE, "tiny", GUTEN_MORGEN)
    assert found is not None
    assert [(t.token, round(t.logprob or 0, 5)) for t in found.answer.tokens] == [
        ("Guten", -0.00204),
        (" Morgen", -0.00177),
    ]
    assert found.tokens == len(PROMPT) + 2 + 1
    [body] = server.asked
    assert body["prompt"] == [*PROMPT, 633, 657]
    assert (body["max_tokens"], body["prompt_logprobs"], body["model"]) == (1, 5, "tiny")
    assert "stream" not in body  # vLLM refuses prompt_logprobs in a stream
    assert len(body["cache_salt"]) == 32


def test_what_else_could_have_come_stands_beside_the_token_and_never_the_token_itself() -> None:
    good, bad = (
        {"logprob": -3.0, "rank": 2, "decoded_token": " good"},
        {"logprob": -0.1, "rank": 1, "decoded_token": " bad"},
    )
    entries = [None, {"7": good, "9": bad}]
    [token] = scored_tokens(
        {"choices": [{"prompt_logprobs": entries}]},
        PinnedOutput(" good", (" good",), (7,), (-2.0,), "stop"),
        1,
    )
    assert (token.token, token.logprob, dict(token.top)) == (" good", -3.0, {" bad": -0.1})


async def test_a_pin_without_token_ids_and_one_that_is_too_long_are_not_asked_for() -> None:
    server = Server()
    long = Server(prompt=[5] * MOST_TOKENS)
    async with server.http as http, long.http as other:
        assert await score(http, PROBE, "tiny", replace(GUTEN_MORGEN, token_ids=())) is None
        assert await score(other, PROBE, "tiny", GUTEN_MORGEN) is None
    assert server.asked == long.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"prompt_logprobs": None}]},
        {"choices": [{"prompt_logprobs": [None] * 3}]},
        [],
    ],
)
async def test_an_answer_without_the_scores_is_refused_in_words(answer: Any) -> None:
    async with Server(answer).http as http:
        with pytest.raises(ServerRefusedError, match="cannot be scored"):
            await score(http, PROBE, "tiny", GUTEN_MORGEN)


async def test_a_place_that_makes_no_sense_is_unknown_and_not_0() -> None:
    entries = [None] * len(PROMPT) + [{"633": {"logprob": "x"}}, 17]
    async with Server({"choices": [{"prompt_logprobs": entries}]}).http as http:
        found = await score(http, PROBE, "tiny", GUTEN_MORGEN)
    assert found is not None
    assert [t.logprob for t in found.answer.tokens] == [None, None]


async def test_a_server_that_says_no_or_is_not_there_is_told() -> None:
    async with Server({"error": {"message": "no"}}, status=400).http as http:
        with pytest.raises(ServerRefusedError):
            await score(http, PROBE, "tiny", GUTEN_MORGEN)
    async with httpx.AsyncClient(base_url="http://127.0.0.1:9") as http:
        with pytest.raises(ServerUnreachableError):
            await score(http, PROBE, "tiny", GUTEN_MORGEN)
