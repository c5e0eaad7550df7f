"""Engine steps per second of a busy server, between two readings of its metrics page."""

from __future__ import annotations

import math
from typing import NamedTuple

from monitor.judge.drift.settings import SECOND_US
from monitor.judge.drift.speed.load import EngineLoad, prompt_scale
from monitor.model import ServerPoint

# with fewer sequences running, the engine may have stood still between two readings
LEAST_SEQUENCES = 4.0
# below this, steps per second of a busy server vary by 1.8 % only (docs/detection.md)
MOST_PROMPT_TOK_S = 1500.0
MOST_GAP_S = 60.0  # readings further apart say nothing


class StepRate(NamedTuple):
    """ln(engine steps per second), at the load of these steps."""

    at_us: int
    load: EngineLoad
    value: float


def steps_between(before: ServerPoint | None, now: ServerPoint) -> StepRate | None:
    """Step rate between two readings, with the sequences and prompt tokens per step; None where a
    counter is unknown or the engine was not busy all the time.
    """
    if before is None or min(before.running or 0.0, now.running or 0.0) < LEAST_SEQUENCES:
        return None
    seconds = (now.at_us - before.at_us) / SECOND_US
    steps = _growth(before.engine_steps, now.engine_steps)
    generated = _growth(before.generation_tokens, now.generation_tokens)
    prompts = _growth(before.prompt_tokens, now.prompt_tokens)
    if steps is None or generated is None or prompts is None or not 0 < seconds <= MOST_GAP_S:
        return None
    if steps <= 0 or generated <= 0 or not 0 <= prompts <= MOST_PROMPT_TOK_S * seconds:
        return None
    load = EngineLoad(math.log1p(generated / steps), prompt_scale(prompts / steps))
    return StepRate(now.at_us, load, math.log(steps / seconds))


def _growth(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before
