"""One completion on its way from the engine to the client: each step's tokens become events of the
stream, or all of them one body.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from monitor.simulate.answers import LanguageModel, Speech
from monitor.simulate.asks import Ask, api_error
from monitor.simulate.bodies import (
    Frame,
    chat_choice,
    logprobs_of,
    role_choice,
    text_choice,
    usage_chunk,
    usage_counts,
    whole,
)
from monitor.simulate.requests import Ending, Handle
from monitor.simulate.wire import Exchange

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def engine_dead() -> dict[str, Any]:
    """The error body of a dead engine (seen on vLLM 0.32 CPU)."""
    return api_error(500, "InternalServerError", ENGINE_DEAD).body


@dataclass(slots=True, eq=False)
class Completion:
    """What is said is decided when the first token comes; each later step sends what it brought."""

    exchange: Exchange
    ask: Ask
    frame: Frame
    model: LanguageModel
    speech: Speech | None = None
    sent: int = 0

    def ending(self, batch: int) -> Ending:
        """Decide what to say, in this company (EngineRequest.ending)."""
        self.speech = self.model.speak(self.ask.prompt, self.ask.wish, batch)
        return Ending(len(self.speech.tokens), self.speech.reason)

    def tokens(self, handle: Handle, count: int, _now_s: float) -> None:
        """`count` new tokens."""
        speech = self.speech
        if speech is None or self.exchange.over:
            return
        if not self.ask.stream:
            if handle.finished:
                self.exchange.reply(whole(self.frame, handle, self.ask, speech, self.model))
            return
        first, self.sent = self.sent, min(self.sent + count, len(speech.tokens))
        events = [self._event(handle, speech, first)]
        if self.ask.chat and first == 0:
            events.insert(
                0, self._role(handle)
            )  # it leaves with the first token (chat_completion/serving.py)
        if not handle.finished:
            self.exchange.events(*events)
            return
        if self.ask.include_usage:
            events.append(usage_chunk(self.frame, handle, self.ask))
        elif self.frame.fingerprint is not None:
            events[-1]["system_fingerprint"] = self.frame.fingerprint
        self.exchange.events(*events, "[DONE]")
        self.exchange.end_stream()

    def lost(self, _handle: Handle, why: str) -> None:
        """The engine died: an error inside the stream. The process went away: the connection closes
        without a word.
        """
        if self.exchange.over:
            return
        if why != "died":
            self.exchange.abort()
        elif self.ask.stream:
            self.exchange.events(
                json.dumps(engine_dead()), "[DONE]"
            )  # with blanks, unlike everything else that vLLM sends
            self.exchange.end_stream()
        else:
            self.exchange.reply(engine_dead(), 500)

    def _role(self, handle: Handle) -> dict[str, Any]:
        chunk = self.frame.chunk(True, [role_choice()]) | self._usage(handle, 0)
        ids = list(self.ask.prompt.ids) if self.ask.token_ids else None
        return chunk | {"prompt_token_ids": ids, "prompt_text": None}

    def _event(self, handle: Handle, speech: Speech, first: int) -> dict[str, Any]:
        ask, end = self.ask, self.sent
        logprobs = logprobs_of(self.model, ask, speech, first, end)
        choice = (chat_choice if ask.chat else text_choice)(ask, speech, first, end, logprobs)
        return self.frame.chunk(ask.chat, [choice]) | self._usage(handle, end)

    def _usage(self, handle: Handle, counted: int) -> dict[str, Any]:
        """Usage on every event, where that was asked for; without details of the prompt."""
        if not self.ask.continuous_usage:
            return {}
        return {"usage": usage_counts(handle, counted) | {"completion_tokens_details": None}}
