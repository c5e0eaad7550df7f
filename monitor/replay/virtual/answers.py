"""Requests to the simulated server and its answers, read and judged by the daemon's own code;
computed once for each state of the server.

The pins are those that `vllm-canary pin` makes of a healthy idle server before the history begins:
one for each probe that asks for log-probabilities.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from monitor.judge.quality.expect import judge_answer
from monitor.judge.quality.gate import judge_gate
from monitor.judge.quality.pinned import PinJudgement, shift_between
from monitor.judge.quality.pinning import outputs_of
from monitor.measure.score import scored_tokens
from monitor.measure.stream.answer import Answer, AnswerReader, observed
from monitor.measure.stream.long_prompt import fitted
from monitor.measure.stream.request import canary_request, tokenize_body
from monitor.model import ObservedAnswer, Outcome, Pin, Probe, Verdict
from monitor.replay.virtual.noise import shift_nat
from monitor.simulate.api.bodies import (
    ResponseFrame,
    chat_choice,
    logprobs_of,
    prompt_logprobs_of,
    text_choice,
)
from monitor.simulate.api.validation import CompletionRequest, prompt_ids, read_request
from monitor.simulate.api.wire import compact
from monitor.simulate.model.language_model import Generation, LanguageModel, Prompt
from monitor.simulate.world import World

T = TypeVar("T")
REPEATS, LIFE = 5, timedelta(days=30)  # the defaults of `pin`
REASON = "what the healthy simulated server says, before this history begins"


class ReadAnswer(NamedTuple):
    """An answer of the model, as the daemon's stream client and the quality gate read it."""

    generation: Generation
    answer: Answer
    observed: ObservedAnswer


@dataclass(slots=True, eq=False)
class ServedProbe:
    """One probe as sent to one state of the server, and the answers to it."""

    probe: Probe
    request: CompletionRequest
    model: LanguageModel
    _answers: dict[int, ReadAnswer] = field(default_factory=dict)
    _judged: dict[tuple[int, int | None], PinJudgement] = field(default_factory=dict)

    def answer(self, batch: int) -> ReadAnswer:
        """The whole answer that begins in a batch of this size."""
        if batch not in self._answers:
            self._answers[batch] = self._read(
                self.model.generate(self.request.prompt, self.request.limits, batch)
            )
        return self._answers[batch]

    def judged(self, answer: ReadAnswer, pin: Pin | None) -> PinJudgement:
        """The gate's verdict on a whole answer. Where it differs from the pinned answer,
        the shift is that of the pinned answer, scored.
        """
        key = (answer.generation.batch, None if pin is None else pin.id)
        if key not in self._judged:
            judgement = judge_gate(self.probe, Outcome.OK, answer.observed, pin)
            if pin is not None and judgement.first_divergence is not None:
                judgement = replace(judgement, logprob_shift=self._scored_shift(pin))
            self._judged[key] = judgement
        return self._judged[key]

    def _read(self, generation: Generation) -> ReadAnswer:
        """Reads the answer from a single chunk."""
        ask, length = self.request, len(generation.tokens)
        frame = ResponseFrame(
            "virtual", 0, "virtual", None, prompt_details=False, request_metrics=False
        )
        logprobs = logprobs_of(self.model, ask, generation, 0, length)
        choice = (chat_choice if ask.chat else text_choice)(ask, generation, 0, length, logprobs)
        reader = AnswerReader()
        reader.event(compact(frame.chunk(ask.chat, [choice])).encode(), 0)
        answer = reader.close()
        answer.prompt_tokens = len(ask.prompt.ids)
        return ReadAnswer(generation, answer, observed(answer))

    def _scored_shift(self, pin: Pin) -> float | None:
        """The move of the pinned answer, scored as part of the prompt."""
        prompt, pinned = self.request.prompt, pin.outputs[0]
        ids = pinned.token_ids
        given = Prompt((*prompt.ids, *ids), prompt.question, (*prompt.given, *ids))
        scores = self.model.prompt_scores(given, self.request.logprobs or 1)
        found = {"choices": [{"prompt_logprobs": prompt_logprobs_of(scores)}]}
        tokens = scored_tokens(found, pinned, len(prompt.ids))
        return shift_between(pinned, ObservedAnswer(pinned.text, tokens, ids))


@dataclass
class ProbeAnswers:
    """All probes as sent to one world, for each state that the world has been in."""

    world: World
    _models: dict[str, LanguageModel] = field(default_factory=dict)
    _asked: dict[tuple[object, ...], ServedProbe] = field(default_factory=dict)

    def asked(self, probe: Probe) -> ServedProbe:
        """The probe as it is sent now. Raises ApiError where the server refuses the request."""
        identity, variant = self.world.identity, self.world.answers
        served = (identity.served_name, identity.template, variant, identity.max_model_len)
        key = (probe.name, probe.revision, *served)
        if key not in self._asked:
            body = canary_request(probe, identity.served_name, "virtual", "virtual").body
            request = read_request(body, probe.endpoint == "chat", {}, identity, variant)
            self._asked[key] = ServedProbe(probe, request, self._model())
        return self._asked[key]

    def fitted(self, probe: Probe) -> Probe:
        """The probe, lengthened to its share of the server's present context."""
        return _result(fitted(probe, self.world.identity.max_model_len, self._prompt_length))

    def healthy(self, probe: Probe) -> Probe:
        """The probe as `init` writes it: without expectations that this model does not meet."""
        answer = self.asked(self.fitted(probe)).answer(1).observed
        judged = judge_answer(probe, Outcome.OK, answer.text, answer.finish_reason)
        return replace(probe, expect=()) if judged.verdict is Verdict.FAIL else probe

    async def _prompt_length(self, probe: Probe) -> int:
        identity = self.world.identity
        body = tokenize_body(probe, identity.served_name)
        return len(prompt_ids(body, identity, self.world.answers))

    def _model(self) -> LanguageModel:
        variant = self.world.answers
        if variant not in self._models:
            self._models[variant] = LanguageModel(variant, self.world.seed)
        return self._models[variant]


def make_pins(
    probes: Sequence[Probe], answers: ProbeAnswers, target: str, fingerprint: str, at: datetime
) -> list[Pin]:
    """Pins what the server answers now, for each probe that asks for log-probabilities."""
    # a separate generator, so that no sample depends on it
    chance = random.Random(f"pins/{answers.world.seed}")  # noqa: S311 - reproducible, not a secret
    pins: list[Pin] = []
    for probe in probes:
        if probe.sampling.get("logprobs"):
            answer = answers.asked(probe).answer(1)
            pin = Pin(
                id=len(pins) + 1,
                target=target,
                probe=probe.name,
                revision=probe.revision,
                fingerprint=fingerprint,
                reason=REASON,
                author="simulate",
                created_at=at,
                expires_at=at + LIFE,
                outputs=outputs_of([answer.observed] * REPEATS),
                prompt_tokens=answer.observed.prompt_tokens,
                noise_nat=round(max(shift_nat(chance) for _ in range(REPEATS)), 5),
            )
            pins.append(pin)
    return pins


def _result(coroutine: Coroutine[object, None, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a coroutine of virtual time has waited for real time")
