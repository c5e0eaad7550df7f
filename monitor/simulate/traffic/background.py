"""Other clients of the simulated server: traffic as on a real service, and a batch job that sends
without pause.

They add settings to the world: `traffic.*` (traffic.py) and `batch.*` (BatchJob).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf

from monitor.simulate.engine.blocks import prefix_keys
from monitor.simulate.engine.requests import Ending, EngineRequest, Handle
from monitor.simulate.settings import ClientCount, Count
from monitor.simulate.traffic.traffic import Arrival, Traffic
from monitor.simulate.world import World

OnEnd = Callable[[Handle], None]
OnLost = Callable[[Handle, str], None]
# a client reads the answer first, so the engine's next step begins without its next request;
# clients follow one after the other
NEXT_S = 1e-6
RETRY_S = 1.0  # a refused client retries after this time
SHARED = tuple(range(8192))  # shared prefix of the traffic's prompts


@dataclass(slots=True)
class BatchJob:
    """`clients` send again as soon as they are answered; `requests` is a number submitted at
    once, which then returns to 0.
    """

    clients: ClientCount = 0
    requests: ClientCount = 0
    prompt_tokens: Count = 1500
    output_tokens: Count = 400


@dataclass
class BackgroundTraffic:
    """One of the world's sources. Its requests carry no text: the engine counts tokens."""

    world: World
    traffic: Traffic = field(init=False)
    batch: BatchJob = field(default_factory=BatchJob)

    def __post_init__(self) -> None:
        """Registers with the world."""
        self.traffic = Traffic(seed=self.world.seed, now_s=self.world.now_s)
        self._numbers = count(1)
        self._at_work = 0  # clients of the batch job with a request in flight
        self._retry_s = -inf
        self.world.groups |= {"traffic": self.traffic.settings, "batch": self.batch}
        # of the traffic, generated ahead
        self.coming: deque[tuple[float, EngineRequest]] = deque()
        self.world.sources.append(self)
        self.world.background = self
        self.world.changed()

    def next_s(self) -> float:
        """When the next request comes."""
        next_s = self.coming[0][0] if self.coming else self._traffic_s()
        if self.batch.requests > 0 or self._at_work < self.batch.clients:
            return min(next_s, max(self.world.now_s, self._retry_s))
        return next_s

    def _traffic_s(self) -> float:
        self.traffic.catch_up(self.world.now_s)
        return self.traffic.next_s()

    @property
    def plain(self) -> bool:
        """Whether its requests share no prefix."""
        return not self.traffic.settings.shared_tokens

    def generate_ahead(self, now_s: float, to_s: float) -> None:
        """Adds to `coming` the users' requests until then, and those of the batch job now.
        Settings must not change meanwhile.
        """
        if self._traffic_s() <= to_s:
            self.coming.extend(
                [
                    (arrival.at_s, self._request_of(arrival))
                    for arrival in self.traffic.advance(to_s)
                ]
            )
        for number, request in enumerate(self._wanted(now_s), 1):
            at_s = now_s + number * NEXT_S
            earlier = next(
                (place for place, (other_s, _) in enumerate(self.coming) if other_s > at_s),
                len(self.coming),
            )
            self.coming.insert(earlier, (at_s, request))

    def advance(self, now_s: float) -> None:
        """Sends what is due."""
        while self.coming and self.coming[0][0] <= now_s:
            self._submit(self.coming.popleft()[1])
        for arrival in self.traffic.advance(now_s):
            self._submit(self._request_of(arrival))
        for request in self._wanted(now_s):
            self._submit(request)

    def _wanted(self, now_s: float) -> Iterator[EngineRequest]:
        """The batch job's requests now."""
        while self.batch.requests > 0 and now_s >= self._retry_s:
            self.batch.requests -= 1
            yield self._batch_request()
        while self._at_work < self.batch.clients and now_s >= self._retry_s:
            self._at_work += 1
            yield self._batch_request(self._answered, self._lost)

    def _submit(self, request: EngineRequest) -> None:
        """Submits a request; a user who is refused gives up, the batch job retries."""
        if self.world.submit(request) is not None or request.id.startswith("user"):
            return
        self._retry_s = self.world.now_s + RETRY_S
        if request.on_lost is None:
            self.batch.requests += 1
        else:
            self._at_work -= 1

    def _fitted(self, prompt: int, output: int) -> tuple[int, int]:
        """Lengths that fit into the context: client libraries truncate prompts."""
        room = self.world.identity.max_model_len
        if prompt + output <= room and 2 * output <= room:
            return prompt, output
        output = max(1, min(output, room // 2))
        return max(1, min(prompt, room - output)), output

    def _request_of(self, arrival: Arrival) -> EngineRequest:
        """A user's request."""
        prompt, output = self._fitted(arrival.prompt_tokens, arrival.output_tokens)
        ending, shared = (
            Ending(output, "length"),
            min(prompt, round(self.traffic.settings.shared_tokens)),
        )
        prefix = prefix_keys(SHARED[:shared], self.world.config.block_size, None) if shared else ()
        return EngineRequest(
            f"user-{next(self._numbers)}", prompt, output, lambda _: ending, prefix
        )

    def _batch_request(
        self, on_end: OnEnd | None = None, on_lost: OnLost | None = None
    ) -> EngineRequest:
        prompt, output = self._fitted(self.batch.prompt_tokens, self.batch.output_tokens)
        ending = Ending(output, "length")
        return EngineRequest(
            id=f"batch-{next(self._numbers)}",
            prompt_tokens=prompt,
            max_tokens=output,
            ending=lambda _: ending,
            on_lost=on_lost,
            on_end=on_end,
        )

    def _answered(self, _handle: Handle) -> None:
        self._at_work -= 1

    def _lost(self, _handle: Handle, _why: str) -> None:
        self._at_work -= 1
