"""Whether a chat request waits behind a batch in the simulator as long as on a real vLLM. Part of
`make proof`; writes its section of docs/proof.md.

Both servers run four requests at a time (`--max-num-seqs 4`) and get 24 requests of 300 tokens,
then one short chat request. The simulator is first set to the real server's measured costs: the
time to first token when idle, and the time between tokens with four requests. The comparison
concerns the scheduler only: the ratio of the queued to the idle time to first token.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from common import ROOT, table
from proofpage import stamp, write_section

sys.path.insert(0, str(ROOT / "tests"))
# tests/ is not a package, so this import follows the path
from vllm_bed import MODEL, SERVED_MODEL, VllmServer, free_port, vllm_environment

LONG, COUNT, SLOTS = 300, 24, 4
HEAD_START_S = 1.0
ALLOWED = 0.25  # largest relative difference of the two ratios
CHAT = {
    "messages": [{"role": "user", "content": "Is the sky blue? Answer yes or no."}],
    "max_tokens": 4,
}


async def first_token_s(http: httpx.AsyncClient, model: str) -> float:
    """Time to the first token of a short chat."""
    body = {
        "model": model,
        "stream": True,
        "temperature": 0,
        "cache_salt": str(time.monotonic_ns()),
        **CHAT,
    }
    began = time.monotonic()
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {") and '"content":""' not in line and '"content"' in line:
                return time.monotonic() - began
    raise RuntimeError("the chat request got no token")


async def long_request(http: httpx.AsyncClient, model: str, number: int) -> tuple[int, float]:
    """Sends a request of fixed length; returns the chunks after the first, and their seconds."""
    body = {
        "model": model,
        "prompt": f"Number {number}.",
        "max_tokens": LONG,
        "min_tokens": LONG,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
        "cache_salt": str(time.monotonic_ns()),
    }
    stamps: list[float] = []
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                stamps.append(time.monotonic())  # noqa: PERF401 - taken as each line arrives
    return len(stamps) - 1, stamps[-1] - stamps[0]


async def gap_s(http: httpx.AsyncClient, model: str, at_once: int) -> float:
    """Seconds between tokens with `at_once` concurrent requests."""
    results = await asyncio.gather(*(long_request(http, model, n) for n in range(at_once)))
    return median(seconds / chunks for chunks, seconds in results)


async def queued(http: httpx.AsyncClient, model: str) -> tuple[float, float]:
    """The time to first token of a chat request behind 24 long requests, and the time between
    their tokens.
    """
    tasks = [asyncio.create_task(long_request(http, model, n)) for n in range(COUNT)]
    await asyncio.sleep(HEAD_START_S)
    waited = await first_token_s(http, model)
    gaps = [seconds / chunks for chunks, seconds in await asyncio.gather(*tasks)]
    return waited, median(gaps)


async def measured(url: str, model: str) -> dict[str, float]:
    """The figures of one server. `waves`: the wait in generations of four requests."""
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http:
        idle = await idle_s(http, model)
        await gap_s(http, model, SLOTS)
        wait, gap = await queued(http, model)
    return {
        "idle_s": idle,
        "gap_s": gap,
        "queued_s": wait,
        "ratio": wait / idle,
        "waves": (wait + HEAD_START_S) / (gap * LONG),
    }


async def idle_s(http: httpx.AsyncClient, model: str) -> float:
    """Time to first token on an idle server."""
    for _ in range(3):
        await first_token_s(http, model)
    return median([await first_token_s(http, model) for _ in range(15)])


async def idle_of(url: str, model: str) -> float:
    """`idle_s` on a connection of its own."""
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http:
        return await idle_s(http, model)


def control(url: str, settings: dict[str, Any]) -> None:
    """Changes settings of the simulator."""
    httpx.post(f"{url}/-/control", json=settings, timeout=10, trust_env=False).raise_for_status()


def simulated(real: dict[str, float]) -> dict[str, float]:
    """The figures of the simulator with the real server's costs under the same load."""
    port = free_port()
    command = [sys.executable, "-m", "monitor.cli", "simulate"]
    command += ["--port", str(port), "--scenario", "calm"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(url)
        costs = {
            "decode_base_s": real["gap_s"],
            "decode_per_seq_s": 0.0,
            "decode_per_context_s": 0.0,
            "host_s": 0.0,
        }
        control(url, {"max_num_seqs": SLOTS, "cold_s": 0.0, "traffic.rate_per_s": 0.0, **costs})
        model = httpx.get(f"{url}/v1/models", timeout=5, trust_env=False).json()["data"][0]["id"]
        _calibrate_prefill(url, model, real["idle_s"])
        return asyncio.run(measured(url, model))
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_healthy(url: str) -> None:
    for _ in range(100):
        try:
            httpx.get(f"{url}/health", timeout=1, trust_env=False)
            return
        except httpx.HTTPError:
            time.sleep(0.1)


def _calibrate_prefill(url: str, model: str, idle_target_s: float) -> None:
    """Sets the prefill rate so that the idle time to first token is as measured: the clocks of the
    simulated GPU ramp up, so it does not follow from the settings alone.
    """
    body = {"messages": CHAT["messages"]}
    tokens = httpx.post(f"{url}/tokenize", json=body, timeout=5, trust_env=False).json()["count"]
    prompt_s = 0.001
    for _ in range(3):
        control(url, {"prefill_tok_s": tokens / prompt_s})
        prompt_s = max(1e-4, prompt_s + idle_target_s - asyncio.run(idle_of(url, model)))


def main() -> int:
    """Measures both servers, compares them and writes the section."""
    venv = vllm_environment()
    with tempfile.TemporaryDirectory() as work:
        options = ("--max-model-len", "1024", "--max-num-seqs", str(SLOTS))
        server = VllmServer.start(venv, free_port(), MODEL, *options, work=Path(work))
        try:
            real = asyncio.run(measured(server.url, SERVED_MODEL))
        finally:
            server.stop()
    fake = simulated(real)
    difference = abs(fake["ratio"] / real["ratio"] - 1)
    lines = report(real, fake, difference)
    print("\n".join(lines))
    write_section("queue shape", lines)
    return 0 if difference <= ALLOWED else 1


def report(real: dict[str, float], fake: dict[str, float], difference: float) -> list[str]:
    """The section of docs/proof.md."""
    figures = [
        ("idle TTFT", "idle_s", 1000, " ms"),
        ("time between tokens, four requests", "gap_s", 1000, " ms"),
        ("TTFT behind 24 long requests", "queued_s", 1, " s"),
        ("queued / idle", "ratio", 1, ""),
        ("the wait in generations of four requests", "waves", 1, ""),
    ]
    rows = [
        (name, f"{real[key] * factor:,.1f}{unit}", f"{fake[key] * factor:,.1f}{unit}")
        for name, key, factor, unit in figures
    ]
    note = (
        f"`benchmarks/queue_shape.py`, {stamp()}: vLLM 0.32 on CPU and the simulator, both with "
        f"`--max-num-seqs {SLOTS}`, {COUNT} requests of {LONG} tokens, then one chat request one "
        "second later. The simulator was first set to the real server's idle TTFT and its time "
        "between tokens."
    )
    return [
        "## The simulator's queue has the shape of a real vLLM's",
        "",
        note,
        "",
        *table(("", "real vLLM", "simulator"), rows).splitlines(),
        "",
        f"The ratios differ by {difference:.0%}; {ALLOWED:.0%} is allowed.",
    ]


if __name__ == "__main__":
    sys.exit(main())
