"""The simulated engine's scheduler: what must hold whatever is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.simulate.engine.blocks import prefix_keys
from monitor.simulate.engine.costs import EngineConfig, Speeds
from monitor.simulate.engine.engine import Engine
from monitor.simulate.engine.requests import Ending, EngineRequest, Handle, RequestState
from monitor.simulate.engine.scheduler import StepResult


@dataclass(frozen=True)
class Wanted:
    """One request of a test."""

    at_s: float = 0.0
    prompt: int = 10
    answer: int = 10
    priority: int = 0
    prefix: tuple[int, ...] = ()


@dataclass
class Run:
    """What came of them."""

    engine: Engine
    handles: list[Handle]
    steps: list[StepResult]
    most_running: int
    most_used: float

    @property
    def counters(self):
        return self.engine.counters


def engine_of(speed: float = 1.0, **config: object) -> Engine:
    return Engine(EngineConfig(**config), lambda: Speeds(speed, speed))  # type: ignore[arg-type]


def request_of(number: int, wanted: Wanted) -> EngineRequest:
    return EngineRequest(
        id=str(number),
        prompt_tokens=wanted.prompt,
        max_tokens=wanted.answer,
        ending=lambda _: Ending(wanted.answer, "length"),
        prefix=wanted.prefix,
        priority=wanted.priority,
    )


def drive(engine: Engine, asked: Sequence[Wanted], until_s: float = float("inf")) -> Run:
    """Let everything happen in the order of time, to the end."""
    coming = sorted(enumerate(asked), key=lambda pair: pair[1].at_s)
    run = Run(engine, [], [], 0, 0.0)
    while coming or engine.next_step_s() is not None:
        step_s = engine.next_step_s()
        if coming and (step_s is None or coming[0][1].at_s <= step_s):
            number, wanted = coming.pop(0)
            run.handles.append(engine.submit(request_of(number, wanted), wanted.at_s))
        elif step_s is not None:
            if step_s > until_s:
                break
            run.steps.append(engine.step(step_s))
        run.most_running = max(run.most_running, engine.running)
        run.most_used = max(run.most_used, engine.scheduler.pool.usage)
    return run


REQUESTS = st.lists(
    st.builds(
        Wanted,
        at_s=st.floats(0.0, 2.0),
        prompt=st.integers(1, 120),
        answer=st.integers(1, 40),
        priority=st.integers(-2, 2),
        prefix=st.sampled_from(
            [(), prefix_keys(range(64), 8, None), prefix_keys(range(64), 8, "salt")]
        ),
    ),
    min_size=1,
    max_size=20,
)
CONFIGS = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.integers(8, 200),
        "max_num_seqs": st.integers(1, 6),
        "block_size": st.just(8),
        # 160 tokens, the most one request can have, are 20 blocks
        "num_gpu_blocks": st.integers(22, 60),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "enable_prefix_caching": st.booleans(),
        "num_speculative_tokens": st.integers(0, 3),
    }
)


def fitting(asked: Sequence[Wanted]) -> list[Wanted]:
    """Prefix keys no longer than the prompt."""
    return [
        Wanted(w.at_s, w.prompt, w.answer, w.priority, w.prefix[: (w.prompt - 1) // 8])
        for w in asked
    ]


def test_a_request_that_is_thrown_out_for_itself_does_not_stop_the_more_urgent_one_behind_it() -> (
    None
):
    config = {
        "max_num_batched_tokens": 11,
        "max_num_seqs": 2,
        "block_size": 8,
        "num_gpu_blocks": 22,
        "scheduling_policy": "priority",
    }
    first, urgent = Wanted(1.0, 75, 31, 0, ()), Wanted(1.203125, 62, 5, -1, ())
    few = [Wanted(0.0, 1, 1, 0, ())] * 6
    run = drive(engine_of(**config, enable_prefix_caching=False), [*few, first, urgent])
    assert all(handle.state is RequestState.FINISHED for handle in run.handles)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, CONFIGS)
def test_every_request_gets_all_its_tokens_and_nothing_is_left_over(
    asked: list[Wanted], config: dict[str, object]
) -> None:
    run = drive(engine_of(**config), fitting(asked))
    assert all(handle.state is RequestState.FINISHED for handle in run.handles)
    assert sum(count for step in run.steps for _, count in step.produced) == sum(
        w.answer for w in asked
    )
    assert run.counters.generation_tokens == sum(w.answer for w in asked)
    assert run.counters.prompt_tokens == sum(w.prompt for w in asked)
    assert run.counters.request_success["length"] == len(asked)
    assert (run.engine.running, run.engine.waiting, run.engine.scheduler.pool.used) == (0, 0, 0)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, CONFIGS)
def test_limits_are_never_passed(asked: list[Wanted], config: dict[str, object]) -> None:
    run = drive(engine_of(**config), fitting(asked))
    assert run.most_used <= 1.0
    assert run.most_running <= config["max_num_seqs"]
    computed = [step.prefill_tokens for step in run.steps]
    assert max(computed) <= config["max_num_batched_tokens"]
    assert all(a.end_s <= b.start_s for a, b in zip(run.steps, run.steps[1:], strict=False))


@settings(max_examples=100, deadline=None)
@given(REQUESTS, CONFIGS)
def test_fcfs_lets_requests_in_as_they_came(asked: list[Wanted], config: dict[str, object]) -> None:
    run = drive(engine_of(**(config | {"scheduling_policy": "fcfs"})), fitting(asked))
    scheduled = [handle.scheduled_s for handle in run.handles]
    assert scheduled == sorted(scheduled)


@settings(max_examples=100, deadline=None)
@given(REQUESTS, CONFIGS)
def test_nobody_is_thrown_out_while_there_is_room(
    asked: list[Wanted], config: dict[str, object]
) -> None:
    room = sum(-(-(w.prompt + w.answer) // 8) for w in asked)
    run = drive(engine_of(**(config | {"num_gpu_blocks": max(22, room)})), fitting(asked))
    assert run.counters.num_preemptions == 0


@settings(max_examples=100, deadline=None)
@given(REQUESTS, CONFIGS, st.integers(0, 60))
def test_a_client_that_leaves_leaves_no_blocks_behind(
    asked: list[Wanted], config: dict[str, object], when: int
) -> None:
    engine = engine_of(**config)
    handles = [engine.submit(request_of(n, w), 0.0) for n, w in enumerate(fitting(asked))]
    for _ in range(when):
        step_s = engine.next_step_s()
        if step_s is not None:
            engine.step(step_s)
    for handle in handles:
        engine.cancel(handle)
    assert (engine.running, engine.waiting, engine.scheduler.pool.used) == (0, 0, 0)
    assert sum(engine.counters.request_success.values()) == sum(
        h.state is RequestState.FINISHED for h in handles
    )


def test_under_the_priority_policy_the_urgent_one_goes_first() -> None:
    asked = [
        Wanted(answer=50),
        *[Wanted(at_s=0.001 * n, priority=5) for n in range(1, 4)],
        Wanted(at_s=0.005, priority=-1),
    ]
    run = drive(engine_of(max_num_seqs=1, scheduling_policy="priority"), asked)
    assert run.handles[4].first_s < min(handle.first_s for handle in run.handles[1:4])


def test_pressure_throws_out_the_youngest_and_it_still_gets_all_its_tokens() -> None:
    asked = [Wanted(prompt=60, answer=60), Wanted(at_s=0.001, prompt=60, answer=60)]
    run = drive(engine_of(block_size=8, num_gpu_blocks=20, enable_prefix_caching=False), asked)
    old, young = run.handles
    assert old.preemptions == 0
    assert young.preemptions >= 1
    assert young.generated == 60
    assert run.counters.num_preemptions == young.preemptions


def test_a_long_prompt_is_cut_into_pieces_between_which_others_get_their_tokens() -> None:
    asked = [Wanted(prompt=10, answer=100), Wanted(at_s=0.02, prompt=4000, answer=1)]
    run = drive(engine_of(max_num_batched_tokens=500), asked)
    chat, long = run.handles
    between = [
        step
        for step in run.steps
        if long.scheduled_s <= step.start_s and step.end_s <= long.first_s
    ]
    assert len(between) >= 8
    assert all(any(handle is chat for handle, _ in step.produced) for step in between)


def test_a_repeated_prompt_is_found_in_the_cache_unless_its_salt_is_another() -> None:
    engine = engine_of()
    first, again, other = (
        drive(
            engine, [Wanted(at_s=at, prompt=320, prefix=prefix_keys(range(320), 16, salt))]
        ).handles[0]
        for at, salt in ((0.0, "a"), (1.0, "a"), (2.0, "b"))
    )
    # the last token's block is always computed
    assert (first.cached, again.cached, other.cached) == (
        0,
        304,
        0,
    )
    assert again.first_s - again.scheduled_s < first.first_s - first.scheduled_s
    assert (engine.counters.prefix_cache_queries, engine.counters.prefix_cache_hits) == (960, 304)


def test_without_a_prefix_cache_nothing_is_found() -> None:
    engine = engine_of(enable_prefix_caching=False)
    keys = prefix_keys(range(320), 16, None)
    drive(engine, [Wanted(prompt=320, prefix=keys), Wanted(at_s=1.0, prompt=320, prefix=keys)])
    assert (engine.counters.prefix_cache_queries, engine.counters.prompt_tokens_cached) == (0, 0)


def test_chat_behind_a_batch_waits_as_long_as_the_queue_is() -> None:
    alone = drive(engine_of(max_num_seqs=4), [Wanted()]).handles[0]
    batch = [Wanted(prompt=50, answer=200) for _ in range(24)]
    run = drive(engine_of(max_num_seqs=4), [*batch, Wanted(at_s=0.01)])
    chat = run.handles[-1]
    wave_s = run.handles[0].last_s
    # 24 requests, 4 at a time
    assert chat.first_s - chat.arrived_s == pytest.approx(6 * wave_s, rel=0.05)
    assert (chat.first_s - chat.arrived_s) / alone.first_s > 500


def test_slower_clocks_slow_the_steps_and_a_fault_of_the_host_leaves_the_gpu_idle() -> None:
    healthy, slow = (
        drive(engine_of(s, host_s=0.0), [Wanted(answer=50)]).handles[0].last_s for s in (1.0, 0.5)
    )
    assert slow == pytest.approx(2 * healthy)
    hosted = drive(engine_of(host_delay_s=0.02), [Wanted(answer=50)])
    assert hosted.steps[-1].busy < 0.5
    assert hosted.handles[0].last_s > healthy + 50 * 0.02


def test_the_first_answer_of_each_parameter_set_waits_for_its_compilation() -> None:
    engine = engine_of(cold_s=3.0)
    cold, warm = drive(engine, [Wanted(), Wanted(at_s=10.0)]).handles
    assert cold.first_s > 3.0
    assert warm.first_s - warm.arrived_s < 0.1
    engine.restart(20.0, 8192)
    again = drive(engine, [Wanted(at_s=21.0)]).handles[0]
    assert again.first_s - again.arrived_s > 3.0


def test_speculation_brings_several_tokens_a_step_and_counts_them() -> None:
    engine = engine_of(num_speculative_tokens=3, spec_acceptance=0.8)
    run = drive(engine, [Wanted(answer=2000)])
    c = run.counters
    assert c.generation_tokens == 2000
    assert len(run.steps) < 1000
    expected = (0.8 + 0.8**2 + 0.8**3) / 3
    assert c.spec_decode_num_accepted_tokens / c.spec_decode_num_draft_tokens == pytest.approx(
        expected, abs=0.05
    )
    assert sum(c.spec_decode_per_pos) == c.spec_decode_num_accepted_tokens


def test_a_frozen_engine_ends_no_step_and_goes_on_when_it_thaws() -> None:
    engine = engine_of()
    run = drive(engine, [Wanted(answer=50)], until_s=0.1)
    engine.config.frozen = True
    assert engine.next_step_s() is None
    before = engine.counters.iteration_tokens.count
    engine.config.frozen = False
    drive(engine, [])
    assert run.handles[0].finished
    assert engine.counters.iteration_tokens.count > before


def test_the_same_seed_tells_the_same_story() -> None:
    def story(seed: int) -> list[float]:
        engine = Engine(EngineConfig(num_speculative_tokens=2), lambda: Speeds(1.0, 1.0), seed=seed)
        return [
            step.end_s
            for step in drive(engine, [Wanted(answer=100), Wanted(at_s=0.1, answer=80)]).steps
        ]

    assert story(7) == story(7)
    assert story(7) != story(8)
