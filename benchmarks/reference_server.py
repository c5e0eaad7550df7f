"""A server with known true times, to measure the errors of a client on a token stream. Standard
library only.

    python benchmarks/reference_server.py --truth truth.jsonl [--port 8001] [--eos]

It implements the part of vLLM's API that a canary or a load generator needs. The role chunk is sent
`--role` seconds after the request's head was read, the first token after `--ttft`, then one token
every `--itl`. With `--eos` the last token is an end-of-text stop: counted in usage, with an empty
chunk, as a real vLLM sends it. The true times of each answer are appended to the truth file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

Json = dict[str, Any]

#: Margin for late timers of the event loop; the last part of a wait polls the clock.
SPIN_S = 0.0002
PLAIN_PAGE = (
    "# TYPE vllm:num_requests_running "
    'gauge\nvllm:num_requests_running{engine="0",model_name="ref"} 0\n'
)
MODEL = {
    "id": "ref",
    "object": "model",
    "root": "ref",
    "max_model_len": 4096,
    "created": 1,
    "owned_by": "vllm",
}


@dataclass(frozen=True, slots=True)
class Times:
    """The times of an answer, in seconds after the request. `role_s` None: no role chunk."""

    role_s: float | None
    ttft_s: float
    itl_s: float
    tokens: int
    eos: bool


class ReferenceServer:
    """Answers every completion at the same times, and records when each token was sent."""

    def __init__(self, times: Times, truth: TextIO, page: str = PLAIN_PAGE) -> None:
        self._times, self._truth, self._page = times, truth, page

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until its client disconnects."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrived_s = time.perf_counter()
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._route(first.split()[1], headers, body, writer, arrived_s)
                await writer.drain()
        writer.close()

    async def _route(
        self,
        path: str,
        headers: dict[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
        arrived_s: float,
    ) -> None:
        if "completions" in path:
            await _Answer(writer, json.loads(body), "chat" in path).send(
                self._times, arrived_s, headers.get("x-request-id"), self._truth
            )
        elif path.startswith("/v1/models"):
            _whole(writer, {"object": "list", "data": [MODEL]})
        elif path.startswith("/version"):
            _whole(writer, {"version": "0.32.0"})
        elif path.startswith("/health"):
            _whole(writer, {})
        elif path.startswith("/metrics"):
            _whole(writer, self._page)
        else:
            _whole(writer, {"detail": "Not Found"}, status=404)


@dataclass(slots=True)
class _Answer:
    """One streamed completion."""

    writer: asyncio.StreamWriter
    request: Json
    chat: bool

    async def send(
        self, times: Times, arrived_s: float, request_id: str | None, truth: TextIO
    ) -> None:
        """Sends the answer, then writes its line into the truth file."""
        count = min(
            times.tokens,
            int(
                self.request.get("max_tokens")
                or self.request.get("max_completion_tokens")
                or times.tokens
            ),
        )
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; "
            b"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if self.chat and times.role_s is not None:
            await _until(arrived_s + times.role_s)
            self._event(self._chunk({"role": "assistant", "content": ""}))
        sent_s: list[float] = []
        for index in range(count):
            await _until(arrived_s + times.ttft_s + times.itl_s * index)
            last = index == count - 1
            finish = ("stop" if times.eos else "length") if last else None
            self._event(self._chunk({"content": "" if last and times.eos else " tok"}, finish))
            sent_s.append(time.perf_counter() - arrived_s)
        if (self.request.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 20, "completion_tokens": count, "total_tokens": 20 + count}
            self._event(self._body([]) | {"usage": usage})
        self._event("[DONE]")
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        truth.write(
            json.dumps({"id": request_id, "ttft": sent_s[0], "last": sent_s[-1], "n": count}) + "\n"
        )
        truth.flush()

    def _event(self, data: Json | str) -> None:
        """Sends one event as an HTTP chunk; asyncio writes it to an idle socket at once."""
        event = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self.writer.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        content: Json = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        return self._body([{"index": 0, "finish_reason": finish, "logprobs": None, **content}])

    def _body(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": "x", "object": kind, "created": 1, "model": "ref", "choices": choices}


async def _until(moment_s: float) -> None:
    await asyncio.sleep(max(0.0, moment_s - time.perf_counter() - SPIN_S))
    while time.perf_counter() < moment_s:
        pass


def _whole(writer: asyncio.StreamWriter, answer: Json | str, status: int = 200) -> None:
    body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
    kind = "text/plain" if isinstance(answer, str) else "application/json"
    writer.write(
        (
            f"HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode()
        + body
    )


async def main() -> None:
    """Serves until killed. Prints the address first."""
    parser = argparse.ArgumentParser(description="a server with known true times")
    parser.add_argument(
        "--truth",
        type=Path,
        required=True,
        help="file for the true times, one JSON object per answer",
    )
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument(
        "--role", type=float, default=0.05, help="seconds to the empty role chunk; negative: none"
    )
    parser.add_argument("--ttft", type=float, default=0.15, help="seconds to the first token")
    parser.add_argument("--itl", type=float, default=0.02, help="seconds between tokens")
    parser.add_argument("--tokens", type=int, default=50, help="tokens per answer")
    parser.add_argument(
        "--eos",
        action="store_true",
        help="the last token is an end-of-text stop with an empty chunk",
    )
    parser.add_argument("--page", type=Path, help="file with the metrics page; default: one gauge")
    parser.add_argument(
        "--punctual",
        action="store_true",
        help="use real-time scheduling where that is allowed",
    )
    o = parser.parse_args()
    if o.punctual:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(20))
    times = Times(o.role if o.role >= 0 else None, o.ttft, o.itl, o.tokens, o.eos)
    with o.truth.open("a") as truth:
        reference = ReferenceServer(times, truth, o.page.read_text() if o.page else PLAIN_PAGE)
        server = await asyncio.start_server(reference.connected, "127.0.0.1", o.port)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
