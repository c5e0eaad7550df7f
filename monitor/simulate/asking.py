"""What each probe asks, what the model says to it, and how a daemon with pins judges that; worked out once for each state of the server.

The pins are those that `vllm-canary pin` makes of a healthy idle server before the history begins: one for each probe that asks for
log-probabilities. The judging is that of docs/quality.md; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from math import sqrt
from typing import NamedTuple

from monitor.simulate.answers import LanguageModel, Prompt, Speech
from monitor.simulate.shipped import ShippedProbe
from monitor.simulate.world import World

LEAST_TIE_NAT = 0.1  # monitor/judge/pinned.py: below this gap two tokens are a tie

State = tuple[str, str, str, int]  # probe, chat template, variant of the model, context length: what a prompt follows from


class Judged(NamedTuple):
    """`first_divergence`: index of the first token that is another one. `shift_nat`: root mean square move of log-probabilities."""

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
    """`pins`: by probe, the number of the pin."""

    world: World
    pins: dict[str, int] = field(default_factory=dict)
    _models: dict[str, LanguageModel] = field(default_factory=dict)
    _prompts: dict[State, Prompt] = field(default_factory=dict)
    _speeches: dict[tuple[State, int], Speech] = field(default_factory=dict)
    _judged: dict[tuple[State, int], Judged] = field(default_factory=dict)
    _pinned: dict[str, Scores] = field(default_factory=dict)

    def pin(self, probe: ShippedProbe) -> None:
        """Take what the server says now, to nobody else, as right."""
        state, prompt = self.prompt(probe)
        self._pinned[probe.name] = self._scores(probe, state, prompt, self.speech(probe, state, prompt, 1))
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
        pinned, plain = self._pinned.get(probe.name), probe.verdict("".join(speech.texts))
        if pinned is not None and pinned.prompt_tokens != len(prompt.ids):
            return Judged("fail")  # another prompt is not another model
        if pinned is None or plain == "fail":
            return Judged(plain)
        now = self._scores(probe, state, prompt, speech)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(pinned.tokens, now.tokens, strict=False)))
        shift = _shift(pinned, now, same)
        if same == len(pinned.tokens) == len(now.tokens):
            return Judged("pass" if pinned.reason == now.reason else "fail", None, shift)
        if same < min(len(pinned.tokens), len(now.tokens)):
            top = now.tops[same]
            wanted = top.get(pinned.tokens[same])
            if wanted is not None and top[now.tokens[same]] - wanted <= LEAST_TIE_NAT:
                return Judged("near_tie", same, shift)
        return Judged("fail", same, shift)

    def _scores(self, probe: ShippedProbe, state: State, prompt: Prompt, speech: Speech) -> Scores:
        model = self._model(state)
        tops = []
        for place, token in enumerate(speech.tokens):
            ranked = model.scores(prompt, place, token, speech.batch)[: probe.logprobs]
            tops.append({scored.token: scored.logprob for scored in ranked})
        return Scores(speech.tokens, tuple(tops), speech.reason, len(prompt.ids))


def _shift(pinned: Scores, now: Scores, common: int) -> float | None:
    """Of the tokens in common and of what is among the likeliest beside them both times."""
    moved = [
        logprob - before[token]
        for before, after in zip(pinned.tops[:common], now.tops[:common], strict=True)
        for token, logprob in after.items()
        if token in before
    ]
    return sqrt(sum(m * m for m in moved) / len(moved)) if moved else None
