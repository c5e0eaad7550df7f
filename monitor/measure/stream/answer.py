"""What a stream of chunks says: text, tokens, usage, the server's own timings, and when each token
came. Pure.

The order of chunks and their oddities are vLLM's (entrypoints/openai/chat_completion/serving.py):
an empty role chunk comes first, chunks are not tokens, the last token of an end-of-text stop has no
text, usage comes in a chunk without choices.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from monitor.model import ObservedAnswer, TokenLogprob
from monitor.text import one_line, whole_text

# characters of all parts together, twenty times what the longest probe asks for; beyond it is a
# flood
LONGEST_ANSWER = 1_000_000
LARGEST = (
    2**53
)  # counts and figures from here on are none: no database keeps them, and no float tells them apart
LONGEST_NAME = 200  # characters of a finish reason or a system_fingerprint


@dataclass(slots=True)
class Answer:
    """The answer as it grows. Times are monotonic nanoseconds of the arrival of the bytes."""

    text: str = ""
    reasoning: str = ""
    tool_arguments: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    system_fingerprint: str | None = None
    server_metrics: dict[str, Any] | None = None
    error: str | None = None  # the message of an error event under HTTP 200
    malformed: str | None = None  # why a chunk could not be read
    finished: bool = False  # [DONE] was seen
    first_event_ns: int | None = None
    first_token_ns: int | None = None
    first_visible_ns: int | None = None
    last_token_ns: int | None = None
    tokens_at_first: int | None = (
        None  # tokens received up to and with the first token's chunk; None = not told
    )
    arrivals_ns: list[int] = field(default_factory=list)  # of each chunk that brought tokens

    @property
    def tokens_received(self) -> int | None:
        """How many tokens came, by usage, else by the ids; None where the server told neither."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return len(self.token_ids) or None


class AnswerReader:
    """Takes the data of each event with its time of arrival."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._chunks_with_tokens = 0

    def event(self, data: bytes, arrived_ns: int) -> None:
        """Read one event. What cannot be read is remembered in `malformed`, never raised: the rest
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
            answer.malformed = answer.malformed or f"a chunk is not JSON: {shortened(data)}"
            return
        if not isinstance(chunk, dict):
            answer.malformed = answer.malformed or f"a chunk is no JSON object: {shortened(data)}"
        elif chunk.get("error") is not None:
            answer.error = error_message(chunk)
        elif len(answer.text) + len(answer.reasoning) + len(answer.tool_arguments) > LONGEST_ANSWER:
            answer.malformed = (
                answer.malformed
                or f"the answer goes on after {LONGEST_ANSWER:,} characters; the rest was not read"
            )
        else:
            try:
                self._chunk(chunk, arrived_ns)
            # a shape that nobody has thought of makes a broken answer, and must not end who watches
            except Exception as error:
                answer.malformed = (
                    answer.malformed
                    or f"a chunk cannot be read ({type(error).__name__}): {shortened(data)}"
                )

    def _chunk(self, chunk: dict[str, Any], arrived_ns: int) -> None:
        answer = self.answer
        answer.system_fingerprint = (
            _name(chunk.get("system_fingerprint")) or answer.system_fingerprint
        )
        if isinstance(chunk.get("metrics"), dict):
            answer.server_metrics = chunk["metrics"]
        self._usage(chunk.get("usage"))
        for choice in _items(chunk.get("choices")):
            if isinstance(choice, dict) and not choice.get("index"):
                self._choice(choice, arrived_ns)

    def _usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        answer = self.answer
        answer.prompt_tokens = _whole(usage.get("prompt_tokens"), answer.prompt_tokens)
        answer.completion_tokens = _whole(usage.get("completion_tokens"), answer.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            answer.cached_tokens = _whole(details.get("cached_tokens"), answer.cached_tokens)

    def _choice(self, choice: dict[str, Any], arrived_ns: int) -> None:
        answer = self.answer
        raw_delta = choice.get("delta")
        delta: dict[str, Any] = raw_delta if isinstance(raw_delta, dict) else {}
        visible = _text(delta.get("content")) + _text(choice.get("text"))
        reasoning = _text(delta.get("reasoning")) or _text(delta.get("reasoning_content"))
        tools = _tool_text(delta.get("tool_calls"))
        ids = [i for i in _items(choice.get("token_ids")) if _whole(i, None) is not None]
        finish = choice.get("finish_reason")
        logprobs = _logprobs(choice.get("logprobs"))
        answer.text += visible
        answer.reasoning += reasoning
        answer.tool_arguments += tools or ""
        answer.token_ids += ids
        answer.logprobs += logprobs
        if isinstance(finish, str):
            answer.finish_reason = _name(finish)
        said_something = bool(visible or reasoning) or tools is not None
        # The empty chunk of an end-of-text stop carries the last token: usage counts it (DESIGN.md,
        # marks).
        if said_something or ids or logprobs or finish == "stop":
            self._token_chunk(arrived_ns, said_something, bool(visible) or tools is not None)

    def _token_chunk(self, arrived_ns: int, said_something: bool, seen: bool) -> None:
        answer = self.answer
        self._chunks_with_tokens += 1
        answer.arrivals_ns.append(arrived_ns)
        answer.last_token_ns = arrived_ns
        if said_something and answer.first_token_ns is None:
            answer.first_token_ns = arrived_ns
            answer.tokens_at_first = self._tokens_so_far()
        if seen and answer.first_visible_ns is None:
            answer.first_visible_ns = arrived_ns

    def _tokens_so_far(self) -> int | None:
        answer = self.answer
        return len(answer.token_ids) or len(answer.logprobs) or answer.completion_tokens or None

    def close(self) -> Answer:
        """The whole answer. Where nothing told how many tokens the first chunk held, one token a
        chunk is taken as proved when the chunks are as many as the tokens of the usage.
        """
        answer = self.answer
        if answer.tokens_at_first is None and answer.first_token_ns is not None:
            one_each = (
                answer.completion_tokens is not None
                and self._chunks_with_tokens == answer.completion_tokens
            )
            answer.tokens_at_first = 1 if one_each else None
        answer.text, answer.tool_arguments = (
            whole_text(answer.text),
            whole_text(answer.tool_arguments),
        )
        return answer


def observed(answer: Answer) -> ObservedAnswer:
    """The answer as the quality gate sees it. A tool call is an answer: its name and arguments
    stand for the text, as they are stored.
    """
    tokens = tuple(TokenLogprob(p["token"], p["logprob"], p["top"]) for p in answer.logprobs)
    text = answer.text or answer.tool_arguments
    return ObservedAnswer(
        text, tokens, tuple(answer.token_ids), answer.finish_reason, answer.prompt_tokens
    )


def error_message(body: Any) -> str:
    """The message inside an error body; vLLM sends an object under `error`, its authentication
    layer a plain string.
    """
    return whole_text(
        _error_message(body).replace("\0", " ")
    )  # a sentence, not data: no mark in it


def _error_message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        told: tuple[Any, ...] = (error.get("message"), error.get("type"))
    else:
        told = (error, body.get("detail")) if isinstance(body, dict) else ()
    return next(
        (text for text in told if isinstance(text, str) and text), "an error without a message"
    )


def shortened(data: bytes, limit: int = 120) -> str:
    """Bytes of a server as one printable line for a message."""
    text = data[: limit * 4].decode("utf-8", errors="replace")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def figure(value: Any) -> float | None:
    """A figure of a server as a finite number. None for everything else: JSON has strings and 400
    digits, Python's reader NaN and inf.
    """
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not -LARGEST < value < LARGEST
    ):
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _name(value: Any) -> str:
    """A short text that is shown and compared, never a part of the answer."""
    return one_line(whole_text(_text(value)), LONGEST_NAME)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any, otherwise: int | None) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST
    return value if whole else otherwise


def _tool_text(calls: Any) -> str | None:
    """Name and arguments in a tool-call delta; None when there is none."""
    if not isinstance(calls, list) or not calls:
        return None
    functions = [c.get("function") for c in calls if isinstance(c, dict)]
    return "".join(
        _text(f.get("name")) + _text(f.get("arguments")) for f in functions if isinstance(f, dict)
    )


def _logprobs(value: Any) -> list[dict[str, Any]]:
    """One entry a token, `{token, logprob, top: {token: logprob}}`, from either endpoint's
    shape.
    """
    if not isinstance(value, dict):
        return []
    content = value.get("content")
    if isinstance(content, list):
        return [_chat_logprob(entry) for entry in content if isinstance(entry, dict)]
    tokens, values, tops = (
        _items(value.get(k)) for k in ("tokens", "token_logprobs", "top_logprobs")
    )
    tops = [*tops, *([None] * (len(tokens) - len(tops)))]
    return [
        {
            "token": _token(t),
            "logprob": figure(v),
            "top": _tops(top.items() if isinstance(top, dict) else ()),
        }
        for t, v, top in zip(tokens, values, tops, strict=False)
    ]


def _chat_logprob(entry: dict[str, Any]) -> dict[str, Any]:
    tops = [t for t in _items(entry.get("top_logprobs")) if isinstance(t, dict)]
    return {
        "token": _token(entry.get("token")),
        "logprob": figure(entry.get("logprob")),
        "top": _tops((t.get("token"), t.get("logprob")) for t in tops),
    }


def _tops(pairs: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    """What else could have come. One without a finite log-probability says nothing and is left
    out.
    """
    return {
        _token(token): value for token, logprob in pairs if (value := figure(logprob)) is not None
    }


def _token(value: Any) -> str:
    return whole_text(_text(value))
