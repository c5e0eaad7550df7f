"""One canary in flight through the virtual engine, and the stream that the daemon would receive."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate

from monitor.judge.quality.pinned import PinJudgement
from monitor.measure.stream.answer import Answer
from monitor.measure.stream.client import Stream
from monitor.measure.stream.patience import Patience
from monitor.model import Marks, Outcome, Pin, Verdict
from monitor.replay.virtual.answers import ReadAnswer, ServedProbe
from monitor.replay.virtual.noise import SampleNoise
from monitor.simulate.api.bodies import timing
from monitor.simulate.engine.requests import Ending, Handle
from monitor.simulate.identity import Identity

CONNECT_NS, OBSERVER_LAG_MS = 400_000, 0.2  # on loopback


@dataclass(slots=True)
class Flight:
    """A request in flight. Equal steps are reported together, so gaps between chunks are kept
    with their number.
    """

    patience: Patience
    asked: ServedProbe | None = None
    handle: Handle | None = None
    answer: ReadAnswer | None = None
    lost: bool = False
    first_s: float | None = None
    last_s: float | None = None
    tokens: int = 0
    tokens_at_first: int = 0
    gaps: list[tuple[float, int]] = field(default_factory=list)  # seconds, and how many of them

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.lost or (self.handle is not None and self.handle.finished)

    def ending(self, batch: int) -> Ending:
        """Decides on the answer by the size of the batch in which it begins (EngineRequest)."""
        assert self.asked is not None  # noqa: S101 - set before the request is handed over
        self.answer = self.asked.answer(batch)
        return Ending(len(self.answer.generation.tokens), self.answer.generation.reason)

    def received(self, count: int, now_s: float, bulk: Sequence[int] | None) -> None:
        """Notes `count` tokens, the last of them now. `bulk`: tokens of each of some equal
        steps; None for one token a step, () for a single step.
        """
        if self.last_s is None:
            self.first_s, self.tokens_at_first = now_s, count
        else:
            steps = count if bulk is None else len(bulk) or 1
            self.gaps.append(((now_s - self.last_s) / steps, steps))
        self.last_s = now_s
        self.tokens += count
        self.patience.token(now_s)

    def judged(self, pin: Pin | None) -> PinJudgement:
        """The gate's verdict on the whole answer."""
        if self.asked is None or self.answer is None:
            return PinJudgement(Verdict.UNKNOWN)
        return self.asked.judged(self.answer, pin)

    def stream(
        self, outcome: Outcome, now_s: float, identity: Identity, noise: SampleNoise
    ) -> Stream:
        """What the daemon's stream client returns, at the end or when patience ended."""
        sent_ns = round(self.patience.sent_s * 1e9)
        done_ns = round(now_s * 1e9)
        if outcome is Outcome.REFUSED:
            return Stream(outcome, Marks(connect_started=sent_ns, done=done_ns), Answer())
        answer = self._answer(outcome, sent_ns, identity, noise)
        if outcome is Outcome.OK and answer.last_token_ns is not None:
            done_ns = answer.last_token_ns
        marks = Marks(
            connect_started=sent_ns - CONNECT_NS,
            connected=sent_ns,
            sent=sent_ns,
            headers=sent_ns,
            first_event=answer.first_event_ns,
            first_token=answer.first_token_ns,
            first_visible=answer.first_visible_ns,
            last_token=answer.last_token_ns,
            done=done_ns,
        )
        return Stream(outcome, marks, answer, observer_lag_ms=OBSERVER_LAG_MS)

    def _answer(
        self, outcome: Outcome, sent_ns: int, identity: Identity, noise: SampleNoise
    ) -> Answer:
        """The answer as far as it came; usage and the server's own figures come with its end."""
        if self.answer is None or self.handle is None or self.first_s is None:
            return Answer()
        answer, handle = copy(self.answer.answer), self.handle
        self._time(answer, sent_ns, handle, noise)
        answer.tokens_at_first = self.tokens_at_first
        if outcome is not Outcome.OK:
            answer.text = "".join(self.answer.generation.texts[: self.tokens])
            answer.token_ids = answer.token_ids[: self.tokens]
            answer.finish_reason = answer.prompt_tokens = None
            return answer
        answer.completion_tokens = self.tokens
        answer.cached_tokens = handle.cached if identity.prompt_tokens_details else None
        answer.server_metrics = _timing(handle, noise) if identity.per_request_metrics else None
        return answer

    def _time(self, answer: Answer, sent_ns: int, handle: Handle, noise: SampleNoise) -> None:
        """Sets the arrival times of its chunks, with noise."""
        first_s = handle.first_s or handle.arrived_s
        scheduled_s = handle.scheduled_s or handle.arrived_s
        wait_s = scheduled_s - handle.arrived_s + (first_s - scheduled_s) * noise.prefill
        decode_s = ((self.last_s or first_s) - (self.first_s or first_s)) * noise.decode
        first_ns = sent_ns + round(wait_s * 1e9 + noise.network_ms * 1e6)
        answer.first_event_ns = answer.first_token_ns = answer.first_visible_ns = first_ns
        answer.last_token_ns = first_ns + round(decode_s * 1e9)
        gaps_ns = (gap_s * 1e9 for gap_s in noise.gaps(self.gaps))
        answer.arrivals_ns = list(map(int, accumulate(gaps_ns, initial=first_ns)))


def _timing(handle: Handle, noise: SampleNoise) -> dict[str, float]:
    """The server's own figures with the same noise; its `time_to_first_token_ms` is the prefill."""
    own = timing(handle)
    return {
        "queue_time_ms": own["queue_time_ms"],
        "time_to_first_token_ms": own["time_to_first_token_ms"] * noise.prefill,
        "generation_time_ms": own["generation_time_ms"] * noise.decode,
    }
