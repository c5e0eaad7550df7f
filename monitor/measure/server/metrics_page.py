"""The server's /metrics page: fetched within a second or abandoned, names by an alias table, and a
missing metric is unknown, never zero.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import httpx
from prometheus_client.parser import text_string_to_metric_families

from monitor.measure.json_values import LARGEST
from monitor.model import ServerPage

LATEST_START_S = 253_402_300_799.0  # the end of the year 9999, the last of datetime
SCRAPE_TIMEOUT_S = 1.0  # a slow page must not delay a canary

#: Our name -> vLLM's names, newest first, the first one present wins. Renames 0.6 -> 0.32:
#: gpu_cache_usage_perc (vLLM pull request 18354), time_in_queue_requests (9659). Of histograms,
#: _sum and _count are read: their smallest bucket is 0.3 s, useless for canaries.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "process_start_s": ("process_start_time_seconds",),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "engine_steps": ("vllm:iteration_tokens_total_count",),
    "preemptions": ("vllm:num_preemptions_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "requests_finished": ("vllm:request_success_total",),
    "queue_s_sum": ("vllm:request_queue_time_seconds_sum", "vllm:time_in_queue_requests_sum"),
    "queue_count": ("vllm:request_queue_time_seconds_count", "vllm:time_in_queue_requests_count"),
    "prefill_s_sum": ("vllm:request_prefill_time_seconds_sum",),
    "prefill_count": ("vllm:request_prefill_time_seconds_count",),
    "decode_s_sum": ("vllm:request_decode_time_seconds_sum",),
    "decode_count": ("vllm:request_decode_time_seconds_count",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
}
Labelled = tuple[Mapping[str, str], float]  # the labels and the value of a sample
_SLEEP = "vllm:engine_sleep_state"
_CACHE = "vllm:cache_config_info"
_WANTED = frozenset({name for names in ALIASES.values() for name in names} | {_SLEEP, _CACHE})
#: Fields whose largest value over engines counts; all others are summed.
_MAX_OVER_ENGINES = frozenset({"kv_usage", "process_start_s"})


def parse_page(text: str, at: datetime) -> ServerPage:
    """The figures of one page. Raises ValueError when it is not a Prometheus exposition.

    Only the lines of wanted names go to the parser: a page has 750 lines, and parsing all of them
    takes 12 ms of Python.
    """
    lines = [
        line for line in text.splitlines() if line.split("{", 1)[0].split(" ", 1)[0] in _WANTED
    ]
    samples: dict[str, list[Labelled]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    values = {field: _value(field, names, samples) for field, names in ALIASES.items()}
    cache = samples.get(_CACHE)
    model_names = [
        labels["model_name"]
        for labels, _ in samples.get("vllm:num_requests_running", ())
        if "model_name" in labels
    ]
    return ServerPage(
        at=at,
        state="ok",
        asleep=_asleep(samples.get(_SLEEP)),
        requests_aborted=_aborted(samples.get("vllm:request_success_total")),
        cache_config=dict(cache[0][0]) if cache else None,
        model_name=model_names[0] if model_names else None,
        **values,
    )


def looks_like_metrics(text: str) -> bool:
    """Whether a page is a Prometheus exposition, and not a login page or an error text."""
    return any(line.startswith(("# HELP ", "# TYPE ")) for line in text.splitlines()[:200])


def _value(field: str, names: Iterable[str], samples: Mapping[str, list[Labelled]]) -> float | None:
    for name in names:
        found = [value for _, value in samples.get(name, ()) if math.isfinite(value)]
        if found:
            value = max(found) if field in _MAX_OVER_ENGINES else sum(found)
            is_start = field == "process_start_s"
            plausible = 0 <= value < LATEST_START_S if is_start else abs(value) < LARGEST
            return value if plausible else None
    return None


def _asleep(states: list[Labelled] | None) -> bool | None:
    awake = [value for labels, value in states or () if labels.get("sleep_state") == "awake"]
    return None if not awake else not any(awake)


def _aborted(finished: list[Labelled] | None) -> float | None:
    """Requests that ended as `abort`. A client that left is not counted there (vLLM issue
    31503).
    """
    values = [value for labels, value in finished or () if labels.get("finished_reason") == "abort"]
    return sum(values) if values else None


class MetricsPage:
    """Reads one target's metrics page. Parsing runs on another thread: the loop takes
    timestamps.
    """

    def __init__(
        self, client: httpx.AsyncClient, url: str, timeout_s: float = SCRAPE_TIMEOUT_S
    ) -> None:
        self._client = client
        self._url = url
        self._timeout_s = timeout_s

    async def read(self) -> ServerPage:
        """One reading. Never raises: where there is no page, `state` says why and every figure is
        unknown.
        """
        at = datetime.now(UTC)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.get(self._url, follow_redirects=True)
        except (httpx.TimeoutException, TimeoutError):
            return ServerPage(at=at, state="timeout")
        except (httpx.HTTPError, httpx.InvalidURL):
            return ServerPage(at=at, state="refused")
        if response.status_code != 200:
            return ServerPage(at=at, state="http_error")
        try:
            if not looks_like_metrics(response.text):
                return ServerPage(at=at, state="unreadable")
            return await asyncio.to_thread(parse_page, response.text, at)
        # The parser raises many types for lines that are not metrics, and the header may name any
        # codec as the charset.
        except Exception:
            return ServerPage(at=at, state="unreadable")
