"""The content of a stream of chunks: text, tokens, usage, the server's own timings, and the arrival
of each token. Pure.

The order of chunks and their peculiarities are vLLM's
(entrypoints/openai/chat_completion/serving.py): an empty role chunk comes first, chunks are not
tokens, the last token of an end-of-text stop has no text, usage comes in a chunk without choices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from monitor.measure.json_values import (
    error_message,
    items,
    members,
    number,
    shortened,
    whole_number,
)
from monitor.model import ObservedAnswer, TokenLogprob
from monitor.text import one_line, whole_text

#: In characters of all parts together: twenty times the longest answer that a probe asks for. The
#: rest of a longer one is not read.
LONGEST_ANSWER = 1_000_000
LONGEST_NAME = 200  # characters of a finish reason or a system_fingerprint


@dataclass(slots=True)
class Answer:
    """An answer as it grows. Times are the monotonic arrival of the bytes, in nanoseconds."""

    text: str = ""
    reasoning: str = ""
    tool_arguments: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    system_fingerprint: str | None = None
    server_metrics: Mapping[str, object] | None = None
    error: str | None = None  # the message of an error event under HTTP 200
    malformed: str | None = None  # why a chunk could not be read
    finished: bool = False  # [DONE] came
    first_event_ns: int | None = None
    first_token_ns: int | None = None
    first_visible_ns: int | None = None
    last_token_ns: int | None = None
    # tokens received up to and including the first token's chunk; None = unknown
    tokens_at_first: int | None = None
    arrivals_ns: list[int] = field(default_factory=list)  # of each chunk with tokens

    @property
    def tokens_received(self) -> int | None:
        """The number of tokens by usage, or else by their ids; None where the server sent
        neither.
        """
        if self.completion_tokens is not None:
            return self.completion_tokens
        return len(self.token_ids) or None

    @property
    def length(self) -> int:
        """The characters of all parts together."""
        return len(self.text) + len(self.reasoning) + len(self.tool_arguments)


class AnswerReader:
    """Builds an answer from the data of each event and its time of arrival."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._chunks_with_tokens = 0

    def event(self, data: bytes, arrived_ns: int) -> None:
        """Reads one event. Never raises: an unreadable one is noted in `malformed`, and the rest
        may still be good.
        """
        answer = self.answer
        if answer.first_event_ns is None:
            answer.first_event_ns = arrived_ns
        if data.strip() == b"[DONE]":
            answer.finished = True
            return
        try:
            chunk = json.loads(data.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):  # the second: brackets nested a thousand deep
            self._malformed(f"a chunk is not JSON: {shortened(data)}")
            return
        if not isinstance(chunk, dict):
            self._malformed(f"a chunk is not a JSON object: {shortened(data)}")
        elif chunk.get("error") is not None:
            answer.error = error_message(chunk)
        elif answer.length > LONGEST_ANSWER:
            self._malformed(
                f"the answer is longer than {LONGEST_ANSWER:,} characters; the rest was not read"
            )
        else:
            self._readable_chunk(chunk, data, arrived_ns)

    def _malformed(self, why: str) -> None:
        self.answer.malformed = self.answer.malformed or why

    def _readable_chunk(self, chunk: dict[str, object], data: bytes, arrived_ns: int) -> None:
        try:
            self._chunk(chunk, arrived_ns)
        # an unforeseen shape makes a malformed answer; it must not end the daemon
        except Exception as error:
            self._malformed(f"a chunk cannot be read ({type(error).__name__}): {shortened(data)}")

    def _chunk(self, chunk: dict[str, object], arrived_ns: int) -> None:
        answer = self.answer
        answer.system_fingerprint = (
            _name(chunk.get("system_fingerprint")) or answer.system_fingerprint
        )
        metrics = chunk.get("metrics")
        if isinstance(metrics, dict):
            answer.server_metrics = metrics
        self._usage(members(chunk.get("usage")))
        for choice in items(chunk.get("choices")):
            if isinstance(choice, dict) and not choice.get("index"):
                self._choice(choice, arrived_ns)

    def _usage(self, usage: Mapping[str, object]) -> None:
        answer = self.answer
        cached = members(usage.get("prompt_tokens_details")).get("cached_tokens")
        answer.prompt_tokens = _count(usage.get("prompt_tokens"), answer.prompt_tokens)
        answer.completion_tokens = _count(usage.get("completion_tokens"), answer.completion_tokens)
        answer.cached_tokens = _count(cached, answer.cached_tokens)

    def _choice(self, choice: dict[str, object], arrived_ns: int) -> None:
        answer = self.answer
        delta = members(choice.get("delta"))
        visible = _text(delta.get("content")) + _text(choice.get("text"))
        reasoning = _text(delta.get("reasoning")) or _text(delta.get("reasoning_content"))
        tools = _tool_text(delta.get("tool_calls"))
        ids = [i for i in map(whole_number, items(choice.get("token_ids"))) if i is not None]
        finish = choice.get("finish_reason")
        logprobs = _logprobs(choice.get("logprobs"))
        answer.text += visible
        answer.reasoning += reasoning
        answer.tool_arguments += tools or ""
        answer.token_ids += ids
        answer.logprobs += logprobs
        if isinstance(finish, str):
            answer.finish_reason = _name(finish)
        has_content = bool(visible or reasoning) or tools is not None
        # The empty chunk of an end-of-text stop carries the last token: usage counts it
        # (docs/units.md).
        if has_content or ids or logprobs or finish == "stop":
            self._token_chunk(arrived_ns, has_content, bool(visible) or tools is not None)

    def _token_chunk(self, arrived_ns: int, has_content: bool, is_visible: bool) -> None:
        answer = self.answer
        self._chunks_with_tokens += 1
        answer.arrivals_ns.append(arrived_ns)
        answer.last_token_ns = arrived_ns
        if has_content and answer.first_token_ns is None:
            answer.first_token_ns = arrived_ns
            answer.tokens_at_first = self._tokens_so_far()
        if is_visible and answer.first_visible_ns is None:
            answer.first_visible_ns = arrived_ns

    def _tokens_so_far(self) -> int | None:
        answer = self.answer
        return len(answer.token_ids) or len(answer.logprobs) or answer.completion_tokens or None

    def close(self) -> Answer:
        """Returns the whole answer. Where the size of the first chunk is unknown, it is one token
        if there are as many chunks as tokens in the usage.
        """
        answer = self.answer
        if answer.tokens_at_first is None and answer.first_token_ns is not None:
            one_each = (
                answer.completion_tokens is not None
                and self._chunks_with_tokens == answer.completion_tokens
            )
            answer.tokens_at_first = 1 if one_each else None
        answer.text = whole_text(answer.text)
        answer.tool_arguments = whole_text(answer.tool_arguments)
        return answer


def observed(answer: Answer) -> ObservedAnswer:
    """The answer as the quality gate reads it. A tool call is an answer: its name and arguments
    stand for the text, as they are stored.
    """
    return ObservedAnswer(
        text=answer.text or answer.tool_arguments,
        tokens=tuple(answer.logprobs),
        token_ids=tuple(answer.token_ids),
        finish_reason=answer.finish_reason,
        prompt_tokens=answer.prompt_tokens,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _name(value: object) -> str:
    """A short text that is shown and compared, never a part of the answer."""
    return one_line(whole_text(_text(value)), LONGEST_NAME)


def _count(value: object, otherwise: int | None) -> int | None:
    count = whole_number(value)
    return otherwise if count is None else count


def _tool_text(calls: object) -> str | None:
    """Name and arguments in a tool-call delta; None when there is none."""
    if not isinstance(calls, list) or not calls:
        return None
    functions = [members(members(call).get("function")) for call in calls]
    return "".join(_text(f.get("name")) + _text(f.get("arguments")) for f in functions)


def _logprobs(value: object) -> list[TokenLogprob]:
    """One entry per token, from either endpoint's shape."""
    shape = members(value)
    content = shape.get("content")
    if isinstance(content, list):
        return [_chat_logprob(entry) for entry in content if isinstance(entry, dict)]
    tokens, values, tops = (
        items(shape.get(k)) for k in ("tokens", "token_logprobs", "top_logprobs")
    )
    tops = [*tops, *([None] * (len(tokens) - len(tops)))]
    return [
        TokenLogprob(_token(token), number(logprob), _tops(members(top).items()))
        for token, logprob, top in zip(tokens, values, tops, strict=False)
    ]


def _chat_logprob(entry: dict[str, object]) -> TokenLogprob:
    tops = [top for top in items(entry.get("top_logprobs")) if isinstance(top, dict)]
    return TokenLogprob(
        token=_token(entry.get("token")),
        logprob=number(entry.get("logprob")),
        top=_tops((top.get("token"), top.get("logprob")) for top in tops),
    )


def _tops(pairs: Iterable[tuple[object, object]]) -> dict[str, float]:
    """The alternatives; those without a finite log-probability are left out."""
    return {
        _token(token): value for token, logprob in pairs if (value := number(logprob)) is not None
    }


def _token(value: object) -> str:
    return whole_text(_text(value))
