"""A detector as text and back, to the last digit, with a version that follows its shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.daemon.driftstate import Codec, codec, shape


class Pair(NamedTuple):
    at_us: int
    value: float | None = None


@dataclass(slots=True)
class Part:
    least: float = math.inf
    pairs: list[Pair] = field(default_factory=list)


@dataclass(slots=True)
class Whole:
    part: Part = field(default_factory=Part)
    parts: dict[str, Part] = field(default_factory=dict)
    span: tuple[int, int] | None = None


@given(
    st.lists(st.tuples(st.integers(0, 2**52), st.none() | st.floats(allow_nan=False))), st.text()
)
def test_every_figure_comes_back_to_the_last_digit(
    pairs: list[tuple[int, float | None]], name: str
) -> None:
    whole = Whole(Part(0.1 + 0.2, [Pair(*pair) for pair in pairs]), {name: Part()}, (1, 2))
    back = codec(Whole).load(codec(Whole).dump(whole))
    assert back == whole
    assert back.parts[name].least == math.inf
    assert all(isinstance(pair, Pair) for pair in back.part.pairs)


def test_what_was_read_is_written_again_as_the_same_text() -> None:
    text = codec(Whole).dump(Whole(Part(math.nan, [Pair(1, 1e-300)])))
    assert codec(Whole).dump(codec(Whole).load(text)) == text


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '[{"part": {"least": "x"}}]'])
def test_what_is_no_state_is_told_and_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match=f"not a state of version {codec(Whole).version}"):
        codec(Whole).load(text)


def test_another_shape_is_another_version_and_the_same_one_is_not() -> None:
    @dataclass
    class More(Whole):
        further: int = 0

    assert Codec(Whole).version == codec(Whole).version != codec(More).version
    assert {line.split(": ")[0] for line in shape(Whole)} >= {
        "Pair.at_us",
        "Part.least",
        "Whole.span",
    }
