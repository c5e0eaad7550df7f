"""What the engine is asked, and how far it has come with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Ending(NamedTuple):
    """How long an answer will be, in tokens with the end-of-text token, and why it will end: `stop`
    or `length`.
    """

    tokens: int
    reason: str


@dataclass(
    slots=True
    # not frozen: a frozen one takes five times as long to make, and there is one for each request
    # of a history
)
class EngineRequest:
    """One request as the engine sees it: it counts tokens and knows no text.

    `ending` is asked once, when the first token is due, with the number of sequences in that step:
    a near tie may fall the other way in a batch. It must not ask for more than `max_tokens`.
    """

    id: str
    prompt_tokens: int
    max_tokens: int
    ending: Callable[[int], Ending]
    prefix: tuple[int, ...] = ()  # blocks.prefix_keys; empty: nothing of it can be shared
    priority: int = 0  # lower is earlier; without meaning under fcfs
    parameter_set: str = ""  # what the server compiles for at its first answer
    # a request for prompt_logprobs never looks into the prefix cache (seen on vLLM 0.32 CPU)
    skip_cache: bool = False
    # (handle, how many new ones, when)
    on_tokens: Callable[[Handle, int, float], None] | None = None
    on_lost: Callable[[Handle, str], None] | None = None  # the engine died or was restarted
    on_end: Callable[[Handle], None] | None = None  # all tokens have come


class RequestState(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Handle:
    """One request on its way. Times are the engine's, in seconds; None where it has not come so
    far.
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
    cached: int = 0  # prompt tokens that the prefix cache had at the first schedule
    preemptions: int = 0
    batch: int = 0  # sequences in the step of the first token
    held: list[int] = field(default_factory=list)  # keys of shared blocks
    published: int = 0  # how many of the request's keys were offered to others
    private: int = 0  # blocks of its own
    wanted: int = 0  # tokens of the answer, as far as that is known

    def __post_init__(self) -> None:
        """Until the first token is due it can be as long as was asked for."""
        self.wanted = self.request.max_tokens

    @property
    def known(self) -> int:
        """Tokens there are to compute: the prompt and what was generated so far."""
        return self.request.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Whether all tokens have come."""
        return self.state is RequestState.FINISHED

    @property
    def rank(self) -> tuple[int, float, int]:
        """Place in the queue under the priority policy."""
        return (self.request.priority, self.arrived_s, self.order)
