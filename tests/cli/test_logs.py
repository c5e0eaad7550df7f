"""An entry of the log stays one entry, whatever a server or a model wrote into it."""

from __future__ import annotations

import logging
import sys

from monitor.cli.logs import LONGEST_LINE, SafeFormatter


def formatted(message: str, error: Exception | None = None) -> str:
    """The entry as it is written."""
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord(
        "monitor.daemon", logging.WARNING, __file__, 1, "target=%s (%s)", ("local", message), info
    )
    return SafeFormatter("%(levelname)s %(name)s: %(message)s").format(record)


def test_no_line_break_begins_an_entry_of_its_own_and_no_escape_sequence_is_left() -> None:
    assert formatted("\x1b]0;owned\x07\nWARNING target=local all is well") == (
        "WARNING monitor.daemon: target=local (\\x1b]0;owned\\x07 WARNING target=local all is well)"
    )


def test_an_entry_has_an_end() -> None:
    assert len(formatted("x" * 1_000_000)) == LONGEST_LINE


def test_the_lines_of_a_traceback_are_indented_and_printable_so_that_none_looks_like_an_entry() -> (
    None
):
    try:
        raise ValueError("\x1b[2J\nWARNING target=local all is well")
    except ValueError as error:
        first, *rest = formatted("lost", error).splitlines()
    assert first.startswith("WARNING monitor.daemon: ")
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_the_daemons_log_is_written_so() -> None:
    from monitor.cli import logs, run

    assert run.set_up_logging is logs.set_up_logging
    root = logging.getLogger()
    before, levels = (
        root.handlers[:],
        {
            n: logging.getLogger(n).level
            for n in ("", "monitor", "httpx", "httpcore", "apscheduler")
        },
    )
    root.handlers[:] = []
    try:
        logs.set_up_logging(verbose=False)
        (handler,) = root.handlers
        assert isinstance(handler.formatter, SafeFormatter)
        assert isinstance(handler, logging.StreamHandler)
        assert handler.stream is sys.stderr
    finally:
        root.handlers[:] = before
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
