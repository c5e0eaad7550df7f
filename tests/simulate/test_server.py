"""The simulated server over HTTP: measured by the daemon's own client, switched by its control
endpoint.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from monitor.measure.canary import Canary, Measurement
from monitor.measure.server.metrics_page import MetricsPage
from monitor.measure.stream.client import client as http_client
from monitor.model import Outcome, Phase, Probe, ServerPage
from monitor.simulate.api.dcgm import exporter
from monitor.simulate.api.server import SimulatedServer
from monitor.simulate.assemble import make_world
from monitor.simulate.engine.costs import EngineConfig
from monitor.simulate.world import World

Client = httpx.AsyncClient
PARIS = "What is the capital of France?"


def probe(max_wait_s: float | None = 5.0, max_tokens: int = 32, **sampling: Any) -> Probe:
    return Probe(
        name="test",
        traffic_class="chat",
        endpoint="chat",
        messages=({"role": "user", "content": PARIS},),
        prompt=None,
        max_tokens=max_tokens,
        sampling={"temperature": 0, "seed": 0} | sampling,
        every_s=60,
        cron=None,
        max_wait_s=max_wait_s,
        timeout_s=20,
    )


@asynccontextmanager
async def measuring(
    server: SimulatedServer, **fields: Any
) -> AsyncIterator[tuple[Canary, MetricsPage]]:
    async with http_client(server.url, None) as http:
        page = MetricsPage(http, f"{server.url}/metrics", timeout_s=5.0)
        yield Canary("simulated", http, page, server.world.identity.served_name, **fields), page


async def measure(
    canary: Canary, page: MetricsPage, of: Probe, before: ServerPage | None = None
) -> Measurement:
    return await canary.measure(of, Phase.WARM, before or await page.read(), None)


async def post(server: SimulatedServer, **changes: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=10) as http:
        return await http.post("/-/control", json=changes)


def engine(**config: Any) -> EngineConfig:
    """Steps of a millisecond or two: these tests wait for them in real time."""
    return EngineConfig(
        **({"decode_base_s": 0.001, "host_s": 0.0001, "num_gpu_blocks": 2000} | config)
    )


@asynccontextmanager
async def batch_job(
    server: SimulatedServer, clients: int, tokens: int
) -> AsyncIterator[list[asyncio.Task[httpx.Response]]]:
    """So many long requests at once; they leave with the block if they are not answered by then."""
    body = {"prompt": "Write a long report.", "max_tokens": tokens, "ignore_eos": True}
    async with httpx.AsyncClient(
        base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=None)
    ) as http:
        tasks = [
            asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(clients)
        ]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait until it is so; how long that takes depends on the machine."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


# -- as the daemon measures it


async def test_a_good_answer_is_measured_in_full(server: SimulatedServer) -> None:
    async with measuring(server) as (canary, page):
        sample = (await measure(canary, page, probe(logprobs=5))).sample
    assert (sample.outcome, sample.output, sample.finish_reason) == (
        Outcome.OK,
        "The capital of France is Paris.",
        "stop",
    )
    assert (sample.prompt_tokens, sample.completion_tokens, sample.cached_tokens) == (10, 8, 0)
    assert sample.server_timing == "response"
    assert (sample.other_prompt_tokens, sample.other_generation_tokens) == (0, 0)


async def test_decode_goes_at_the_pace_of_the_cost_model() -> None:
    async with (
        SimulatedServer(World(engine(decode_base_s=0.008, host_s=0.0))) as server,
        measuring(server) as (canary, page),
    ):
        sample = (
            await measure(canary, page, probe(max_tokens=100, ignore_eos=True, min_tokens=100))
        ).sample
    assert sample.decode_tok_s == pytest.approx(1 / 0.00803, rel=0.05)


async def test_a_frozen_engine_is_measured_as_hung_while_health_stays_good(
    server: SimulatedServer, client: Client
) -> None:
    await post(server, frozen=True)
    async with measuring(server, hang_after_s=0.5) as (canary, page):
        sample = (await measure(canary, page, probe(max_wait_s=0.3))).sample
    assert sample.outcome is Outcome.HUNG
    assert (await client.get("/health")).status_code == 200


async def test_chat_behind_24_long_requests_reaches_its_cap_or_measures_the_queue_without_one() -> (
    None
):
    async with (
        SimulatedServer(World(engine(max_num_seqs=4))) as server,
        measuring(server) as (canary, page),
    ):
        idle = (await measure(canary, page, probe())).sample
        async with batch_job(server, 24, 400) as batch:
            await until(lambda: server.world.engine.waiting >= 15)
            capped = (await measure(canary, page, probe(max_wait_s=0.3))).sample
            full = await page.read()
            patient = (await measure(canary, page, probe(max_wait_s=None))).sample
            answers = await asyncio.gather(*batch)
    assert capped.outcome is Outcome.QUEUE_CAP
    assert (full.running, (full.waiting or 0) > 4) == (4, True)
    assert patient.outcome is Outcome.OK
    assert patient.queue_ms > 20 * idle.ttft_ms
    assert patient.queue_ms < patient.ttft_ms < patient.queue_ms + 500
    assert patient.other_generation_tokens > 1000
    assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {400}


async def test_a_sleeping_server_is_not_asked_and_one_that_is_waits_without_an_error(
    server: SimulatedServer, client: Client
) -> None:
    await post(server, asleep=True)
    async with measuring(server) as (canary, page):
        assert (await measure(canary, page, probe())).sample.outcome is Outcome.ASLEEP
    answer = asyncio.create_task(
        client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
    )
    await asyncio.sleep(0.2)
    assert not answer.done()
    await post(server, asleep=False)
    assert (await answer).status_code == 200


async def test_a_full_queue_rejects_where_it_has_a_limit() -> None:
    server = SimulatedServer(World(engine(max_num_seqs=1, max_num_queued_reqs=1)))
    async with server, measuring(server) as (canary, page), batch_job(server, 2, 5000):
        await until(lambda: server.world.engine.waiting == 1)
        rejected = await measure(canary, page, probe())
    assert (rejected.sample.outcome, rejected.http_status) == (Outcome.REJECTED, 503)


async def test_a_client_that_leaves_frees_its_place_and_is_counted_as_no_success(
    server: SimulatedServer,
) -> None:
    async with batch_job(server, 3, 900):
        await until(lambda: server.world.engine.counters.generation_tokens > 3)
    async with measuring(server) as (_, page):
        after = await page.read()
    assert (after.running, after.waiting, after.requests_finished, after.kv_usage) == (0, 0, 0, 0)
    assert (after.generation_tokens or 0) > 0


async def test_a_dead_engine_fails_then_nobody_answers_until_a_restart(
    server: SimulatedServer,
) -> None:
    async with measuring(server) as (canary, page):
        before = await page.read()
        await post(server, dead=True)
        assert (await measure(canary, page, probe(), before)).http_status == 500
        server.world.died_s -= 10  # the API server has gone by now
        assert (await measure(canary, page, probe(), before)).sample.outcome is Outcome.REFUSED
        assert (await page.read()).state == "refused"
        await post(server, restart=True)
        assert (await measure(canary, page, probe())).sample.outcome is Outcome.OK


async def test_the_same_salt_finds_the_prefix_in_the_cache_and_a_new_one_does_not(
    server: SimulatedServer, client: Client
) -> None:
    async def cached(salt: str) -> int:
        body = {"prompt": "The canary sings. " * 20, "max_tokens": 1, "cache_salt": salt}
        return (await client.post("/v1/completions", json=body)).json()["usage"][
            "prompt_tokens_details"
        ]["cached_tokens"]

    found = [await cached("a"), await cached("a"), await cached("b")]
    assert found[0] == found[2] == 0
    assert found[1] > 50
    assert found[1] % 16 == 0
    await post(server, enable_prefix_caching=False)
    assert await cached("a") == 0


# -- the API


async def test_token_ids_come_with_the_chunks_and_the_request_id_becomes_the_answers(
    client: Client,
) -> None:
    body = {
        "messages": [{"role": "user", "content": PARIS}],
        "stream": True,
        "max_tokens": 20,
        "return_token_ids": True,
    }
    text = (
        await client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "abc"})
    ).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    ids = [
        i for event in events for choice in event["choices"] for i in choice.get("token_ids") or ()
    ]
    assert {event["id"] for event in events} == {"chatcmpl-abc"}
    assert (await client.post("/detokenize", json={"tokens": ids})).json()[
        "prompt"
    ] == "The capital of France is Paris.</s>"
    assert (
        events[0]["prompt_token_ids"]
        == (await client.post("/tokenize", json=body)).json()["tokens"]
    )
    # no usage was asked for, so the last chunk has it
    assert events[-1]["system_fingerprint"].startswith("vllm-0.32.0-")


async def test_a_whole_chat_answer_says_what_its_stream_says(client: Client) -> None:
    body = {
        "messages": [{"role": "user", "content": PARIS}],
        "max_tokens": 20,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = (await client.post("/v1/chat/completions", json=body)).json()
    assert whole["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert (
        len(whole["choices"][0]["logprobs"]["content"]) == whole["usage"]["completion_tokens"] == 8
    )


async def test_a_stop_string_ends_the_answer_before_it(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": PARIS}], "max_tokens": 20, "stop": " is"}
    choice = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "The capital of France",
        "stop",
        " is",
    )


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": "one two " * 900}, "input_tokens"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "body.max_tokens"),
        ({"n": 2}, "n"),
        ({"temperature": -1}, "temperature"),
    ],
)
async def test_a_wrong_field_is_refused_with_its_name(
    client: Client, changes: dict[str, Any], param: str
) -> None:
    response = await client.post(
        "/v1/completions", json={"prompt": "hi", "max_tokens": 4} | changes
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_unknown_fields_are_ignored_and_unknown_routes_are_not_there(client: Client) -> None:
    assert (
        await client.post(
            "/v1/completions", json={"prompt": "hi", "max_tokens": 1, "cache_sald": "x"}
        )
    ).status_code == 200
    assert (await client.get("/nowhere")).json() == {"detail": "Not Found"}
    assert (await client.get("/v1/completions")).status_code == 405


async def test_a_key_is_asked_for_under_v1_only(server: SimulatedServer, client: Client) -> None:
    await post(server, api_key="secret")
    refused = await client.get("/v1/models")
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert (await client.get("/metrics")).status_code == 200
    assert (
        await client.get("/v1/models", headers={"Authorization": "Bearer secret"})
    ).status_code == 200


async def test_garbage_on_the_wire_ends_the_connection_and_nothing_else(
    server: SimulatedServer, client: Client
) -> None:
    for garbage in (
        b"\x16\x03\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"x" * 70_000,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
        writer.write(garbage)
        assert b" 4" in await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert (await client.get("/health")).status_code == 200


async def test_requests_on_one_connection_are_answered_one_after_the_other(
    server: SimulatedServer,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
    body = json.dumps({"prompt": "hi", "max_tokens": 5}).encode()
    completion = (
        b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: "
        b"%d\r\n\r\n"
    ) % len(body) + body
    writer.write(completion + b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n")
    text = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    assert text.count("HTTP/1.1 200 OK") == 2
    assert text.index("text_completion") < text.index('{"version"')


# -- switches


async def test_a_restart_begins_all_counters_anew_and_is_cold_again() -> None:
    async with (
        SimulatedServer(World(engine(cold_s=0.3))) as server,
        measuring(server) as (canary, page),
    ):
        waits = [(await measure(canary, page, probe())).sample.ttft_ms for _ in range(2)]
        before = await page.read()
        await post(server, max_model_len=4096, restart=True)
        after = await page.read()
        waits.append((await measure(canary, page, probe())).sample.ttft_ms)
        models = (await canary.http.get("/v1/models")).json()
    assert [wait > 300 for wait in waits] == [True, False, True]
    assert ((before.generation_tokens or 0) > 0, after.generation_tokens) == (True, 0)
    assert (after.process_start_s or 0) > (before.process_start_s or 0)
    assert models["data"][0]["max_model_len"] == 4096


async def test_streams_that_are_open_at_a_restart_break_off(server: SimulatedServer) -> None:
    async with measuring(server) as (canary, page):
        answer = asyncio.create_task(measure(canary, page, probe(max_tokens=900, ignore_eos=True)))
        await until(lambda: server.world.engine.counters.generation_tokens > 3)
        server.world.set("restart", True)
        assert (await answer).sample.outcome is Outcome.STREAM_ERROR


async def test_a_server_that_restarts_for_a_while_refuses_meanwhile(
    server: SimulatedServer,
) -> None:
    async with measuring(server) as (_, page):
        await post(server, restart=3600)
        assert (await page.read()).state == "refused"
        server.world.down_until_s = server.world.now_s
        assert (await page.read()).state == "ok"


async def test_what_makes_answers_what_they_are_shows_where_a_real_server_shows_it(
    server: SimulatedServer, client: Client
) -> None:
    async def seen() -> tuple[str, int, str]:
        body = {"messages": [{"role": "user", "content": PARIS}], "max_tokens": 20}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        return (
            answer["choices"][0]["message"]["content"],
            answer["usage"]["prompt_tokens"],
            answer["system_fingerprint"],
        )

    healthy = await seen()
    await post(server, answers="lost-bos")
    broken = await seen()
    # the fingerprint does not know the template
    assert broken == (
        "The capital of France is Tokyo.",
        healthy[1] - 1,
        healthy[2],
    )
    await post(server, answers="healthy", template="polite")
    assert (await seen())[1] > healthy[1]
    await post(server, template="plain", max_num_seqs=7)
    assert (await seen())[2] != healthy[2]


async def test_the_control_endpoint_says_what_can_be_set_and_refuses_the_rest(
    server: SimulatedServer, client: Client
) -> None:
    state = (await client.get("/-/control")).json()
    assert state["settings"]["max_model_len"] == 1024
    for wrong in (
        {"frozn": True},
        {"frozen": "yes"},
        {"max_num_seqs": 1.5},
        {"answers": "french"},
        {"restart": -1},
        {"scenario": "nope"},
    ):
        response = await client.post("/-/control", json=wrong)
        assert response.status_code == 400
        assert (
            next(iter(wrong.values())) is True
            or str(next(iter(wrong.values()))) in response.json()["error"]
        )


async def test_a_scenario_can_be_switched_while_it_runs() -> None:
    async with SimulatedServer(make_world(["h100"])) as server:
        assert (await post(server, scenario="hang")).json()["scenario"] == "hang"
        assert (await post(server, scenario="calm")).json()["scenario"] == "calm"


async def test_hidden_and_renamed_metrics_are_not_found(server: SimulatedServer) -> None:
    renamed = {"vllm:generation_tokens_total": "vllm:new_tokens_total"}
    await post(server, hidden_metrics=["vllm:num_requests_waiting"], renamed_metrics=renamed)
    async with measuring(server) as (_, page):
        found = await page.read()
        assert (found.waiting, found.generation_tokens, found.running) == (None, None, 0)
        await post(server, metrics_status=404)
        assert (await page.read()).state == "http_error"


# -- the GPUs, and what it costs


async def test_the_gpus_have_a_page_of_their_own_and_work_warms_them() -> None:
    world = make_world(["rtx3090"], thermal_speed=50)
    async with (
        SimulatedServer(world) as server,
        exporter(server) as gpus,
        httpx.AsyncClient() as http,
    ):

        async def temperature() -> float:
            text = (await http.get(f"{gpus.url}/metrics")).text
            return float(
                next(
                    line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{")
                ).rsplit(" ", 1)[1]
            )

        cool = await temperature()
        async with batch_job(server, 4, 60) as batch:
            await asyncio.gather(*batch)
        assert await temperature() > cool + 5
        assert (await http.get(f"{gpus.url}/nowhere")).status_code == 404


async def test_two_hundred_idle_servers_cost_next_to_nothing() -> None:
    servers = [SimulatedServer(World(engine(), seed=seed)) for seed in range(200)]
    await asyncio.gather(*(server.start() for server in servers))
    try:
        before = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.sleep(1.0)
        after = resource.getrusage(resource.RUSAGE_SELF)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.05
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def run(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "monitor.cli",
        "simulate",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_as_a_command_it_says_where_it_listens_and_ends_on_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "monitor.cli",
        "simulate",
        "--gpu",
        "rtx4090",
        "--gpus",
        "2",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        lines = [(await asyncio.wait_for(process.stdout.readline(), 20)).decode() for _ in range(3)]
        url, page = lines[0].strip().rpartition(" ")[2], lines[1].strip().rpartition(" ")[2]
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{url}/version")).json() == {"version": "0.32.0"}
            assert (await http.get(page)).text.count("DCGM_FI_DEV_SM_CLOCK{") == 2
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert "2 x rtx4090" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "h200"], "there is no simulated GPU 'h200'"),
        (["--scenario", "heet"], "did you mean heat?"),
        (["--gpus", "0"], "--gpus must be 1 or more"),
        (["--port", "{taken}"], "already in use"),
    ],
)
async def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(
    server: SimulatedServer, arguments: list[str], said: str
) -> None:
    code, text = await run(*(word.format(taken=server.listener.port) for word in arguments))
    assert (code, said in text, len(text.splitlines())) == (2, True, 1)


async def test_a_malformed_time_line_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("about: a test\ntimeline:\n  - at: 10\n    set: {frozen: true}\n")
    code, text = await run("--scenario", str(file))
    assert (code, f"{file}:3: " in text, len(text.splitlines())) == (2, True, 1)
