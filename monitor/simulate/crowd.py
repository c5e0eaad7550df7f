"""Others on the simulated server: traffic as on a real service, and a batch job whose clients have no patience.

Settings of the world once a crowd is there: `traffic.*` (traffic.py) and `batch.*` (BatchJob).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from math import inf

from monitor.simulate.blocks import prefix_keys
from monitor.simulate.engine import Ending, EngineRequest, Handle
from monitor.simulate.traffic import Traffic
from monitor.simulate.world import World

RETRY_S = 1.0  # a client that was refused comes again after so long
SHARED = tuple(range(8192))  # what the prompts of the traffic begin with


@dataclass(slots=True)
class BatchJob:
    """`clients` ask again as soon as they are answered; `requests` is a pile that is handed over at once, and then 0 again."""

    clients: int = 0
    requests: int = 0
    prompt_tokens: int = 1500
    output_tokens: int = 400


@dataclass
class Crowd:
    """One of the world's sources. Its requests carry no text: the engine counts tokens."""

    world: World
    traffic: Traffic = field(init=False)
    batch: BatchJob = field(default_factory=BatchJob)

    def __post_init__(self) -> None:
        """Join the world."""
        self.traffic = Traffic(seed=self.world.seed, now_s=self.world.now_s)
        self._numbers = count(1)
        self._at_work = 0  # clients of the batch job with a request out
        self._retry_s = -inf
        self.world.groups |= {"traffic": self.traffic.settings, "batch": self.batch}
        self.world.sources.append(self)
        self.world.changed()

    def next_s(self) -> float:
        """When the next request comes."""
        self.traffic.catch_up(self.world.now_s)
        wants = self.batch.requests > 0 or self._at_work < self.batch.clients
        return min(self.traffic.next_s(), max(self.world.now_s, self._retry_s) if wants else inf)

    def advance(self, now_s: float) -> None:
        """Send what is due."""
        for arrival in self.traffic.advance(now_s):
            prompt, output = self._fitted(arrival.prompt_tokens, arrival.output_tokens)
            shared = SHARED[: min(prompt, round(self.traffic.settings.shared_tokens))]
            self._submit("user", prompt, output, prefix_keys(shared, self.world.config.block_size, None))
        if now_s < self._retry_s:
            return
        prompt, output = self._fitted(self.batch.prompt_tokens, self.batch.output_tokens)
        while self.batch.requests > 0 and self._submit("batch", prompt, output):
            self.batch.requests -= 1
        while self._at_work < self.batch.clients and self._submit("client", prompt, output):
            self._at_work += 1

    def _fitted(self, prompt: int, output: int) -> tuple[int, int]:
        """Lengths that the context can hold: a client's library cuts the prompt."""
        room = self.world.identity.max_model_len
        output = max(1, min(output, room // 2))
        return max(1, min(prompt, room - output)), output

    def _submit(self, who: str, prompt: int, output: int, prefix: tuple[int, ...] = ()) -> bool:
        """Whether the server took it; a user that is refused goes away."""
        request = EngineRequest(
            id=f"{who}-{next(self._numbers)}",
            prompt_tokens=prompt,
            max_tokens=output,
            ending=lambda _: Ending(output, "length"),
            prefix=prefix,
            on_tokens=self._answered if who == "client" else None,
            on_lost=self._lost if who == "client" else None,
        )
        taken = self.world.submit(request) is not None
        if not taken and who != "user":
            self._retry_s = self.world.now_s + RETRY_S
        return taken

    def _answered(self, handle: Handle, _tokens: int, _now_s: float) -> None:
        self._at_work -= handle.finished

    def _lost(self, _handle: Handle, _why: str) -> None:
        self._at_work -= 1
