"""The lag of an event loop that does nothing else: the part of `observer_lag_ms` that is due to the
machine and not to the daemon.

    python benchmarks/idle_loop.py 15

Prints the p95 of the lag, in milliseconds, over intervals as long as a short canary.
"""

from __future__ import annotations

import asyncio
import sys
import time

from common import percentile

from monitor.measure.lag import LagMeter

INTERVAL_S = 0.2


async def main(seconds: float) -> float:
    """Measures for the given time; returns the p95."""
    lags_ms = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        meter = LagMeter()
        meter.start()
        await asyncio.sleep(INTERVAL_S)
        lags_ms.append(meter.stop())
    return percentile(lags_ms, 0.95)


if __name__ == "__main__":
    print(f"{asyncio.run(main(float(sys.argv[1]))):.3f}")
