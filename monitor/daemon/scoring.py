"""Teacher-forced scores: how far the log-probabilities of a pinned answer have shifted when another
answer came.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import httpx

from monitor.judge.quality.pinned import shift_between
from monitor.measure.score import score
from monitor.measure.server.api import ServerRefusedError, ServerUnreachableError
from monitor.model import PinnedOutput, Probe

log = logging.getLogger(__name__)


async def scored_shift(
    http: httpx.AsyncClient, probe: Probe, model: str | None, pinned: PinnedOutput
) -> tuple[float | None, int]:
    """Returns the shift (root mean square, nat; None if unknown) and the tokens that it cost. A
    server that does not support scoring is logged.
    """
    try:
        found = await score(http, probe, model, pinned)
    except (ServerRefusedError, ServerUnreachableError) as error:
        log.info("probe=%s the pinned answer could not be scored: %s", probe.name, error)
        return None, 0
    return (None, 0) if found is None else (shift_between(pinned, found.answer), found.tokens)


async def scoring_noise(
    http: httpx.AsyncClient, probe: Probe, model: str | None, outputs: Sequence[PinnedOutput]
) -> float | None:
    """Returns how far scores differ from the stream's log-probabilities with nothing changed:
    prefill and decode compute in different orders.
    """
    shifts = [(await scored_shift(http, probe, model, output))[0] for output in outputs]
    return max((shift for shift in shifts if shift is not None), default=None)
