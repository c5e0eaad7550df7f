"""The API server's HTTP metrics, as prometheus-fastapi-instrumentator counts them for vLLM."""

from __future__ import annotations

from monitor.simulate.engine.counters import Histogram

#: Handlers with a name of their own; everything else is counted as "none".
COUNTED = frozenset(
    {"/v1/models", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}
)
#: Not counted at all (entrypoints/serve/instrumentator/metrics.py).
UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
FINE_EDGES = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    1.5,
    2,
    2.5,
    3,
    3.5,
    4,
    4.5,
    5,
    7.5,
    10,
    30,
    60,
)
COARSE_EDGES = (0.1, 0.5, 1)


class HttpCounts:
    """Counters since the start of the API server."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}  # handler, method, status class
        self.request_bytes: dict[str, list[int]] = {}  # handler -> count, sum
        self.response_bytes: dict[str, list[int]] = {}
        self.fine = Histogram(FINE_EDGES)
        self.coarse: dict[tuple[str, str], Histogram] = {}  # handler, method

    def note(
        self, path: str, method: str, status: int, asked: int, sent: int, took_s: float
    ) -> None:
        """Counts one answered request; bodies of streams have no length and count as 0 bytes."""
        if path in UNCOUNTED:
            return
        handler = path if path in COUNTED else "none"
        key = (handler, method, f"{status // 100}xx")
        self.requests[key] = self.requests.get(key, 0) + 1
        for sizes, size in ((self.request_bytes, asked), (self.response_bytes, sent)):
            pair = sizes.setdefault(handler, [0, 0])
            pair[0] += 1
            pair[1] += size
        self.fine.observe(took_s)
        self.coarse.setdefault((handler, method), Histogram(COARSE_EDGES)).observe(took_s)
