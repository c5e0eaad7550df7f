"""What each probe asks, what the model says to it, and how a daemon with pins judges that; worked
out once for each state of the server.

The pins are those that `vllm-canary pin` makes of a healthy idle server before the history begins:
one for each probe that asks for log-probabilities. The judging is that of docs/quality.md; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import sqrt
from typing import NamedTuple

from monitor.simulate.answers import LanguageModel, Prompt, Speech
from monitor.simulate.logprobs import Scored
from monitor.simulate.shipped import ShippedProbe
from monitor.simulate.world import World

LEAST_TIE_NAT = 0.1  # monitor/judge/quality/pinned.py: below this gap two tokens are a tie
MOST_TIE_NAT = 0.5  # the same: so far apart may be what was a tie when it was pinned

State = tuple[
    str, str, str, int
]  # probe, chat template, variant of the model, context length: what a prompt follows from


class Judged(NamedTuple):
    """`first_divergence`: index of the first token that is another one. `shift_nat`: root mean
    square move of the log-probabilities of the pinned answer; where another one came, as they are
    when the server is asked to score it.
    """

    verdict: str
    first_divergence: int | None = None
    shift_nat: float | None = None


class Scores(NamedTuple):
    """An answer in tokens, with the log-probabilities of each and of the likeliest beside it."""

    tokens: tuple[int, ...]
    tops: tuple[dict[int, float], ...]
    reason: str
    prompt_tokens: int


@dataclass
class Asking:
    """`pins`: by probe, the number of the pin; `pinned`: by probe, what it holds."""

    world: World
    pins: dict[str, int] = field(default_factory=dict)
    pinned: dict[str, Scores] = field(default_factory=dict)
    _models: dict[str, LanguageModel] = field(default_factory=dict)
    _prompts: dict[State, Prompt] = field(default_factory=dict)
    _speeches: dict[tuple[State, int], Speech] = field(default_factory=dict)
    _judged: dict[tuple[State, int], Judged] = field(default_factory=dict)

    def pin(self, probe: ShippedProbe) -> None:
        """Take what the server says now, to nobody else, as right."""
        state, prompt = self.prompt(probe)
        self.pinned[probe.name] = self._scores(
            probe, state, prompt, self.speech(probe, state, prompt, 1)
        )
        self.pins[probe.name] = len(self.pins) + 1

    def prompt(self, probe: ShippedProbe) -> tuple[State, Prompt]:
        """What the server reads now, and what that follows from."""
        identity, variant = self.world.identity, self.world.answers
        state = (probe.name, identity.template, variant, identity.max_model_len)
        if state not in self._prompts:
            self._prompts[state] = probe.prompt(identity, variant)
        return state, self._prompts[state]

    def speech(self, probe: ShippedProbe, state: State, prompt: Prompt, batch: int) -> Speech:
        """The answer in a batch of so many."""
        if (state, batch) not in self._speeches:
            self._speeches[state, batch] = self._model(state).speak(prompt, probe.wish, batch)
        return self._speeches[state, batch]

    def judged(self, probe: ShippedProbe, state: State, prompt: Prompt, speech: Speech) -> Judged:
        """Of a whole answer."""
        known = (state, speech.batch)
        if known not in self._judged:
            self._judged[known] = self._judge(probe, state, prompt, speech)
        return self._judged[known]

    def _model(self, state: State) -> LanguageModel:
        variant = state[2]
        if variant not in self._models:
            self._models[variant] = LanguageModel(variant, self.world.seed)
        return self._models[variant]

    def _judge(self, probe: ShippedProbe, state: State, prompt: Prompt, speech: Speech) -> Judged:
        pinned, plain = self.pinned.get(probe.name), probe.verdict("".join(speech.texts))
        if pinned is not None and pinned.prompt_tokens != len(prompt.ids):
            return Judged("fail")  # another prompt is not another model
        if pinned is None or plain == "fail":
            return Judged(plain)
        now = self._scores(probe, state, prompt, speech)
        same = sum(
            1
            for _ in takewhile(
                lambda pair: pair[0] == pair[1], zip(pinned.tokens, now.tokens, strict=False)
            )
        )
        if same == len(pinned.tokens) == len(now.tokens):
            return Judged(
                "pass" if pinned.reason == now.reason else "fail",
                None,
                _shift(pinned.tops, now.tops),
            )
        verdict = (
            "near_tie"
            if same < min(len(pinned.tokens), len(now.tokens)) and _is_tie(pinned, now, same)
            else "fail"
        )
        return Judged(
            verdict, same, _shift(pinned.tops, self._when_scored(probe, state, prompt, pinned))
        )

    def _scores(self, probe: ShippedProbe, state: State, prompt: Prompt, speech: Speech) -> Scores:
        model = self._model(state)
        tops = [
            _top(model.scores(prompt, place, token, speech.batch)[: probe.logprobs])
            for place, token in enumerate(speech.tokens)
        ]
        return Scores(speech.tokens, tuple(tops), speech.reason, len(prompt.ids))

    def _when_scored(
        self, probe: ShippedProbe, state: State, prompt: Prompt, pinned: Scores
    ) -> list[dict[int, float]]:
        """The pinned answer as part of the prompt: what the model thinks of each of its tokens
        now.
        """
        given = Prompt(
            (*prompt.ids, *pinned.tokens), prompt.question, (*prompt.given, *pinned.tokens)
        )
        return [
            _top(place or ())
            for place in self._model(state).prompt_scores(given, probe.logprobs)[len(prompt.ids) :]
        ]


def _top(ranked: Sequence[Scored]) -> dict[int, float]:
    return {scored.token: scored.logprob for scored in ranked}


def _is_tie(pinned: Scores, now: Scores, place: int) -> bool:
    """Whether the pinned token is about as likely as the one that came, or was so when it was
    pinned and is not far behind now.
    """
    wanted, got, then = pinned.tokens[place], now.tokens[place], pinned.tops[place]
    if wanted not in now.tops[place]:
        return False
    gap = now.tops[place][got] - now.tops[place][wanted]
    return gap <= LEAST_TIE_NAT or (
        got in then and then[wanted] - then[got] <= LEAST_TIE_NAT and gap <= MOST_TIE_NAT
    )


def _shift(pinned: Sequence[dict[int, float]], now: Sequence[dict[int, float]]) -> float | None:
    """Of the pinned tokens and of what is among the likeliest beside them both times."""
    moved = [
        logprob - before[token]
        for before, after in zip(pinned, now, strict=True)
        for token, logprob in after.items()
        if token in before
    ]
    return sqrt(sum(m * m for m in moved) / len(moved)) if moved else None
