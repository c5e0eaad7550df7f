"""Requests as the engine sees them, and their progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Ending(NamedTuple):
    """The length of an answer in tokens, the end-of-text token included, and why it ends:
    `stop` or `length`.
    """

    tokens: int
    reason: str


@dataclass(
    slots=True
    # not frozen: that takes five times as long to create, and a history has one for each
    # request
)
class EngineRequest:
    """One request: the engine counts tokens and knows no text.

    `ending` is called once, when the first token is due, with the number of sequences in that
    step: a near tie may fall the other way in a batch. It must not exceed `max_tokens`.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    ending: Callable[[int], Ending]
    prefix: tuple[int, ...] = ()  # blocks.prefix_keys; empty: nothing can be shared
    priority: int = 0  # lower is earlier; ignored under fcfs
    parameter_set: str = ""  # what the server compiles at its first answer
    # a request for prompt_logprobs never uses the prefix cache (seen on vLLM 0.32 CPU)
    skip_cache: bool = False
    # (handle, new tokens, time)
    on_tokens: Callable[[Handle, int, float], None] | None = None
    on_lost: Callable[[Handle, str], None] | None = None  # the engine died or was restarted
    on_end: Callable[[Handle], None] | None = None  # all tokens have come


class RequestState(Enum):
    """The state of a request."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Handle:
    """One request in progress. Times are the engine's, in seconds; None where the event has not
    come.
    """

    request: EngineRequest
    arrived_s: float
    order: int
    state: RequestState = RequestState.WAITING
    ending: Ending | None = None
    scheduled_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    computed: int = 0  # tokens whose keys and values are in the cache
    generated: int = 0
    cached: int = 0  # prompt tokens found in the prefix cache when first scheduled
    preemptions: int = 0
    batch: int = 0  # sequences in the step of the first token
    held: list[int] = field(default_factory=list)  # keys of shared blocks
    published: int = 0  # how many of the request's keys were published
    private: int = 0  # blocks of its own
    wanted: int = 0  # tokens of the answer, as far as known

    def __post_init__(self) -> None:
        """Assumes `max_tokens` until the first token is due."""
        self.wanted = self.request.max_tokens

    @property
    def known(self) -> int:
        """Tokens to compute: the prompt and what was generated so far."""
        return self.request.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Whether all tokens have come."""
        return self.state is RequestState.FINISHED

    @property
    def rank(self) -> tuple[int, float, int]:
        """Order under the priority policy."""
        return (self.request.priority, self.arrived_s, self.order)
