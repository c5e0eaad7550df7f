"""What an answer says, and when each of its tokens came, from the chunks of a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.measure.json_values import error_message, number, shortened
from monitor.measure.stream.answer import LONGEST_ANSWER, Answer, AnswerReader, observed
from monitor.model import TokenLogprob

CAPTURES = Path(__file__).parents[1] / "captures" / "vllm-0.32.0"
ROLE = {"role": "assistant", "content": ""}


def chunk(delta: Any = None, **fields: Any) -> dict[str, Any]:
    """One chunk of a chat; `usage` beside the choices, everything else inside."""
    usage = fields.pop("usage", None)
    choice = {"index": 0, "delta": delta, "finish_reason": None, **fields}
    return {"choices": [choice], **({} if usage is None else {"usage": usage})}


def usage(completion: int, **fields: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": completion, **fields}}


def read(*chunks: Any) -> Answer:
    """The answer whose nth chunk arrives at n."""
    reader = AnswerReader()
    for n, item in enumerate(chunks, 1):
        reader.event(item.encode() if isinstance(item, str) else json.dumps(item).encode(), n)
    return reader.close()


def test_the_role_chunk_is_the_first_event_and_not_the_first_token() -> None:
    answer = read(chunk(ROLE), chunk({"content": "Yes"}))
    assert (answer.first_event_ns, answer.first_token_ns, answer.first_visible_ns) == (1, 2, 2)
    assert answer.arrivals_ns == [2]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_under_either_name_is_a_token_but_not_a_visible_one(name: str) -> None:
    answer = read(
        chunk(ROLE), chunk({name: "Hm. "}), chunk({name: "So"}), chunk({"content": "Yes"})
    )
    assert (answer.first_token_ns, answer.first_visible_ns) == (2, 4)
    assert (answer.reasoning, answer.text) == ("Hm. So", "Yes")


def test_an_answer_of_reasoning_only_never_becomes_visible() -> None:
    answer = read(chunk({"reasoning": "Hm"}), chunk({"content": ""}, finish_reason="length"))
    assert (answer.first_token_ns, answer.first_visible_ns) == (1, None)


def test_a_tool_call_is_a_visible_token_also_before_it_has_arguments() -> None:
    call = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": ""},
    }
    answer = read(
        chunk(ROLE),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}),
    )
    assert (answer.first_token_ns, answer.first_visible_ns, answer.last_token_ns) == (2, 2, 3)
    assert answer.tool_arguments == 'look{"a":1}'


@pytest.mark.parametrize(
    "delta", [{"content": None}, {}, None, {"tool_calls": []}, {"content": ""}]
)
def test_a_chunk_that_says_nothing_is_no_token(delta: Any) -> None:
    answer = read(chunk(ROLE), chunk(delta))
    assert (answer.first_token_ns, answer.last_token_ns, answer.text) == (None, None, "")


def test_the_empty_chunk_of_an_end_of_text_stop_carries_the_last_token() -> None:
    answer = read(chunk({"content": "Yes"}), chunk({"content": ""}, finish_reason="stop"), usage(2))
    assert (answer.last_token_ns, answer.finish_reason) == (2, "stop")


def test_the_empty_chunk_of_a_length_stop_carries_none() -> None:
    answer = read(
        chunk({"content": "Yes"}), chunk({"content": ""}, finish_reason="length"), usage(1)
    )
    assert (answer.last_token_ns, answer.finish_reason) == (1, "length")


def test_usage_without_choices_moves_no_mark() -> None:
    answer = read(chunk({"content": "Yes"}), usage(1))
    assert answer.last_token_ns == 1


def test_the_tokens_of_the_first_chunk_are_told_by_its_ids() -> None:
    answer = read(
        chunk({"content": "one two three"}, token_ids=[5, 6, 7]),
        chunk({"content": " four"}, token_ids=[8]),
        usage(4),
    )
    assert (answer.tokens_at_first, answer.token_ids) == (3, [5, 6, 7, 8])


def test_ids_that_came_before_the_first_text_count_into_the_first_chunk() -> None:
    answer = read(chunk({"content": ""}, token_ids=[5]), chunk({"content": "🐤"}, token_ids=[6]))
    assert (answer.first_token_ns, answer.tokens_at_first) == (2, 2)


def test_the_tokens_of_the_first_chunk_are_told_by_its_log_probabilities() -> None:
    entries = [{"token": t, "logprob": -0.1, "top_logprobs": []} for t in ("a", "b")]
    assert (
        read(chunk({"content": "ab"}, logprobs={"content": entries}), usage(9)).tokens_at_first == 2
    )


def test_the_tokens_of_the_first_chunk_are_told_by_running_usage() -> None:
    told = {"prompt_tokens": 9, "completion_tokens": 2}
    assert (
        read(
            chunk(ROLE, usage={"prompt_tokens": 9, "completion_tokens": 0}),
            chunk({"content": "ab"}, usage=told),
        ).tokens_at_first
        == 2
    )


def test_running_usage_of_a_real_server_tells_one_token_in_the_first_chunk_and_all_at_the_end() -> (
    None
):
    lines = (CAPTURES / "chat_stream_continuous_usage.sse").read_text().split("\n\n")
    answer = read(*(line.removeprefix("data: ") for line in lines if line))
    assert (answer.tokens_at_first, answer.completion_tokens, answer.tokens_received) == (1, 19, 19)


def test_one_token_a_chunk_is_proved_where_chunks_are_as_many_as_tokens() -> None:
    answer = read(
        chunk(ROLE),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk({}, finish_reason="stop"),
        usage(3),
    )
    assert answer.tokens_at_first == 1


def test_how_many_tokens_the_first_chunk_held_stays_unknown_where_nothing_tells() -> None:
    assert (
        read(chunk({"content": "a b c"}), chunk({"content": " d"}), usage(4)).tokens_at_first
        is None
    )
    assert read(chunk({"content": "a"}), chunk({"content": "b"})).tokens_at_first is None


def test_without_usage_tokens_are_counted_by_their_ids_and_never_by_chunks() -> None:
    assert (
        read(
            chunk({"content": "a b"}, token_ids=[1, 2]), chunk({"content": " c"}, token_ids=[3])
        ).tokens_received
        == 3
    )
    assert read(chunk({"content": "a"}), chunk({"content": "b"})).tokens_received is None


def test_only_the_first_of_several_choices_is_read() -> None:
    other = {
        "choices": [
            {"index": 1, "delta": {"content": "No"}},
            {"index": 0, "delta": {"content": "Yes"}},
        ]
    }
    assert read(other).text == "Yes"


def test_cached_tokens_are_unknown_where_the_server_does_not_tell_them() -> None:
    assert read(usage(1)).cached_tokens is None
    assert read(usage(1, prompt_tokens_details={"cached_tokens": 0})).cached_tokens == 0


def test_both_endpoints_give_log_probabilities_of_one_shape() -> None:
    top = {
        "token": "a",
        "logprob": -0.1,
        "top_logprobs": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.0}],
    }
    chat = read(chunk({"content": "a"}, logprobs={"content": [top]}))
    plain = {
        "tokens": ["a"],
        "token_logprobs": [-0.1],
        "top_logprobs": [{"a": -0.1, "b": -2.0}],
        "text_offset": [0],
    }
    completion = read({"choices": [{"index": 0, "text": "a", "logprobs": plain}]})
    assert chat.logprobs == completion.logprobs == [TokenLogprob("a", -0.1, {"a": -0.1, "b": -2.0})]


def test_the_first_broken_chunk_is_remembered_and_the_rest_is_still_read() -> None:
    answer = read(
        chunk({"content": "a"}), '{"choices":[{"ind', chunk({"content": "b"}), "[1]", "[DONE]"
    )
    assert answer.malformed == 'a chunk is not JSON: {"choices":[{"ind'
    assert (answer.text, answer.finished) == ("ab", True)


def test_a_chunk_that_is_no_object_is_malformed() -> None:
    assert read("[1]").malformed == "a chunk is not a JSON object: [1]"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"message": "out of memory", "type": "InternalServerError"}}, "out of memory"),
        ({"error": {"type": "InternalServerError"}}, "InternalServerError"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"error": None}, "an error without a message"),
        ("text", "an error without a message"),
    ],
)
def test_every_shape_of_an_error_body_gives_its_message(body: Any, told: str) -> None:
    assert error_message(body) == told


def test_bytes_of_a_server_become_one_short_printable_line() -> None:
    line = shortened(b"<html>\r\n\x1b[31m\xff " + b"x" * 500)
    assert line.isprintable()
    assert len(line) == 120
    assert line.startswith("<html> [31m")


# ---- what no server should send


ODD = ["-0.1", None, True, [], float("nan"), float("inf"), float("-inf"), 10**400, 2**53]


@pytest.mark.parametrize("value", ODD)
def test_what_is_no_finite_number_is_no_figure(value: Any) -> None:
    assert number(value) is None


@pytest.mark.parametrize("value", [*ODD[:-2], {}])
def test_log_probabilities_that_are_not_numbers_are_unknown_and_such_alternatives_left_out(
    value: Any,
) -> None:
    entry = {
        "token": "a",
        "logprob": value,
        "top_logprobs": [{"token": "b", "logprob": value}, {"token": "c", "logprob": -1}],
    }
    plain = {"tokens": ["a"], "token_logprobs": [value], "top_logprobs": [{"b": value, "c": -1}]}
    for answer in (
        read(chunk({"content": "a"}, logprobs={"content": [entry]})),
        read({"choices": [{"text": "a", "logprobs": plain}]}),
    ):
        (token,) = observed(answer).tokens
        assert (token.token, token.logprob, token.top) == ("a", None, {"c": -1.0})


def test_names_of_a_server_are_short_and_printable() -> None:
    odd = {
        "choices": [{"finish_reason": "\x1b[2J" + "s" * 1000}],
        "system_fingerprint": "\ud83d\n" + "f" * 1000,
    }
    answer = read(odd)
    for name in (answer.finish_reason, answer.system_fingerprint):
        assert name is not None
        assert name.isprintable()
        assert len(name) == 200
        name.encode()


def test_half_a_surrogate_and_a_nul_in_text_and_tokens_become_a_mark() -> None:
    entry = {"token": "\x00\ud83d", "logprob": -0.1, "top_logprobs": []}
    answer = read(chunk({"content": "a\x00\ud83d"}, logprobs={"content": [entry]}))
    assert (answer.text, observed(answer).tokens[0].token) == ("a\ufffd\ufffd", "\ufffd\ufffd")


def test_token_ids_that_no_database_keeps_are_left_out() -> None:
    assert read(
        chunk({"content": "a"}, token_ids=[7, -1, True, 2**60, 10**400, "8"])
    ).token_ids == [7]


def test_an_answer_without_end_is_malformed_and_not_kept_whole() -> None:
    answer = read(*[chunk({"content": "x" * 400_000})] * 9)
    assert (
        answer.malformed == "the answer is longer than 1,000,000 characters; the rest was not read"
    )
    assert len(answer.text) <= LONGEST_ANSWER + 400_000


def test_a_tool_call_is_an_answer_with_its_arguments_as_text() -> None:
    call = chunk({"tool_calls": [{"function": {"name": "city", "arguments": '{"name": "Paris"}'}}]})
    assert observed(read(call)).text == 'city{"name": "Paris"}'


def test_an_error_whose_message_is_no_text_is_an_error_without_one() -> None:
    nested: Any = "x"
    for _ in range(900):
        nested = [nested]
    assert error_message({"error": {"message": nested}}) == "an error without a message"
