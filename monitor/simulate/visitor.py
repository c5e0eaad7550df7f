"""The canary in virtual time: asks as the daemon asks, waits as it waits, and says what it would have stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from monitor.simulate.answers import LanguageModel, Speech
from monitor.simulate.blocks import prefix_keys
from monitor.simulate.card import Card, CardReading
from monitor.simulate.engine import Ending, EngineRequest, Handle
from monitor.simulate.leap import LeapingWorld
from monitor.simulate.noise import Noise, Unrest
from monitor.simulate.records import Page, Row, iso, page_of, sample_gpu
from monitor.simulate.shipped import ShippedProbe

LOOK_EVERY_S = 2.0  # the daemon's patience, monitor/measure/patience.py and canary.py
HANG_AFTER_S, COLD_HANG_S = 10.0, 300.0
GIVE_UP_S = 3600.0
IDLE_AFTER_S = 10.0
MIN_TOKENS_FOR_RATE = 8
Waiting = Generator[float, None, Any]  # yields until when it waits; it is woken earlier by `Sent.over`


@dataclass(slots=True)
class Sent:
    """One request that is out."""

    handle: Handle | None = None
    speech: Speech | None = None
    arrivals: list[float] = field(default_factory=list)
    lost: str | None = None

    @property
    def over(self) -> bool:
        """Nothing more will come."""
        return self.lost is not None or (self.handle is not None and self.handle.finished)


@dataclass
class Visitor:
    """What the daemon knows of the server between two canaries. `rows`: what it has stored."""

    world: LeapingWorld
    target: str
    noise: Noise
    rows: list[Row] = field(default_factory=list)
    out: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self._models: dict[str, LanguageModel] = {}
        self._warmed: set[tuple[float, str]] = set()
        self._steps: float | None = None
        self._steps_since_s: float | None = None
        self._moved = False
        self._salts = 0

    def look(self) -> Page:
        """Read the metrics page, and note since when the engine stands still."""
        page = page_of(self.world)
        if page.engine_steps is None or page.engine_steps != self._steps:
            self._moved = self._moved or (self._steps is not None and page.engine_steps is not None)
            self._steps = page.engine_steps
            self._steps_since_s = None if page.engine_steps is None else self.world.now_s
        return page

    def cards(self) -> list[CardReading]:
        """What the driver says of every card."""
        self.world.settle()
        return [card.reading() for card in self.world.cards if isinstance(card, Card)]

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
        idle_s = None if self._steps_since_s is None else started_s - self._steps_since_s
        row: Row = {"target": self.target, "probe": name, "class": probe.traffic_class, "started_at": iso(world.unix_s), "phase": phase}
        row |= {"idle_before_s": _round(idle_s), "verdict": "unknown", "fingerprint": digest(world)}
        row["process_start"] = None if before.process_start_s is None else iso(before.process_start_s)
        if before.asleep:
            self.rows.append(row | {"outcome": "asleep"})
            return
        cards, unrest, sent = self.cards(), self.noise.next(started_s), Sent()
        refusal = world.refusal()
        outcome = {"down": "refused", "dead": "http_error", "busy": "rejected"}[refusal] if refusal else None
        if outcome is None:
            self._send(probe, salt, sent)
            outcome = yield from self._wait(probe, phase, sent, before)
        after = self.look()
        took_s = world.now_s - started_s
        row |= {"outcome": outcome, "e2e_ms": _round(took_s * 1e3), **_load(before, after, sent, outcome)}
        row |= sample_gpu(cards, self.cards(), took_s) | {"connect_ms": 0.4, "observer_lag_ms": 0.2}
        if outcome == "ok" and sent.handle is not None and sent.speech is not None:
            row |= self._answer(probe, sent.handle, sent.speech, sent.arrivals, unrest)
            self._warmed.add((life, probe.parameter_set))
        self.rows.append(row)

    def _phase(self, probe: ShippedProbe, before: Page, life: float) -> str:
        if (life, probe.parameter_set) not in self._warmed:
            return "cold"
        if self._steps_since_s is None or (not self._moved and not before.running):
            return "idle"
        return "idle" if self.world.now_s - self._steps_since_s > IDLE_AFTER_S else "warm"

    def _send(self, probe: ShippedProbe, salt: str, sent: Sent) -> None:
        world = self.world
        prompt = probe.prompt(world.identity, world.answers)
        model = self._models.setdefault(world.answers, LanguageModel(world.answers, world.seed))

        def ending(batch: int) -> Ending:
            sent.speech = model.speak(prompt, probe.wish, batch)
            return Ending(len(sent.speech.tokens), sent.speech.reason)

        def tokens(_handle: Handle, count: int, now_s: float) -> None:
            if world.leaping and sent.arrivals:  # one by one, evenly
                last_s = sent.arrivals[-1]
                sent.arrivals += [last_s + (now_s - last_s) * (number + 1) / count for number in range(count)]
            else:
                sent.arrivals += [now_s] * count

        def lost(_handle: Handle, why: str) -> None:
            sent.lost = why

        sent.handle = world.submit(
            EngineRequest(
                id=f"canary-{salt}",
                prompt_tokens=len(prompt.ids),
                max_tokens=probe.wish.max_tokens,
                ending=ending,
                prefix=prefix_keys(prompt.ids, world.config.block_size, salt),
                parameter_set=probe.parameter_set,
                on_tokens=tokens,
                on_lost=lost,
            )
        )

    def _wait(self, probe: ShippedProbe, phase: str, sent: Sent, before: Page) -> Generator[float, None, str]:
        """Until the answer is whole or patience ends; the outcome."""
        world, begin_s = self.world, self.world.now_s
        cap_s = None if phase == "cold" else probe.max_wait_s
        hang_s = COLD_HANG_S if phase == "cold" else HANG_AFTER_S
        steps, moved_s, moved = before.engine_steps, begin_s, False
        self.out.append(sent)
        try:
            while True:
                waits_for_first = not sent.arrivals
                look_s = max(world.now_s, sent.arrivals[-1] if sent.arrivals else begin_s) + LOOK_EVERY_S
                if cap_s is not None and waits_for_first and world.now_s < begin_s + cap_s:
                    look_s = min(look_s, begin_s + cap_s)
                yield look_s
                if sent.over:
                    return "ok" if sent.lost is None else "stream_error"
                now_s, page = world.now_s, self.look()
                if page.engine_steps is not None and steps is not None and page.engine_steps != steps:
                    moved, moved_s = True, now_s
                steps = page.engine_steps if page.engine_steps is not None else steps
                counted = page.engine_steps is not None and before.engine_steps is not None
                outcome = None
                if counted and now_s - max([moved_s, *sent.arrivals[-1:]]) >= hang_s:
                    outcome = "hung"
                elif cap_s is not None and not sent.arrivals and now_s >= begin_s + cap_s:
                    outcome = "queue_cap" if moved else None if counted else "timeout"
                elif now_s - begin_s >= GIVE_UP_S:
                    outcome = "timeout"
                if outcome is not None:
                    if sent.handle is not None:
                        world.cancel(sent.handle)
                    return outcome
        finally:
            self.out.remove(sent)

    def _answer(self, probe: ShippedProbe, handle: Handle, speech: Speech, arrivals: list[float], unrest: Unrest) -> Row:
        identity = self.world.identity
        first_s, scheduled_s = handle.first_s or handle.arrived_s, handle.scheduled_s or handle.arrived_s
        queue_ms, prefill_ms = (scheduled_s - handle.arrived_s) * 1e3, (first_s - scheduled_s) * 1e3 * unrest.prefill
        decode_ms = (arrivals[-1] - arrivals[0]) * 1e3 * unrest.decode
        ttft_ms, output = queue_ms + prefill_ms + unrest.network_ms, "".join(speech.texts)
        count, in_first = len(arrivals), arrivals.count(arrivals[0])
        chunks = sorted(set(arrivals))
        gaps = sorted((b - a) * 1e3 * unrest.decode for a, b in pairwise(chunks))
        row: Row = {
            "ttft_ms": _round(ttft_ms),
            "ttft_visible_ms": _round(ttft_ms),
            "e2e_ms": _round(ttft_ms + decode_ms),
            "decode_tok_s": round((count - in_first) / decode_ms * 1e3, 4) if count >= MIN_TOKENS_FOR_RATE and decode_ms > 0 else None,
            "prompt_tokens": handle.request.prompt_tokens,
            "completion_tokens": count,
            "cached_tokens": handle.cached if identity.prompt_tokens_details else None,
            "finish_reason": speech.reason,
            "output": output,
            "verdict": probe.verdict(output),
        }
        if gaps:
            row |= {"itl_p50_ms": _rank(gaps, 0.5), "itl_p95_ms": _rank(gaps, 0.95), "itl_max_ms": _round(gaps[-1])}
        if identity.per_request_metrics:
            row |= {"queue_ms": _round(queue_ms), "prefill_ms": _round(prefill_ms), "decode_ms": _round(decode_ms)}
            row["server_timing"] = "response"
        return row


def _load(before: Page, after: Page, sent: Sent, outcome: str) -> Row:
    """What the server did for others around and during the sample."""
    if before.state != "ok":
        return {}
    row: Row = {"running": before.running, "waiting": before.waiting, "kv_usage": _round(before.kv_usage, 5)}
    prompt = sent.handle.request.prompt_tokens if sent.handle is not None and outcome == "ok" else None
    ours = len(sent.arrivals) if outcome == "ok" else None if sent.arrivals else 0
    row["preemptions"] = _growth(before.preemptions, after.preemptions)
    row["other_prompt_tokens"] = _growth(before.prompt_tokens, after.prompt_tokens, prompt)
    row["other_generation_tokens"] = _growth(before.generation_tokens, after.generation_tokens, ours)
    drafted, accepted = _growth(before.draft_tokens, after.draft_tokens), _growth(before.accepted_tokens, after.accepted_tokens)
    return row | {"spec_acceptance": _round(accepted / drafted, 4) if drafted and accepted is not None else None}


def _growth(before: float | None, after: float | None, less: float | None = 0) -> float | None:
    if before is None or after is None or less is None or after - before < less:
        return None
    return after - before - less


def _rank(ordered: list[float], share: float) -> float:
    return round(ordered[max(1, -(-len(ordered) * round(share * 1000) // 1000)) - 1], 3)


def _round(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def digest(world: LeapingWorld) -> str:
    """Stands for the fingerprint's digest: it changes when one of the root fields changes that can be seen from outside."""
    identity = world.identity
    cards = [(card.uuid, card.driver_version, card.limit_w) for card in world.cards if isinstance(card, Card)]
    seen = [identity.version, identity.root, identity.max_model_len, identity.template, world.answers == "lost-bos", cards]
    seen += [world.system_fingerprint(), identity.quantization, world.config.enable_prefix_caching]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:12]
