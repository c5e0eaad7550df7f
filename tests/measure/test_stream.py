"""The stream client against a stand-in and against servers that misbehave on the wire: marks,
outcomes, and nothing left behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from standin import StandIn

from monitor.config.values import Secret
from monitor.measure.stream import patience, sse
from monitor.measure.stream.client import MAX_ERROR_BODY, Stream, client, stream
from monitor.measure.stream.patience import Limits
from monitor.measure.stream.request import CanaryRequest
from monitor.model import Outcome

KEY = "sk-4f1d-never-shown"
SKY = "Is the sky blue? Answer yes or no."
COUNT = "Count from one to thirty in words."
SHORT = Limits(max_wait_s=5.0, hang_after_s=5.0, give_up_s=20.0, answer_s=20.0)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
ROLE = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
)
YES = b'data: {"choices":[{"index":0,"delta":{"content":"Yes"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def chat(prompt: str = SKY, **options: Any) -> CanaryRequest:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 64,
        "stream": True,
        "return_token_ids": True,
        **options,
    }
    return CanaryRequest(
        "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}, "canary-1"
    )


async def no_counter() -> float | None:
    return None


async def streamed(
    url: str,
    request: CanaryRequest | None = None,
    limits: Limits = SHORT,
    key: Secret | None = None,
) -> Stream:
    async with client(url, key) as http:
        return await stream(http, request or chat(), limits, None, no_counter)


@asynccontextmanager
async def server_that(reply: Callable[[asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """A server that reads a request and then does `reply`; the connection is closed after it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            await reply(writer)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def sending(*parts: bytes, every_s: float = 0.0) -> Callable[[asyncio.StreamWriter], Any]:
    async def reply(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(every_s)

    return reply


async def left_over(before: set[asyncio.Task[Any]]) -> list[str]:
    """Tasks of ours that are still there a moment later."""
    await asyncio.sleep(0.05)
    return [repr(task) for task in asyncio.all_tasks() - before if "standin" not in repr(task)]


async def test_the_marks_of_a_good_answer_come_in_their_order(standin: StandIn) -> None:
    result = await streamed(standin.url)
    m = result.marks
    marks = [
        m.connect_started,
        m.connected,
        m.sent,
        m.headers,
        m.first_event,
        m.first_token,
        m.first_visible,
        m.last_token,
        m.done,
    ]
    assert all(mark is not None for mark in marks)
    assert marks == sorted(marks, key=lambda mark: mark or 0)
    assert (result.outcome, result.http_status, result.detail) == (Outcome.OK, 200, None)
    assert result.answer.text == "Yes"


async def test_a_role_chunk_does_not_end_the_wait_for_the_first_token(standin: StandIn) -> None:
    standin.state.role_chunk_s, standin.state.ttft_s = 0.0, 0.3
    m = (await streamed(standin.url)).marks
    assert m.sent is not None
    assert m.first_event is not None
    assert (m.first_event - m.sent) / 1e6 < 200
    assert m.ttft_ms is not None
    assert m.ttft_ms >= 300


async def test_keep_alive_comments_are_no_events(standin: StandIn) -> None:
    standin.state.sse_keep_alive_s, standin.state.ttft_s = 0.02, 0.3
    result = await streamed(standin.url)
    assert result.outcome is Outcome.OK
    assert result.marks.first_event is not None
    assert result.marks.headers is not None
    assert (result.marks.first_event - result.marks.headers) / 1e6 > 200


async def test_reasoning_is_the_first_token_and_not_yet_visible(standin: StandIn) -> None:
    standin.state.reasoning_tokens, standin.state.itl_s = 5, 0.02
    result = await streamed(standin.url, chat(COUNT))
    assert result.marks.ttft_ms is not None
    assert result.marks.ttft_visible_ms is not None
    assert result.marks.ttft_visible_ms - result.marks.ttft_ms > 60
    assert (len(result.answer.reasoning.split()), result.answer.text.split()[0]) == (5, "six,")


async def test_a_tool_call_is_an_answer() -> None:
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    delta = json.dumps(
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    ).encode()
    finish = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    async with server_that(
        sending(HEAD, b"connection: close\r\n\r\n", ROLE, b"data: ", delta, b"\n\n", finish, DONE)
    ) as url:
        result = await streamed(url)
    assert (result.outcome, result.answer.tool_arguments) == (Outcome.OK, "look{}")
    assert result.marks.ttft_visible_ms is not None


async def test_every_canary_opens_a_connection_of_its_own(standin: StandIn) -> None:
    async with client(standin.url, None) as http:
        standin.state.http_status = (
            503  # read to its end, so that the connection could be used again
        )
        one = await stream(http, chat(), SHORT, None, no_counter)
        standin.state.http_status = 200
        two = await stream(http, chat(), SHORT, None, no_counter)
    assert (one.outcome, two.outcome) == (Outcome.REJECTED, Outcome.OK)
    assert one.marks.connect_ms is not None
    assert two.marks.connect_ms is not None


async def test_the_request_names_itself_and_asks_for_bytes_as_they_are(standin: StandIn) -> None:
    """A proxy that compresses would hold tokens back, and what is stamped would be its blocks."""
    await streamed(standin.url)
    headers = standin.state.headers[-1]
    assert headers["x-request-id"] == "canary-1"
    assert headers["accept-encoding"] == "identity"
    assert "authorization" not in headers


async def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert (await streamed(standin.url)).outcome is Outcome.OK


async def test_what_comes_after_done_is_not_waited_for() -> None:
    whole = HEAD + b"connection: close\r\n\r\n" + ROLE + YES + STOP + DONE
    async with server_that(sending(whole, b": still here\n\n", every_s=1.0)) as url:
        result = await streamed(url)
    assert result.outcome is Outcome.OK
    assert result.marks.e2e_ms is not None
    assert result.marks.e2e_ms < 500


@pytest.mark.parametrize(
    ("parts", "outcome", "told"),
    [
        ([ROLE, YES, STOP], Outcome.TRUNCATED, "[DONE]"),
        ([ROLE, YES, DONE], Outcome.TRUNCATED, "finish reason"),
        ([ROLE], Outcome.TRUNCATED, "finish reason"),
        ([], Outcome.TRUNCATED, "finish reason"),
        ([ROLE, STOP, DONE], Outcome.EMPTY, "no text"),
        ([ROLE, b'data: {"choices":[{"in\n\n', YES, STOP, DONE], Outcome.MALFORMED, "not JSON"),
        (
            [ROLE, YES, b'data: {"error":{"message":"out of memory"}}\n\n', DONE],
            Outcome.STREAM_ERROR,
            "out of memory",
        ),
        ([b'data: {"choices":5,"usage":[],"metrics":"x"}\n\n', YES, STOP, DONE], Outcome.OK, None),
        (
            [
                b'data: {"choices":[{"token_ids":5,"delta":{"tool_calls":7},'
                b'"logprobs":{"tokens":3}}]}\n\n',
                YES,
                STOP,
                DONE,
            ],
            Outcome.OK,
            None,
        ),
    ],
    ids=[
        "no done",
        "no finish",
        "role only",
        "nothing",
        "empty",
        "bad JSON",
        "error event",
        "odd chunk",
        "odd choice",
    ],
)
async def test_a_stream_that_ends_by_itself_is_judged_by_what_came(
    parts: list[bytes], outcome: Outcome, told: str | None
) -> None:
    async with server_that(sending(HEAD, b"connection: close\r\n\r\n", *parts)) as url:
        result = await streamed(url)
    assert result.outcome is outcome
    assert (told in (result.detail or "")) if told else result.detail is None


async def test_a_connection_that_breaks_in_the_stream_is_a_stream_error_with_what_had_come() -> (
    None
):
    chunked = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(ROLE + YES), ROLE + YES)
    async with server_that(sending(HEAD, chunked)) as url:
        result = await streamed(url)
    assert (result.outcome, result.answer.text) == (Outcome.STREAM_ERROR, "Yes")
    assert "broke off" in (result.detail or "")


async def test_a_reset_in_the_stream_is_a_stream_error() -> None:
    async def reply(writer: asyncio.StreamWriter) -> None:
        await sending(HEAD, b"connection: close\r\n\r\n", ROLE, YES, every_s=0.05)(writer)
        writer.transport.abort()

    async with server_that(reply) as url:
        result = await streamed(url)
    assert result.outcome in {Outcome.STREAM_ERROR, Outcome.TRUNCATED}
    assert result.answer.text == "Yes"


async def test_a_connection_closed_before_any_answer_is_refused() -> None:
    async with server_that(sending()) as url:
        result = await streamed(url)
    assert result.outcome is Outcome.REFUSED
    assert result.marks.sent is not None
    assert result.marks.headers is None


async def test_a_port_where_nobody_listens_is_refused_with_no_mark_but_the_attempt(
    standin: StandIn,
) -> None:
    await standin.stop()
    result = await streamed(standin.url)
    assert result.outcome is Outcome.REFUSED
    assert (
        result.marks.connected,
        result.marks.sent,
        result.marks.ttft_ms,
        result.marks.e2e_ms,
    ) == (None, None, None, None)
    assert "no connection" in (result.detail or "")


@pytest.mark.parametrize("kind", [b"text/html", b"application/json"])
async def test_an_answer_that_is_no_event_stream_is_malformed_and_its_text_is_told(
    kind: bytes,
) -> None:
    reply = sending(
        b"HTTP/1.1 200 OK\r\ncontent-type: "
        + kind
        + b"\r\nconnection: close\r\n\r\n<h1>Sign in</h1>"
    )
    async with server_that(reply) as url:
        result = await streamed(url)
    assert result.outcome is Outcome.MALFORMED
    assert kind.decode() in (result.detail or "")
    assert "Sign in" in (result.detail or "")


async def test_an_event_that_never_ends_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 10_000)
    async with server_that(
        sending(HEAD, b"connection: close\r\n\r\ndata: ", *[b"x" * 8000] * 4)
    ) as url:
        result = await streamed(url)
    assert result.outcome is Outcome.MALFORMED
    assert "larger than 10000 bytes" in (result.detail or "")


async def test_an_error_body_without_end_is_read_only_so_far() -> None:
    sent = 0

    async def reply(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 500 Oh\r\nconnection: close\r\n\r\n")
        while sent < 100 * MAX_ERROR_BODY:
            writer.write(b"x" * MAX_ERROR_BODY)
            sent += MAX_ERROR_BODY
            await writer.drain()

    async with server_that(reply) as url:
        result = await streamed(url)
    assert (result.outcome, result.http_status) == (Outcome.HTTP_ERROR, 500)
    assert sent < 100 * MAX_ERROR_BODY
    assert len(result.detail or "") < 500


async def test_a_detail_is_one_printable_line_whatever_the_server_sends() -> None:
    body = json.dumps({"error": {"message": "bad\n\x1b[31mred\x00 " + "x" * 1000}}).encode()
    async with server_that(sending(b"HTTP/1.1 400 No\r\nconnection: close\r\n\r\n" + body)) as url:
        detail = (await streamed(url)).detail or ""
    assert detail.startswith("HTTP 400: bad [31mred x")
    assert detail.isprintable()
    assert len(detail) < 400


async def test_a_blocked_loop_is_seen_as_lag_of_the_observer(standin: StandIn) -> None:
    standin.state.ttft_s = 0.1
    asyncio.get_running_loop().call_later(0.05, time.sleep, 0.15)
    result = await streamed(standin.url)
    assert result.observer_lag_ms is not None
    assert result.observer_lag_ms > 100


async def test_a_cancelled_canary_leaves_no_task_and_the_server_sees_it_go(
    standin: StandIn,
) -> None:
    standin.state.ttft_s = 30.0
    before = asyncio.all_tasks()
    async with client(standin.url, None) as http:
        canary = asyncio.create_task(stream(http, chat(), SHORT, None, no_counter))
        while not standin.counters.running:
            await asyncio.sleep(0.01)
        canary.cancel()
        with pytest.raises(asyncio.CancelledError):
            await canary
        async with asyncio.timeout(2):
            while standin.counters.running:
                await asyncio.sleep(0.01)
    assert await left_over(before) == []


@pytest.mark.parametrize("fault", [None, "cut", "html", "error_event"])
async def test_a_finished_canary_leaves_no_task(standin: StandIn, fault: str | None) -> None:
    standin.state.stream_fault = fault
    before = asyncio.all_tasks()
    await streamed(standin.url)
    assert await left_over(before) == []


async def test_a_wait_that_is_given_up_tells_why(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "READ_EVERY_S", 0.05)
    standin.state.frozen = True
    result = await streamed(standin.url, limits=Limits(max_wait_s=0.1))
    assert result.outcome is Outcome.TIMEOUT
    assert "no step counter" in (result.detail or "")


async def test_an_answer_that_is_cut_for_its_length_is_told_as_such(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "READ_EVERY_S", 0.05)
    standin.state.stream_fault = "endless_drip"
    result = await streamed(standin.url, limits=Limits(max_wait_s=1.0, answer_s=0.3))
    assert result.outcome is Outcome.TIMEOUT
    assert "0.3 s" in (result.detail or "")
    assert "counter" not in (result.detail or "")


async def test_the_key_goes_into_a_header_and_is_shown_nowhere(
    standin: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    standin.state.api_key = KEY
    good = await streamed(standin.url, key=Secret(KEY))
    standin.state.api_key = "another"
    refused = await streamed(standin.url, key=Secret(KEY))
    assert (good.outcome, refused.outcome) == (Outcome.OK, Outcome.HTTP_ERROR)
    assert standin.state.headers[-1]["authorization"] == f"Bearer {KEY}"
    assert not [
        text
        for text in (repr(good), repr(refused), repr(Secret(KEY)), str(Secret(KEY)), caplog.text)
        if KEY in text
    ]


async def test_a_key_that_no_header_can_carry_is_an_outcome_that_does_not_show_it(
    standin: StandIn,
) -> None:
    result = await streamed(standin.url, key=Secret(f"{KEY}\nsecond line"))
    assert result.outcome is Outcome.REFUSED
    assert "sk-4f1d" not in repr(result)
    assert "key" in (result.detail or "")


async def test_a_key_of_other_letters_is_sent_and_left_to_the_server(standin: StandIn) -> None:
    standin.state.api_key = KEY
    assert (await streamed(standin.url, key=Secret("schlüssel"))).http_status == 401
