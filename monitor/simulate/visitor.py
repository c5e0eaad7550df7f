"""The canary in virtual time: asks as the daemon asks, waits as it waits, and says what it would
have stored.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from monitor.simulate.answered import Sent, answer_row, load_row
from monitor.simulate.asking import Asking
from monitor.simulate.blocks import prefix_keys
from monitor.simulate.card import Card
from monitor.simulate.engine import Ending, EngineRequest, Handle
from monitor.simulate.fingerprint import Digests
from monitor.simulate.leap import LeapingWorld
from monitor.simulate.noise import Noise
from monitor.simulate.records import Page, Row, iso, page_of, sample_gpu
from monitor.simulate.shipped import ShippedProbe

LOOK_EVERY_S = 2.0  # the daemon's patience, monitor/measure/stream/patience.py and canary.py
HANG_AFTER_S, COLD_HANG_S = 10.0, 300.0
GIVE_UP_S = 3600.0
IDLE_AFTER_S = 10.0
REFUSED = {"down": "refused", "dead": "http_error", "busy": "rejected"}
CONNECT_MS, OBSERVER_LAG_MS = 0.4, 0.2  # on loopback
Waiting = Generator[
    float, None, Any
]  # yields until when it waits; it is woken earlier when its request is over
_known_iso = lru_cache(maxsize=64)(iso)


@dataclass
class Visitor:
    """What the daemon knows of the server between two canaries. `rows`: what it has stored."""

    world: LeapingWorld
    target: str
    noise: Noise
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self.asking = Asking(self.world)
        self._digests = Digests(self.world)
        self._warmed: set[tuple[float, str]] = set()
        self._steps: float | None = None
        self._steps_since_s: float | None = None
        self._moved = False
        self._salts = 0

    @property
    def first_fingerprint(self) -> str:
        """Of what is served when the history begins, under which the pins were taken."""
        return self._digests.first

    def look(self) -> Page:
        """Read the metrics page, and note since when the engine stands still."""
        page = page_of(self.world)
        if page.engine_steps is None or page.engine_steps != self._steps:
            self._moved = self._moved or (self._steps is not None and page.engine_steps is not None)
            self._steps = page.engine_steps
            self._steps_since_s = None if page.engine_steps is None else self.world.now_s
        return page

    def visit(self, probe: ShippedProbe) -> Waiting:
        """One run of a probe, and where it is sent twice, the second with the same salt."""
        self._salts += 1
        yield from self._one(probe, probe.name, f"{self._salts:x}")
        if probe.twice:
            yield from self._one(probe, f"{probe.name}-again", f"{self._salts:x}")

    def _one(self, probe: ShippedProbe, name: str, salt: str) -> Waiting:
        world, before = self.world, self.look()
        started_s, life = world.now_s, self.world.engine.started_s
        phase = self._phase(probe, before, life)
        row: Row = {
            **{
                "target": self.target,
                "probe": name,
                "class": probe.traffic_class,
                "started_at": iso(world.unix_s),
                "phase": phase,
            },
            **{"verdict": "unknown", **self._filed(probe)},
            "process_start": None
            if before.process_start_s is None
            else _known_iso(before.process_start_s),
            "idle_before_s": None
            if self._steps_since_s is None
            else round(started_s - self._steps_since_s, 3),
        }
        self.rows.append(row)
        if before.asleep:
            row["outcome"] = "asleep"
            return
        world.settle()
        cards = [card for card in world.cards if isinstance(card, Card)]
        counted, unrest, sent = (
            [card.counts() for card in cards],
            self.noise.next(started_s),
            Sent(*self.asking.prompt(probe)),
        )
        refusal = world.refusal()
        outcome = REFUSED[refusal] if refusal else None
        if outcome is None:
            self._send(probe, salt, sent)
            outcome = yield from self._wait(probe, phase, sent, before)
        after = self.look()
        took_s = world.now_s - started_s
        row |= {
            "outcome": outcome,
            "e2e_ms": round(took_s * 1e3, 3),
            "connect_ms": CONNECT_MS,
            "observer_lag_ms": OBSERVER_LAG_MS,
        }
        row |= load_row(before, after, sent, outcome)
        world.settle()
        row |= sample_gpu(counted, cards, took_s)
        if outcome == "ok" and sent.speech is not None:
            row |= answer_row(world.identity, sent, unrest)
            row |= self._judged(probe, sent, unrest.shift_nat, _is_alone(row))
            self._warmed.add((life, probe.parameter_set))

    def _filed(self, probe: ShippedProbe) -> Row:
        """Under which fingerprint, and against which pin."""
        digest, pin = self._digests.now(), self.asking.pins.get(probe.name)
        return {
            "fingerprint": digest,
            "pin": pin,
            "stale": None if pin is None else digest != self._digests.first,
        }

    def _judged(self, probe: ShippedProbe, sent: Sent, noise_nat: float, alone: bool) -> Row:
        """Where another answer came the daemon asks for the pinned one's score, if it had the
        server to itself. The few milliseconds of prefill that this takes are left out here.
        """
        assert sent.speech is not None  # noqa: S101 - for the type checker
        judged = self.asking.judged(probe, sent.state, sent.prompt, sent.speech)
        known = judged.shift_nat if judged.first_divergence is None or alone else None
        shift = None if known is None else round((known**2 + noise_nat**2) ** 0.5, 5)
        return {
            "verdict": judged.verdict,
            "first_divergence": judged.first_divergence,
            "logprob_shift": shift,
        }

    def _phase(self, probe: ShippedProbe, before: Page, life: float) -> str:
        if (life, probe.parameter_set) not in self._warmed:
            return "cold"
        if self._steps_since_s is None or (not self._moved and not before.running):
            return "idle"
        return "idle" if self.world.now_s - self._steps_since_s > IDLE_AFTER_S else "warm"

    def _send(self, probe: ShippedProbe, salt: str, sent: Sent) -> None:
        world = self.world

        def ending(batch: int) -> Ending:
            sent.speech = self.asking.speech(probe, sent.state, sent.prompt, batch)
            return Ending(len(sent.speech.tokens), sent.speech.reason)

        def tokens(handle: Handle, count: int, now_s: float) -> None:
            sent.note(count, now_s, world.chunks if world.leaping else ())
            world.halted = world.halted or handle.finished

        def lost(_handle: Handle, why: str) -> None:
            sent.lost = why
            world.halted = True

        sent.handle = world.submit(
            EngineRequest(
                id=f"canary-{salt}",
                prompt_tokens=len(sent.prompt.ids),
                max_tokens=probe.wish.max_tokens,
                ending=ending,
                prefix=prefix_keys(sent.prompt.ids, world.config.block_size, salt)
                if probe.twice
                else (),  # nobody else has its salt
                parameter_set=probe.parameter_set,
                on_tokens=tokens,
                on_lost=lost,
            )
        )

    def _wait(
        self, probe: ShippedProbe, phase: str, sent: Sent, before: Page
    ) -> Generator[float, None, str]:
        """Until the answer is whole or patience ends; the outcome."""
        world, begin_s = self.world, self.world.now_s
        cap_s = None if phase == "cold" else probe.max_wait_s
        hang_s = COLD_HANG_S if phase == "cold" else HANG_AFTER_S
        steps, moved_s, moved = before.engine_steps, begin_s, False
        world.watched += 1
        try:
            while True:
                look_s = (
                    max(world.now_s, begin_s if sent.last_s is None else sent.last_s) + LOOK_EVERY_S
                )
                if cap_s is not None and sent.last_s is None and world.now_s < begin_s + cap_s:
                    look_s = min(look_s, begin_s + cap_s)
                yield look_s
                if sent.over:
                    return "ok" if sent.lost is None else "stream_error"
                now_s, page = world.now_s, self.look()
                if (
                    page.engine_steps is not None
                    and steps is not None
                    and page.engine_steps != steps
                ):
                    moved, moved_s = True, now_s
                steps = page.engine_steps if page.engine_steps is not None else steps
                counted = page.engine_steps is not None and before.engine_steps is not None
                outcome = None
                if counted and now_s - max(moved_s, sent.last_s or 0.0) >= hang_s:
                    outcome = "hung"
                elif cap_s is not None and sent.last_s is None and now_s >= begin_s + cap_s:
                    outcome = "queue_cap" if moved else None if counted else "timeout"
                elif now_s - begin_s >= GIVE_UP_S:
                    outcome = "timeout"
                if outcome is not None:
                    if sent.handle is not None:
                        world.cancel(sent.handle)
                    return outcome
        finally:
            world.watched -= 1


def _is_alone(row: Row) -> bool:
    """Whether the server worked for nobody else meanwhile
    (monitor/judge/quality/gate.py:was_alone).
    """
    others = row.get("other_generation_tokens")
    return row.get("running") == 0 if others is None else others <= 0
