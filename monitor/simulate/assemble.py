"""Builds a world from the names of its GPUs, as given on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.simulate.engine.costs import EngineConfig
from monitor.simulate.gpu.gpu import Gpu
from monitor.simulate.gpu.kinds import GpuKind, kind_of
from monitor.simulate.identity import Identity
from monitor.simulate.scenarios.play import Play
from monitor.simulate.scenarios.scenario import Scenario, load
from monitor.simulate.traffic.background import BackgroundTraffic
from monitor.simulate.world import World

NOMINAL = kind_of("h100")  # the GPU that EngineConfig's default costs belong to
WEIGHTS_MIB = 15_300  # an 8B model in bf16
KV_BYTES_PER_TOKEN = 131_072  # of the same model; see EngineConfig
LARGE_MIB = 70_000  # from here on vLLM uses larger batch defaults (engine/arg_utils.py)


def engine_config(kind: GpuKind | None) -> EngineConfig:
    """The default engine on another GPU: decode scales with memory bandwidth, prefill with
    arithmetic throughput, and the cache with memory size.
    """
    config = EngineConfig()
    if kind is None or kind is NOMINAL:
        return config
    config.decode_base_s *= NOMINAL.bandwidth_gb_s / kind.bandwidth_gb_s
    config.decode_per_context_s *= NOMINAL.bandwidth_gb_s / kind.bandwidth_gb_s
    config.prefill_tok_s *= kind.tflops / NOMINAL.tflops
    room_mib = kind.vram_mib * Identity().gpu_memory_utilization - WEIGHTS_MIB
    config.num_gpu_blocks = min(
        config.num_gpu_blocks, int(room_mib * 2**20 / KV_BYTES_PER_TOKEN / config.block_size)
    )
    if kind.vram_mib < LARGE_MIB:
        config.max_num_batched_tokens, config.max_num_seqs = 2048, 256
    return config


def make_gpus(names: Sequence[str], thermal_speed: float = 1.0, kind: type[Gpu] = Gpu) -> list[Gpu]:
    """GPUs by the names of their kinds, with vLLM's share of their memory in use. Raises
    UnknownGpuError.
    """
    kinds = [kind_of(name) for name in names]
    used = Identity().gpu_memory_utilization
    return [
        kind(one, index, model_mib=one.vram_mib * used, thermal_speed=thermal_speed)
        for index, one in enumerate(kinds)
    ]


def make_world(
    names: Sequence[str],
    seed: int = 0,
    thermal_speed: float = 1.0,
    epoch_s: float = 0.0,
    kind: type[World] = World,
    gpu_kind: type[Gpu] = Gpu,
) -> World:
    """A server on these GPUs, with background traffic that is silent at first; the first GPU
    decides its speed. Raises UnknownGpuError.
    """
    gpus = make_gpus(names, thermal_speed, gpu_kind)
    world = kind(
        config=engine_config(gpus[0].kind if gpus else None),
        gpus=gpus,
        seed=seed,
        epoch_s=epoch_s,
    )
    BackgroundTraffic(world)
    return world


def switch(world: World, name_or_file: str, begin_s: float | None = None) -> Scenario:
    """Plays a scenario from now on, or from `begin_s`, and reverts what the previous one
    changed. Raises ScenarioError.
    """
    scenario = load(name_or_file, world.settable, world.check)
    for play in [source for source in world.sources if isinstance(source, Play)]:
        world.sources.remove(play)
        play.revert()
    speed = (
        max((gpu.thermal_speed for gpu in world.gpus if isinstance(gpu, Gpu)), default=1.0)
        if scenario.paced_by_heat
        else 1.0
    )
    world.sources.append(Play(scenario, world, world.now_s if begin_s is None else begin_s, speed))
    world.changed()
    return scenario
