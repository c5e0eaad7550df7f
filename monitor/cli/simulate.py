"""`simulate`: a vLLM server without a GPU, whose GPU heats up."""

from __future__ import annotations

import argparse
import asyncio
import signal
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.cli.common import CommandError

if TYPE_CHECKING:
    from monitor.simulate.world import World

# compilation at the first answer per process start and parameter set: visible, and short
COLD_S = 1.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    _server_options(parser)
    _export_options(parser)


def _server_options(parser: argparse.ArgumentParser) -> None:
    known = "h100, a100, rtx4090, rtx3090, rtx5090 or dgx-spark"
    parser.add_argument(
        "--gpu", default="h100", metavar="NAME", help=f"{known} (default: %(default)s)"
    )
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="how many of them (default: %(default)s)"
    )
    parser.add_argument(
        "--scenario",
        default="calm",
        metavar="NAME|FILE",
        help="what goes wrong, and when (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the same scenario and seed give the same history (default: %(default)s)",
    )
    parser.add_argument(
        "--thermal-speed",
        type=float,
        default=1.0,
        metavar="N",
        help="heat moves N times faster; token timing stays real",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="P", help="of the vLLM API (default: a free one)"
    )
    parser.add_argument(
        "--dcgm-port",
        type=int,
        default=0,
        metavar="P",
        help="of the GPUs' DCGM exporter page (default: a free one)",
    )


def _export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--export",
        type=Path,
        metavar="FILE.csv",
        help="no server: write what a daemon would have stored, in virtual time",
    )
    parser.add_argument(
        "--hours",
        type=float,
        default=24.0,
        metavar="H",
        help="how much of it (default: %(default)s)",
    )
    parser.add_argument(
        "--onset",
        type=float,
        metavar="H",
        help="of an export: hours until the scenario begins (default: half of them)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until stopped, or export."""
    if args.gpus < 1 or not 0 < args.thermal_speed < inf or not 0 < args.hours < inf:
        raise CommandError(
            "--gpus must be 1 or more; --thermal-speed and --hours must be numbers above 0"
        )
    if args.export is not None:
        return _export(args)
    if args.onset is not None:
        raise CommandError("--onset goes with --export; a served scenario begins at once")
    from monitor.simulate.assemble import make_world, switch  # noqa: PLC0415 - --help needs none of this

    world = make_world([args.gpu] * args.gpus, args.seed, args.thermal_speed)
    world.set("cold_s", COLD_S)
    scenario = switch(world, args.scenario)
    asyncio.run(_serve(world, f"scenario {scenario.name}: {scenario.about}", args))
    return 0


async def _serve(world: World, about: str, args: argparse.Namespace) -> None:
    from monitor.simulate.api.dcgm import exporter  # noqa: PLC0415
    from monitor.simulate.api.server import CONTROL, SimulatedServer  # noqa: PLC0415

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


def _export(args: argparse.Namespace) -> int:
    from monitor.replay.virtual.export import export  # noqa: PLC0415

    print(
        export(
            args.export,
            args.hours,
            [args.gpu] * args.gpus,
            args.scenario,
            args.seed,
            args.thermal_speed,
            args.onset,
        )
    )
    return 0
