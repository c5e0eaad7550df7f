"""`simulate`: a vLLM server without a GPU, whose GPU heats up."""

from __future__ import annotations

import asyncio
import signal
from argparse import Namespace
from math import inf
from pathlib import Path

from monitor.cli.common import CommandError
from monitor.replay.virtual.export import export
from monitor.simulate.api.dcgm import exporter
from monitor.simulate.api.server import CONTROL, SimulatedServer
from monitor.simulate.assemble import make_world, switch
from monitor.simulate.world import World

#: First answer after each process start and parameter set: long enough to be seen, short to wait.
COLD_S = 1.0


def run(args: Namespace) -> int:
    """Serve until stopped, or export."""
    if args.gpus < 1 or not 0 < args.thermal_speed < inf or not 0 < args.hours < inf:
        raise CommandError(
            "--gpus must be 1 or more; --thermal-speed and --hours must be numbers above 0"
        )
    if args.export is not None:
        return _export(args)
    if args.onset is not None:
        raise CommandError("--onset requires --export; without it the scenario begins immediately")
    world = make_world([args.gpu] * args.gpus, args.seed, args.thermal_speed)
    world.set("cold_s", COLD_S)
    scenario = switch(world, args.scenario)
    asyncio.run(_serve(world, f"scenario {scenario.name}: {scenario.about}", args))
    return 0


async def _serve(world: World, about: str, args: Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = SimulatedServer(world, args.host, args.port)
    async with server, exporter(server, args.host, args.dcgm_port) as gpus:
        speed = (
            f"; heat moves {args.thermal_speed:g} times faster, tokens in real time"
            if args.thermal_speed != 1
            else ""
        )
        print(
            f"simulated vLLM {world.identity.version} with {args.gpus} x {args.gpu} on "
            f"{server.url}{speed}"
        )
        print(f"its GPUs, as a DCGM exporter shows them: {gpus.url}/metrics")
        print(about)
        print(
            (
                f'another scenario: curl -H content-type:application/json -d \'{{"scenario": '
                f'"heat"}}\' {server.url}{CONTROL}'
            ),
            flush=True,
        )
        await stop.wait()


def _export(args: Namespace) -> int:
    print(
        export(
            Path(args.export),
            args.hours,
            [args.gpu] * args.gpus,
            args.scenario,
            args.seed,
            args.thermal_speed,
            args.onset,
        )
    )
    return 0
