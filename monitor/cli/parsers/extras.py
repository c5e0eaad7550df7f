"""Options of `simulate`, `demo` and `completion`."""

from __future__ import annotations

from argparse import ArgumentParser

from monitor.cli.parsers import options

GPUS = "h100, a100, rtx4090, rtx3090, rtx5090 or dgx-spark"


def simulate(parser: ArgumentParser) -> None:
    """`simulate`."""
    options.entry(parser, "simulate:run")
    parser.add_argument(
        "--gpu", default="h100", metavar="NAME", help=f"{GPUS} (default: %(default)s)"
    )
    parser.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="number of GPUs (default: %(default)s)"
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
        help="seed of all random numbers (default: %(default)s)",
    )
    parser.add_argument(
        "--thermal-speed",
        type=float,
        default=1.0,
        metavar="N",
        help="temperatures change N times faster; token timing stays real",
    )
    _addresses(parser)
    _export(parser)


def _addresses(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="P", help="port of the vLLM API (default: any free)"
    )
    parser.add_argument(
        "--dcgm-port",
        type=int,
        default=0,
        metavar="P",
        help="port of the GPUs' DCGM exporter page (default: any free)",
    )


def _export(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--export",
        metavar="FILE.csv",
        help="start no server; write what a daemon would have stored, in virtual time",
    )
    parser.add_argument(
        "--hours",
        type=float,
        default=24.0,
        metavar="H",
        help="length of the export in hours (default: %(default)s)",
    )
    parser.add_argument(
        "--onset",
        type=float,
        metavar="H",
        help="hours of the export before the scenario begins (default: half of its length)",
    )


def demo(parser: ArgumentParser) -> None:
    """`demo`."""
    options.entry(parser, "demo:run")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave server and daemon running at the end, until Ctrl-C",
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="directory for configuration, history and logs (default: a new temporary one)",
    )


def completion(parser: ArgumentParser) -> None:
    """`completion`."""
    options.entry(parser, "completion:run")
    parser.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="the shell")
