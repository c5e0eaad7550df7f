"""The daemon's log: plain lines on standard error. It may quote a server or a model, so each entry
is kept to one entry.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from monitor.text import one_line

LONGEST_LINE = 4000  # characters


def set_up_logging(verbose: bool) -> None:
    """Logs to standard error, with the time only on a terminal: systemd adds its own."""
    form = "%(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(form if not sys.stderr.isatty() else f"%(asctime)s {form}"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("monitor").setLevel(logging.DEBUG if verbose else logging.INFO)
    for noisy in ("httpx", "httpcore", "alembic", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)


class SafeFormatter(logging.Formatter):
    """One line per entry: a quoted line break cannot start a forged entry, and no escape sequence
    reaches the terminal. Lines of a traceback are indented, so that none looks like an entry.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The entry without its traceback."""
        return one_line(super().formatMessage(record), LONGEST_LINE)

    def formatException(  # noqa: N802 - logging's own name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The traceback, indented."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's own name
        """The stack, indented."""
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"    {one_line(line, LONGEST_LINE)}" for line in text.splitlines())
