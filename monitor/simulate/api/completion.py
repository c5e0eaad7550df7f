"""One completion in progress, from the engine to the client: each step's tokens become events of
the stream, or all of them one body.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from monitor.simulate.api.bodies import (
    ResponseFrame,
    chat_choice,
    logprobs_of,
    role_choice,
    text_choice,
    usage_chunk,
    usage_counts,
    whole,
)
from monitor.simulate.api.validation import CompletionRequest, api_error
from monitor.simulate.api.wire import Exchange
from monitor.simulate.engine.requests import Ending, Handle
from monitor.simulate.model.language_model import Generation, LanguageModel

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def engine_dead() -> dict[str, Any]:
    """The error body of a dead engine (seen on vLLM 0.32 CPU)."""
    return api_error(500, "InternalServerError", ENGINE_DEAD).body


@dataclass(slots=True, eq=False)
class Completion:
    """Decides on the answer when the first token is due; each later step sends what it produced."""

    exchange: Exchange
    request: CompletionRequest
    frame: ResponseFrame
    model: LanguageModel
    generation: Generation | None = None
    sent: int = 0

    def ending(self, batch: int) -> Ending:
        """Decides on the answer, by the size of the batch (EngineRequest.ending)."""
        self.generation = self.model.generate(self.request.prompt, self.request.limits, batch)
        return Ending(len(self.generation.tokens), self.generation.reason)

    def tokens(self, handle: Handle, count: int, _now_s: float) -> None:
        """Sends `count` new tokens."""
        generation = self.generation
        if generation is None or self.exchange.over:
            return
        if not self.request.stream:
            if handle.finished:
                self.exchange.reply(whole(self.frame, handle, self.request, generation, self.model))
            return
        first, self.sent = self.sent, min(self.sent + count, len(generation.tokens))
        events = [self._event(handle, generation, first)]
        if self.request.chat and first == 0:
            # sent with the first token (chat_completion/serving.py)
            events.insert(0, self._role(handle))
        if not handle.finished:
            self.exchange.events(*events)
            return
        if self.request.include_usage:
            events.append(usage_chunk(self.frame, handle, self.request))
        elif self.frame.fingerprint is not None:
            events[-1]["system_fingerprint"] = self.frame.fingerprint
        self.exchange.events(*events, "[DONE]")
        self.exchange.end_stream()

    def lost(self, _handle: Handle, why: str) -> None:
        """Ends the answer: with an error inside the stream when the engine died, with a
        closed connection when the process was restarted.
        """
        if self.exchange.over:
            return
        if why != "died":
            self.exchange.abort()
        elif self.request.stream:
            # with spaces, unlike everything else that vLLM sends
            self.exchange.events(json.dumps(engine_dead()), "[DONE]")
            self.exchange.end_stream()
        else:
            self.exchange.reply(engine_dead(), 500)

    def _role(self, handle: Handle) -> dict[str, Any]:
        chunk = self.frame.chunk(True, [role_choice()]) | self._usage(handle, 0)
        ids = list(self.request.prompt.ids) if self.request.token_ids else None
        return chunk | {"prompt_token_ids": ids, "prompt_text": None}

    def _event(self, handle: Handle, generation: Generation, first: int) -> dict[str, Any]:
        request, end = self.request, self.sent
        logprobs = logprobs_of(self.model, request, generation, first, end)
        choice = (chat_choice if request.chat else text_choice)(
            request, generation, first, end, logprobs
        )
        return self.frame.chunk(request.chat, [choice]) | self._usage(handle, end)

    def _usage(self, handle: Handle, counted: int) -> dict[str, Any]:
        """Usage on every event, where requested; without prompt details."""
        if not self.request.continuous_usage:
            return {}
        return {"usage": usage_counts(handle, counted) | {"completion_tokens_details": None}}
