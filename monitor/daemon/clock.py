"""Notices that the computer's clock was set back: whatever waits for a time of day would wait until
the clock has caught up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta

log = logging.getLogger(__name__)
LOOK_EVERY_S = 2.0
LEAST_S = 1.0  # what is less delays a run by so much at most


async def watch_clock(on_set_back: Callable[[timedelta], None]) -> None:
    """Call back with how far, each time. A clock that jumps ahead, as it does after a suspension,
    is no trouble: what is due runs once.
    """
    offset_s = time.time() - time.monotonic()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        before_s, offset_s = offset_s, time.time() - time.monotonic()
        back_s = before_s - offset_s
        if back_s >= LEAST_S:
            log.warning("the clock was set back by %.0f s; the schedule begins anew", back_s)
            on_set_back(timedelta(seconds=back_s))
