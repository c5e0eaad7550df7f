"""The command line. `main` parses, imports the one module that runs the command, and turns every
expected failure into a sentence and an exit code.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from monitor.__about__ import __version__
from monitor.cli.parsers import COMMANDS, overview, parser_of
from monitor.errors import UNMEASURED, USAGE, UserError
from monitor.text import printable


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code (docs/commands.md)."""
    _prepare_output()
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        # Flushed here: a reader that has left would be an error at interpreter exit.
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        _drop_output()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"the output cannot be written: {os.strerror(errno.ENOSPC)}", file=sys.stderr)
        _drop_output()
        return UNMEASURED
    return code


def _prepare_output() -> None:
    """Opens closed streams, and lets a narrow encoding spell what it lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(overview())
        return 0 if arguments else USAGE
    name, *rest = arguments
    if name in {"-V", "--version"}:
        print(f"vllm-canary {__version__}")
        return 0
    if name not in COMMANDS:
        print(
            f"vllm-canary: there is no command {name!r}; commands: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return USAGE
    try:
        args = parser_of(name).parse_args(rest)
    except SystemExit as stop:  # argparse has printed its sentence
        return int(stop.code or 0)
    return _run(args)


def _run(args: Namespace) -> int:
    try:
        return entry_of(args.entry)(args)
    except KeyboardInterrupt:
        return 130
    except UserError as failure:
        print(printable(str(failure)), file=sys.stderr)
        return failure.exit_code


def entry_of(place: str) -> Callable[[Namespace], int]:
    """The function named `module:function`; only the chosen command's module is imported."""
    module, _, function = place.partition(":")
    entry: Callable[[Namespace], int] = getattr(
        importlib.import_module(f"monitor.cli.{module}"), function
    )
    return entry


def _drop_output() -> None:
    """Discards what is still buffered, which would otherwise fail at interpreter exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
