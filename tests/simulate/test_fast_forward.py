"""A world that takes many steps at once tells the same story as one that takes them one by one."""

from __future__ import annotations

from typing import Any

import pytest

from monitor.simulate.assemble import make_world
from monitor.simulate.engine.requests import Ending, EngineRequest, Handle
from monitor.simulate.fastforward.world import FastForwardWorld
from monitor.simulate.gpu.gpu import Gpu
from monitor.simulate.scenarios.play import ONE_SHOT
from monitor.simulate.world import World

STORIES: dict[str, list[tuple[float, dict[str, Any]]]] = {
    "a few users": [(0, {"traffic.rate_per_s": 0.3})],
    "users, and then none": [(0, {"traffic.rate_per_s": 1.0}), (60, {"traffic.rate_per_s": 0.0})],
    "more users than places": [(0, {"traffic.rate_per_s": 3.0, "max_num_seqs": 4})],
    "prompts in pieces": [(0, {"traffic.rate_per_s": 0.5, "max_num_batched_tokens": 512})],
    "what all share is cached": [(0, {"traffic.rate_per_s": 0.5, "traffic.shared_tokens": 512.0})],
    "a steady job": [(0, {"batch.clients": 4})],
    "a job in the middle": [
        (0, {"traffic.rate_per_s": 0.3}),
        (40, {"batch.clients": 12, "max_num_seqs": 6}),
        (80, {"batch.clients": 0}),
    ],
    "a pile handed over at once": [(10, {"batch.requests": 40, "max_num_seqs": 8})],
    "by priority": [
        (0, {"traffic.rate_per_s": 2.0, "max_num_seqs": 3, "scheduling_policy": "priority"})
    ],
    "a queue with an end": [
        (0, {"traffic.rate_per_s": 4.0, "max_num_seqs": 2, "max_num_queued_reqs": 3})
    ],
    "a slower kernel from some moment on": [
        (0, {"batch.clients": 2}),
        (50, {"kernel_slow_factor": 1.5, "host_delay_s": 0.004}),
    ],
    "a hang, and a new start": [
        (0, {"traffic.rate_per_s": 1.0}),
        (40, {"frozen": True}),
        (70, {"restart": 5}),
    ],
    "asleep for a while": [
        (0, {"traffic.rate_per_s": 1.0}),
        (40, {"asleep": True}),
        (70, {"asleep": False}),
    ],
    "dead": [(0, {"traffic.rate_per_s": 1.0}), (40, {"dead": True})],
}


def story(
    kind: type[World],
    acts: list[tuple[float, dict[str, Any]]],
    gpu: str = "h100",
    blocks: int | None = None,
) -> list[float]:
    world = make_world([gpu], 1, kind=kind)
    if blocks is not None:
        world.set("num_gpu_blocks", blocks)
        world.restart()
    for at_s, settings in acts:
        world.advance(at_s)
        for name, value in settings.items():
            world.set(name, value)
        assert all(
            world.get(name) == value for name, value in settings.items() if name not in ONE_SHOT
        )
    world.advance(90)
    world.settle()
    counters, gpu = world.engine.counters, world.gpus[0]
    assert isinstance(gpu, Gpu)
    counts = [
        counters.generation_tokens,
        counters.prompt_tokens,
        counters.prefix_cache_hits,
        counters.num_preemptions,
    ]
    ended = [
        sum(counters.request_success.values()),
        counters.admission_rejections,
        world.engine.running,
        world.engine.waiting,
    ]
    times = [
        counters.inter_token_latency.sum,
        counters.e2e_latency.sum,
        counters.queue_time.sum,
        counters.prefill_time.sum,
    ]
    seen = gpu.reading()
    return [
        *counts,
        counters.iteration_tokens.count,
        *ended,
        *times,
        seen.energy_j,
        seen.temp_c,
        seen.sm_clock_mhz,
    ]


@pytest.mark.parametrize("name", STORIES)
def test_many_steps_at_once_change_nothing_but_the_work(name: str) -> None:
    assert story(FastForwardWorld, STORIES[name]) == pytest.approx(
        story(World, STORIES[name]), rel=3e-3, abs=1.01
    )


@pytest.mark.parametrize("gpu", ["rtx4090", "rtx3090", "dgx-spark"])
def test_nor_on_gpus_whose_clock_follows_their_temperature(gpu: str) -> None:
    acts = STORIES["a few users"]
    assert story(FastForwardWorld, acts, gpu) == pytest.approx(
        story(World, acts, gpu), rel=1e-2, abs=2.5
    )


def test_nor_on_a_gpu_that_throttles() -> None:
    acts = [(0.0, {"batch.clients": 4, "gpu.cooling": 4.0, "gpu.inlet_c": 45.0})]
    ours, theirs = (story(kind, acts) for kind in (FastForwardWorld, World))
    assert theirs[-1] < 1800
    assert ours[-1] == pytest.approx(theirs[-1], rel=0.1)  # the governor swings
    assert ours[:-1] == pytest.approx(theirs[:-1], rel=0.01, abs=1.01)


def test_nor_where_the_cache_runs_full() -> None:
    acts = STORIES["a steady job"]
    ours, theirs = (story(kind, acts, blocks=300) for kind in (FastForwardWorld, World))
    assert theirs[3] > 0  # somebody was thrown out
    assert ours == pytest.approx(theirs, rel=3e-3, abs=1.01)


def test_drafts_are_taken_as_often() -> None:
    acts = [(0.0, {"batch.clients": 3, "num_speculative_tokens": 3, "spec_acceptance": 0.6})]
    ours, theirs = (story(kind, acts) for kind in (FastForwardWorld, World))
    assert ours[0] == pytest.approx(theirs[0], rel=0.03)  # not the same draws
    assert ours[4] == pytest.approx(theirs[4], rel=0.01)


def test_what_is_taken_back_while_many_steps_are_taken_at_once_is_gone() -> None:
    world = make_world(["h100"], 1, kind=FastForwardWorld)
    world.set("max_num_seqs", 1)
    world.advance(1)
    handles: list[Handle] = []
    for number in range(3):
        handle = world.submit(
            EngineRequest(str(number), 100, 2000, lambda _: Ending(2000, "length"))
        )
        assert handle is not None
        handles.append(handle)
    world.advance_until(3.0)
    world.cancel(handles[1])
    world.cancel(handles[0])
    world.advance(60)
    assert [handle.finished for handle in handles] == [False, False, True]
    assert world.engine.scheduler.pool.usage == 0
    assert sum(world.engine.counters.request_success.values()) == 1
