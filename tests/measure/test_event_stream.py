"""Bytes of a stream become the same answer however the network cuts them, and no bytes at all bring
the reader down.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.measure.stream import sse
from monitor.measure.stream.answer import Answer, AnswerReader
from monitor.measure.stream.sse import EventReader, EventTooLargeError

CAPTURES = Path(__file__).parents[1] / "captures" / "vllm-0.32.0"
STREAMS = {path.name: path.read_bytes() for path in sorted(CAPTURES.glob("*.sse"))}
DIALECTS = {
    "as captured": lambda raw: raw,
    "CR LF": lambda raw: raw.replace(b"\n", b"\r\n"),
    "CR": lambda raw: raw.replace(b"\n", b"\r"),
    "keep-alives": lambda raw: (
        b": keep-alive\n\n" + raw.replace(b"\n\n", b"\n\n:\n: keep-alive\n\n")
    ),
    "other fields": lambda raw: raw.replace(b"data: ", b"event: message\nid: 7\nretry: 10\ndata: "),
    "no blank after the colon": lambda raw: raw.replace(b"data: ", b"data:"),
}
MARKS = ("first_event_ns", "first_token_ns", "first_visible_ns", "last_token_ns")
TIMES = {*MARKS, "arrivals_ns"}


def read(pieces: Iterable[bytes]) -> Answer:
    """The answer of a stream whose nth piece arrives at n."""
    events, reader = EventReader(), AnswerReader()
    for n, piece in enumerate(pieces, 1):
        for data in events.feed(piece):
            reader.event(data, n)
    return reader.close()


def pieces_of(raw: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cuts), len(raw)]
    return [raw[a:b] for a, b in pairwise(places)]


def said(answer: Answer) -> dict[str, Any]:
    """Everything but the times."""
    return {name: getattr(answer, name) for name in Answer.__slots__ if name not in TIMES} | {
        "tokens": answer.tokens_received
    }


def marks(answer: Answer) -> list[int | None]:
    return [getattr(answer, name) for name in MARKS]


def assert_same_order(now: Sequence[int | None], one_event_a_piece: Sequence[int | None]) -> None:
    """Marks of one event stay together, and none overtakes another."""
    assert [m is None for m in now] == [m is None for m in one_event_a_piece]
    pairs = [
        (a, b)
        for a, b in zip(now, one_event_a_piece, strict=True)
        if a is not None and b is not None
    ]
    for (now_a, was_a), (now_b, was_b) in ((x, y) for x in pairs for y in pairs):
        assert now_a <= now_b if was_a < was_b else now_a == now_b if was_a == was_b else True


def by_event(raw: bytes) -> Answer:
    return read(event + b"\n\n" for event in raw.split(b"\n\n"))


def test_the_captured_streams_say_what_the_server_had_said() -> None:
    short = read([STREAMS["chat_stream_short.sse"]])
    assert (short.text, short.finish_reason, short.finished) == ("Yes", "stop", True)
    assert (short.prompt_tokens, short.completion_tokens, short.cached_tokens) == (13, 2, 0)
    assert short.system_fingerprint == "vllm-0.32.0-bf6c1f39"
    invoice = read([STREAMS["chat_stream_logprobs.sse"]])
    assert json.loads(invoice.text)["invoice"] == 1043
    assert len(invoice.logprobs) == invoice.completion_tokens == 35
    completion = read([STREAMS["completions_stream.sse"]])
    assert completion.text == "Guten Morgen"
    assert [entry.token for entry in completion.logprobs] == ["Guten", " Morgen", "</s>"]
    killed = read([STREAMS["chat_stream_engine_killed.sse"]])
    assert (
        killed.error
        == "EngineCore encountered an issue. See stack trace (above) for the root cause."
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_stream_cut_anywhere_gives_the_same_answer_and_the_same_order_of_marks(
    name: str, dialect: str, data: st.DataObject
) -> None:
    raw = DIALECTS[dialect](STREAMS[name])
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=60), label="cuts")
    whole, cut = read([raw]), read(pieces_of(raw, cuts))
    assert said(cut) == said(whole) == said(read([STREAMS[name]]))
    assert_same_order(marks(cut), marks(by_event(STREAMS[name])))
    assert len(cut.arrivals_ns) == len(whole.arrivals_ns)
    assert cut.arrivals_ns == sorted(cut.arrivals_ns)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_single_cut_gives_the_same_answer(dialect: str) -> None:
    raw = DIALECTS[dialect](STREAMS["chat_stream_short.sse"])
    whole = said(read([raw]))
    assert all(said(read([raw[:place], raw[place:]])) == whole for place in range(len(raw)))
    assert said(read(bytes([byte]) for byte in raw)) == whole


def test_a_mark_is_the_arrival_of_the_piece_that_completes_its_event() -> None:
    raw = STREAMS["chat_stream_short.sse"]
    role, yes, *rest = (event + b"\n\n" for event in raw.split(b"\n\n"))
    answer = read([role[:20], role[20:] + yes[:-1], yes[-1:], b"".join(rest)])
    assert marks(answer) == [2, 3, 3, 4]


def test_a_letter_of_several_bytes_may_be_cut_in_its_middle() -> None:
    raw = 'data: {"choices":[{"index":0,"delta":{"content":"naïve 東京 🐤"}}]}\n\n'.encode()
    assert {read([raw[:place], raw[place:]]).text for place in range(len(raw))} == {"naïve 東京 🐤"}


def test_comments_alone_are_no_events() -> None:
    assert EventReader().feed(b": keep-alive\n\n:\n\n\r\n\r\n") == []


def test_the_data_lines_of_one_event_are_joined_by_line_feeds() -> None:
    assert EventReader().feed(b"data: one\ndata:two\r\ndata:  three\n\n") == [b"one\ntwo\n three"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_of_several_lines_stays_one_wherever_it_is_cut(end: bytes) -> None:
    raw = end.join([b"data: one", b"data: two", b"", b""])
    for place in range(len(raw)):
        events = EventReader()
        assert events.feed(raw[:place]) + events.feed(raw[place:]) == [b"one\ntwo"]


def test_an_event_without_its_blank_line_is_pending_and_not_handed_out() -> None:
    events = EventReader()
    assert events.pending() is None
    assert events.feed(b"data: [DONE]\n") == []
    assert events.pending() == b"[DONE]"


@pytest.mark.parametrize(
    "flood",
    [
        b"data: " + b"x" * 10,
        b"data: " + b"x" * 10 + b"\n",
        b"data:\n",
        b"x",
        b": comment without an end",
    ],
)
def test_an_event_without_end_is_refused_before_it_fills_the_memory(
    flood: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    events = EventReader()
    with pytest.raises(EventTooLargeError, match="1000 bytes"):
        for _ in range(2000):
            events.feed(flood)


def test_many_small_events_are_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    events = EventReader()
    assert sum(len(events.feed(b"data: 12345678\n\n")) for _ in range(500)) == 500


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from([b"data: ", b"data", b"\r", b"\n", b"\r\n", b"{", b"[DONE]", b":"]),
        )
    )
)
def test_random_bytes_raise_nothing(pieces: list[bytes]) -> None:
    read(pieces)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with vLLM's names, each missing or of its own or of any other shape."""
    return JSON | st.fixed_dictionaries(
        {}, optional={name: value | JSON for name, value in fields.items()}
    )


ENTRY = shaped(
    token=st.text(),
    logprob=st.floats(),
    top_logprobs=st.lists(shaped(token=st.text(), logprob=st.floats()), max_size=2),
)
LOGPROBS = shaped(
    content=st.lists(ENTRY, max_size=2),
    tokens=st.lists(st.text(), max_size=2),
    token_logprobs=st.lists(st.floats(), max_size=2),
    top_logprobs=st.lists(st.dictionaries(st.text(), st.floats(), max_size=2) | JSON, max_size=2),
)
CALL = shaped(index=st.integers(), function=shaped(name=st.text(), arguments=st.text()))
DELTA = shaped(
    content=st.text(),
    reasoning=st.text(),
    reasoning_content=st.text(),
    tool_calls=st.lists(CALL, max_size=2),
)
CHOICE = shaped(
    index=st.integers(0, 1),
    delta=DELTA,
    text=st.text(),
    token_ids=st.lists(st.integers(), max_size=3),
    logprobs=LOGPROBS,
    finish_reason=st.sampled_from(["stop", "length"]),
)
USAGE = shaped(
    prompt_tokens=st.integers(),
    completion_tokens=st.integers(),
    prompt_tokens_details=shaped(cached_tokens=st.integers()),
)
CHUNK = shaped(
    choices=st.lists(CHOICE, max_size=2),
    usage=USAGE,
    metrics=JSON,
    system_fingerprint=st.text(),
    error=shaped(message=st.text()),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CHUNK, max_size=3))
def test_a_chunk_of_any_shape_raises_nothing(chunks: list[Any]) -> None:
    answer = read(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)
    assert isinstance(answer.text, str)
    assert answer.system_fingerprint is None or isinstance(answer.system_fingerprint, str)


def test_a_chunk_nested_beyond_reason_is_malformed_and_raises_nothing() -> None:
    assert read([b"data: " + b"[" * 200_000 + b"\n\n"]).malformed is not None
