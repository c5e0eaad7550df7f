"""The command line: one module a command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from monitor.errors import UserError

#: Command -> what it does, in the order of `--help`. The module is monitor.cli.<command>.
COMMANDS = {
    "init": "write a configuration and probes that work against a server",
    "check": "say what can be reached and measured, what is missing, and what that costs",
    "run": "watch the servers: the daemon",
    "probe": "run canaries once, now",
    "history": "list samples",
    "show": "show one sample with everything that is known about it",
    "summary": "percentiles by class and phase",
    "status": "how things are now",
    "fingerprint": "what is being served, field by field, and where each was read",
    "pin": "record from the live server what its answers are, with a reason",
    "pins": "list, show, compare, export, import and end pins",
    "gate": "judge a server that is not yet live by another one's pins",
    "review": "record what a person said of a sample",
    "incidents": "list, show, acknowledge, close and annotate incidents",
    "alerts": "test the channels, list deliveries",
    "backtest": (
        "the judges over history or a CSV file: what would have been found, and what "
        "other thresholds would find"
    ),
    "calibrate": "learn anew from the history what is normal, and say from how much",
    "simulate": "a vLLM server without a GPU, whose GPU heats up: for trying things out",
    "demo": "two minutes with a simulated server: a queue, a hot GPU, a changed configuration",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code (docs/commands.md)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0 if arguments else 2
    if arguments[0] in {"-V", "--version"}:
        from monitor.__about__ import __version__  # noqa: PLC0415 - each road imports only what it needs

        print(f"vllm-canary {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        print(
            f"vllm-canary: there is no command {name!r}; it is one of: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    return run_command(name, arguments[1:])


def overview() -> str:
    """The text of `--help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: vllm-canary COMMAND [options]     (vllm-canary COMMAND --help tells more)",
            "",
            "Watches a live vLLM server the way its users feel it, and says what got worse and why.",
            "",
            *lines,
        ]
    )


def parser_of(name: str) -> argparse.ArgumentParser:
    """The argument parser of one command."""
    module = importlib.import_module(f"monitor.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"vllm-canary {name}", description=COMMANDS[name][0].upper() + COMMANDS[name][1:] + "."
    )
    module.arguments(parser)
    return parser


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Parse, run, and turn every expected failure into sentences and an exit code."""
    try:
        args = parser_of(name).parse_args(list(arguments))
    except SystemExit as stop:  # argparse has printed its sentence
        return int(stop.code or 0)
    try:
        code = int(importlib.import_module(f"monitor.cli.{name}").run(args))
        # here, and not when Python ends: there a reader that has left would be an error
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except UserError as failure:
        from monitor.show.terminal import printable  # noqa: PLC0415 - a server's own words may be in it

        print(printable(str(failure)), file=sys.stderr)
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
