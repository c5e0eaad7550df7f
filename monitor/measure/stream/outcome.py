"""The outcome of a stream that ended, and a sentence about every outcome but ok. Pure."""

from __future__ import annotations

import json

from monitor.measure.json_values import error_message, shortened
from monitor.measure.stream.answer import Answer
from monitor.measure.stream.patience import Limits
from monitor.model import Outcome

LONGEST_MESSAGE = 300  # characters of a server's own words


def refusal(status: int, body: bytes) -> tuple[Outcome, str]:
    """The outcome of a response with another status than 200."""
    try:
        message = error_message(json.loads(body))
    # RecursionError: brackets nested deeper than the parser goes
    except (ValueError, RecursionError):
        message = shortened(body) or "no text"
    outcome = Outcome.REJECTED if status in {429, 503} else Outcome.HTTP_ERROR
    return outcome, f"HTTP {status}: {shortened(message.encode(), LONGEST_MESSAGE)}"


def broken_connection(answered: bool, error: Exception) -> tuple[Outcome, str]:
    """The outcome of a connection that broke: `answered` after the response's first bytes."""
    reason = str(error) or type(error).__name__
    if not answered:
        return Outcome.REFUSED, f"the connection was closed before an answer: {reason}"
    return Outcome.STREAM_ERROR, f"the stream broke off: {reason}"


def ended(answer: Answer) -> tuple[Outcome, str | None]:
    """The outcome of a stream that ended by itself. OK: a finish reason, [DONE], no error and some
    content.
    """
    if answer.error is not None:
        message = shortened(answer.error.encode(), LONGEST_MESSAGE)
        return Outcome.STREAM_ERROR, f"the server sent an error in the stream: {message}"
    if answer.malformed is not None:
        return Outcome.MALFORMED, answer.malformed
    if answer.finish_reason in {"abort", "error"}:
        return (
            Outcome.STREAM_ERROR,
            f"the server ended the answer with finish_reason {answer.finish_reason}",
        )
    if answer.finish_reason is None or not answer.finished:
        missing = "a finish reason" if answer.finish_reason is None else "[DONE]"
        return Outcome.TRUNCATED, f"the stream ended without {missing}"
    if answer.first_token_ns is None:
        return Outcome.EMPTY, "the answer contains no text, no reasoning and no tool call"
    return Outcome.OK, None


def gave_up(outcome: Outcome, limits: Limits, answer: Answer) -> str | None:
    """The sentence for a stream that we cancelled; None for other outcomes."""
    if outcome is Outcome.QUEUE_CAP:
        return (
            f"no first token within {limits.max_wait_s:g} s while the engine worked for "
            "others; cancelled"
        )
    if outcome is Outcome.HUNG:
        return (
            f"the engine's step counter stood still for {limits.hang_after_s:g} s while our "
            "request was pending: the engine hangs or is paused"
        )
    if outcome is not Outcome.TIMEOUT:
        return None
    if answer.first_token_ns is not None:
        return f"the answer had not ended {limits.answer_s:g} s after its first token; cancelled"
    if limits.max_wait_s is None:
        return f"no first token within {limits.give_up_s:g} s; cancelled"
    return "no first token, and no step counter that tells a queue from a hang; cancelled"
