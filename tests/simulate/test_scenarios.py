"""The scenarios that come with the simulator, and what is said of one that cannot be played."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from monitor.cli import main
from monitor.model import Cause, Kind
from monitor.simulate.assemble import make_world, switch
from monitor.simulate.fastforward.world import FastForwardWorld
from monitor.simulate.gpu.gpu import Gpu
from monitor.simulate.scenarios.play import ONE_SHOT, Play
from monitor.simulate.scenarios.scenario import CAUSES, KINDS, load, names, parse
from monitor.simulate.scenarios.timeline import ScenarioError
from monitor.simulate.settings import SettingError
from monitor.simulate.world import World

PROMISED = [
    "calm",
    "batch-job",
    "heat",
    "memory-heat",
    "hot-room",
    "power-cap",
    "power-brake",
    "hidden-limit",
    "driver-update",
    "new-weights",
    "lost-bos",
    "int4",
    "kernel-fallback",
    "prefix-cache-off",
    "shorter-context",
    "longer-prompts",
    "more-clients",
    "new-neighbour",
    "uptime-decay",
    "slow-start",
    "speculation-falls",
    "host-bound",
    "hang",
    "die",
    "sleep",
    "metrics-gone",
    "renamed-metrics",
    "rollback",
]


def world(gpu: str = "h100", seed: int = 1) -> World:
    return make_world([gpu], seed, kind=FastForwardWorld)


def gpu_of(made: World) -> Gpu:
    made.settle()
    gpu = made.gpus[0]
    assert isinstance(gpu, Gpu)
    return gpu


def played(name: str, seconds: float, gpu: str = "h100", speed: float = 1.0) -> World:
    made = world(gpu)
    made.sources.append(Play(load(name, made.settable), made, 0.0, speed))
    made.advance(seconds)
    return made


def test_all_promised_scenarios_are_there() -> None:
    assert sorted(PROMISED) == names()


@pytest.mark.parametrize("name", PROMISED)
def test_each_says_which_kind_and_cause_it_must_raise_in_the_words_of_the_closed_lists(
    name: str,
) -> None:
    raises = load(name, world().settable).raises
    if name == "calm":
        assert raises is None
        return
    assert raises is not None
    assert raises.kind in {kind.value for kind in Kind}
    assert raises.cause in {"", *(cause.value for cause in Cause)}


def test_every_cause_but_unexplained_has_a_scenario() -> None:
    raised = {raises.cause for name in names() if (raises := load(name, world().settable).raises)}
    assert {cause.value for cause in Cause} - raised == {"unexplained"}


@pytest.mark.parametrize("name", PROMISED)
def test_each_is_played_to_its_end_and_taken_back(name: str) -> None:
    made = world()
    before = {key: value for key, value in made.settings().items() if key not in ONE_SHOT}
    scenario = load(name, made.settable)
    play = Play(scenario, made, 60.0, speed=max(1.0, scenario.length_s / 120))
    made.sources.append(play)
    made.advance(240.0)
    changed = {
        key
        for key, value in made.settings().items()
        if before.get(key, value) != value and key not in ONE_SHOT
    }
    assert changed or name in {"calm", "rollback", "slow-start"} or scenario.events == ()
    play.revert()
    after = {key: value for key, value in made.settings().items() if key not in ONE_SHOT}
    assert after == before


def test_the_same_seed_tells_the_same_story() -> None:
    def story(seed: int) -> tuple[Any, ...]:
        made = world(seed=seed)
        switch(made, "more-clients", 0.0)
        made.advance(600)
        return (
            made.engine.counters.generation_tokens,
            made.engine.counters.prompt_tokens,
            gpu_of(made).reading(),
        )

    assert story(3) == story(3)
    assert story(3)[:2] != story(4)[:2]


def test_a_new_scenario_takes_back_what_the_one_before_it_changed() -> None:
    made = world()
    switch(made, "power-brake")
    made.advance(5)
    assert gpu_of(made).power_brake
    switch(made, "calm")
    assert not gpu_of(made).power_brake
    assert made.get("batch.clients") == 0
    assert made.get("traffic.rate_per_s") == 0.2


def test_heat_goes_as_many_times_faster_as_the_gpus_heat() -> None:
    made = make_world(["h100"], thermal_speed=60, kind=FastForwardWorld)
    switch(made, "heat")
    made.advance(59)
    assert made.get("gpu.cooling") == pytest.approx(4.5, abs=0.1)


# -- what each of them does, against the model's own truth


def test_a_batch_job_makes_others_wait() -> None:
    made = played("batch-job", 120)
    assert made.engine.running == 4
    assert made.engine.waiting >= 20
    queue = made.engine.counters.queue_time
    assert queue.sum / queue.count > 5


def test_heat_throttles_the_core_within_the_hour_and_only_heat_does() -> None:
    gpu = gpu_of(played("heat", 3600))
    assert gpu.reading().sw_thermal_ns > 60e9
    assert gpu.reading().sw_power_ns == 0
    assert 84.9 < gpu.temp_c < 87.3  # the governor holds it there


def test_memory_heat_leaves_the_core_cool() -> None:
    reading = gpu_of(played("memory-heat", 3600)).reading()
    assert reading.sw_thermal_ns > 0
    assert reading.temp_c < 60
    assert reading.mem_clock_mhz is not None
    assert reading.mem_clock_mhz < 2619


@pytest.mark.parametrize("gpu", ["h100", "rtx4090", "rtx3090", "dgx-spark"])
def test_a_power_cap_costs_clock_on_every_gpu_and_makes_none_of_them_hotter(gpu: str) -> None:
    healthy, capped = gpu_of(played("heat", 300, gpu)), gpu_of(played("power-cap", 300, gpu))
    assert capped.clock_mhz() < 0.95 * healthy.clock_mhz()
    assert capped.temp_c < healthy.temp_c
    assert capped.reading().sw_power_ns > 200e9


def test_a_hot_room_throttles_by_the_end() -> None:
    assert gpu_of(played("hot-room", 3600 * 3)).reading().sw_thermal_ns > 0


def test_a_hidden_limit_shows_no_reason() -> None:
    reading = gpu_of(played("hidden-limit", 120)).reading()
    assert reading.sm_clock_mhz == 799
    assert reading.event_reasons == 0


def test_a_slow_start_is_slow_after_its_restart_and_a_restart_cures_it() -> None:
    made = played("slow-start", 60)
    assert made.get("slow_start_factor") == 1.25
    made.restart()
    assert made.get("slow_start_factor") == 1.0


def test_a_rollback_ends_where_it_began() -> None:
    assert played("rollback", 1800).identity.max_model_len == 4096
    assert played("rollback", 3700).identity.max_model_len == 8192


def test_without_its_prefix_cache_the_server_computes_what_all_share_for_everyone() -> None:
    with_cache, without = world(), played("prefix-cache-off", 600)
    with_cache.set("traffic.rate_per_s", 0.2)
    with_cache.set("traffic.shared_tokens", 1024.0)
    with_cache.advance(600)
    assert with_cache.engine.counters.prefix_cache_hits > 0
    assert without.engine.counters.prefix_cache_hits == 0


@pytest.mark.parametrize("name", ["hang", "die", "sleep"])
def test_nothing_moves_after_a_fault_of_the_server(name: str) -> None:
    made = played(name, 30)
    steps = made.engine.counters.iteration_tokens.count
    made.advance(300)
    assert made.engine.counters.iteration_tokens.count == steps
    assert made.is_down is (name == "die")


# -- playing


@dataclass
class Notes:
    """A stage that writes down what is set."""

    values: dict[str, Any] = field(default_factory=lambda: {"a": 1.0, "b": 10.0})
    sets: list[tuple[str, Any]] = field(default_factory=list)

    def get(self, name: str) -> Any:
        return self.values[name]

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.sets.append((name, value))


STORY = """
about: a story
raises: {kind: speed, cause: heat}
base: {a: 2.0}
timeline:
  - at: 10s
    set: {b: 5.0, restart: 3}
  - at: 20s
    ramp: {a: 6.0}
    over: 4s
"""


def test_a_time_line_is_played_in_order_and_a_ramp_moves_evenly() -> None:
    notes = Notes()
    notes.values["restart"] = None
    play = Play(parse(STORY, "story.yaml", "story", ("a", "b", "restart")), notes, 100.0)
    assert notes.sets == [("a", 2.0)]
    while (moment := play.next_s()) < 1000:
        play.advance(moment)
    assert notes.sets[1:3] == [("b", 5.0), ("restart", 3)]
    assert [value for _, value in notes.sets[3:]] == pytest.approx(
        [2.0 + quarter / 4 for quarter in range(17)]
    )


def test_it_does_not_matter_how_large_the_steps_are() -> None:
    notes = Notes()
    notes.values["restart"] = None
    Play(parse(STORY, "story.yaml", "story", ("a", "b", "restart")), notes, 0.0).advance(500.0)
    assert (notes.values["a"], notes.values["b"]) == (6.0, 5.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("timeline: []", "story.yaml:1: about is missing: one sentence that says what happens"),
        (
            "about: x\ntimelime: []",
            "story.yaml:2: timelime is not a known key; did you mean timeline?",
        ),
        (
            "about: x\ntimeline:\n  - set: {a: 1}",
            "story.yaml:3: this entry says not when; give it `at: 10m`",
        ),
        (
            "about: x\ntimeline:\n  - at: 10\n    set: {a: 1}",
            "story.yaml:3: at is 10; give it a unit, for example 90s, 10m or 2h",
        ),
        ("about: x\ntimeline:\n  - at: 1s", "story.yaml:3: an entry has either `set` or `ramp`"),
        (
            "about: x\ntimeline:\n  - at: 1s\n    ramp: {a: 1}",
            "story.yaml:3: `ramp` and `over` belong together: ramp to what, over how long",
        ),
        (
            "about: x\ntimeline:\n  - at: 1s\n    set:\n      gpu.colling: 2",
            "story.yaml:5: gpu.colling is nothing that can be set; did you mean gpu.cooling?",
        ),
        (
            "about: x\ntimeline:\n  - at: 1s\n    ramp: {a: fast}\n    over: 3s",
            "story.yaml:4: a is 'fast'; only a number can be a ramp's end",
        ),
        (
            "about: x\ntimeline: soon",
            "story.yaml:2: timeline must be a list of entries with `at` and `set` or `ramp`",
        ),
        ("about: x\npace: slow", "story.yaml:2: pace is 'slow'; it can be heat, or be left out"),
        ("about: x\nraises: {cause: heat}", "story.yaml:2: raises needs a kind"),
        (
            "about: x\nraises: {kind: thermall}",
            "story.yaml:2: thermall is no kind that can be reported; did you mean thermal?",
        ),
        (
            "about: x\nraises:\n  kind: speed\n  cause: nope",
            "story.yaml:4: nope is no cause that can be reported; "
            f"it is one of: {', '.join(Cause)}",
        ),
        ("about: x\nabout: y", "story.yaml:2: about is a duplicate; keep one of them"),
        ("- a\n- b", "story.yaml:1: a scenario must be a block of `key: value` lines"),
    ],
)
def test_a_file_that_cannot_be_played_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(ScenarioError) as failure:
        parse(text, "story.yaml", "story", ("a", "b", "gpu.cooling"))
    assert str(failure.value) == told
    assert failure.value.exit_code == 2


def test_the_kinds_and_causes_that_a_file_may_name_are_those_of_the_closed_lists() -> None:
    assert sorted(KINDS) == sorted(kind.value for kind in Kind)
    assert sorted(CAUSES) == sorted(cause.value for cause in Cause)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            "set: {traffic.rate_per_s: .inf}",
            "traffic.rate_per_s cannot be inf: input should be less than or equal to 1000",
        ),
        (
            "set: {traffic.rate_per_s: -1}",
            "traffic.rate_per_s cannot be -1: input should be greater than or equal to 0",
        ),
        (
            "set: {answers: int5}",
            "answers cannot be 'int5'; it is one of: healthy, int4, new-weights, lost-bos",
        ),
        (
            "set: {restart: .inf}",
            "restart cannot be inf; it is true, or its duration in seconds, 1,000,000 at most",
        ),
        (
            "ramp: {gpu.cooling: .nan}, over: 1m",
            "gpu.cooling cannot be nan: input should be less than or equal to 1000",
        ),
        (
            "ramp: {max_num_seqs: 4}, over: 1m",
            "max_num_seqs cannot be 4.0: input should be a valid integer",
        ),
    ],
)
def test_a_value_that_cannot_be_set_is_told_with_its_line_before_the_story_begins(
    change: str, told: str, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"about: mine\ntimeline:\n  - {{at: 1h, {change}}}\n")
    with pytest.raises(ScenarioError) as failure:
        switch(world(), str(mine))
    assert str(failure.value) == f"{mine}:3: {told}"


@pytest.mark.parametrize("value", [inf, -inf, nan, 1e300, -1e300])
def test_no_setting_takes_a_number_that_nothing_can_be_worked_out_with(value: float) -> None:
    made = world()
    for name in made.settable:
        with pytest.raises(SettingError):
            made.set(name, value)


def test_broken_yaml_is_told_with_its_line() -> None:
    with pytest.raises(ScenarioError, match=r"^story\.yaml:2: is not valid YAML: "):
        parse("about: x\nbase: {a: [1", "story.yaml", "story", ("a",))


def test_an_unknown_scenario_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "--scenario", "heet"]) == 2
    assert capsys.readouterr().err.strip() == "there is no scenario 'heet'; did you mean heat?"


def test_a_file_that_is_not_there_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "mine.yaml")
    assert main(["simulate", "--scenario", missing]) == 2
    assert (
        capsys.readouterr().err.strip() == f"{missing}: cannot be read: No such file or directory"
    )


def test_a_file_of_ones_own_is_played(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("about: mine\ntimeline:\n  - at: 1s\n    set: {gpu.cooling: 2.0}\n")
    made = world()
    assert switch(made, str(mine)).name == "mine"
    made.advance(2)
    assert gpu_of(made).cooling == 2.0


def test_the_setting_names_of_earlier_scenarios_are_still_accepted() -> None:
    text = "about: x\ntimeline:\n  - at: 1s\n    set: {card.cooling: 2.0}\n"
    parse(text, "story.yaml", "story", ("gpu.cooling",))
    world = make_world(["h100"])
    world.set("card.cooling", 2.0)
    assert world.get("gpu.cooling") == 2.0
