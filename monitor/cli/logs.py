"""The log: plain lines on standard error. What a server or a model wrote may be in them, so each
entry stays one entry.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from monitor.text import one_line

LONGEST_LINE = 4000  # characters


def set_up_logging(verbose: bool) -> None:
    """Plain lines on standard error; systemd adds the time, so a terminal does."""
    form = "%(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter(form if not sys.stderr.isatty() else f"%(asctime)s {form}"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("monitor").setLevel(logging.DEBUG if verbose else logging.INFO)
    for noisy in ("httpx", "httpcore", "apscheduler", "alembic", "uvicorn"):
        logging.getLogger(noisy).setLevel(
            logging.ERROR if noisy == "apscheduler" else logging.WARNING
        )


class SafeFormatter(logging.Formatter):
    """One line an entry, whatever is in it: no line break of a server's begins an entry of its own,
    and no escape sequence reaches the terminal. The lines of a traceback are indented, so that none
    of them looks like an entry.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The entry without its traceback."""
        return one_line(super().formatMessage(record), LONGEST_LINE)

    def formatException(  # noqa: N802 - logging's own name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The traceback."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's own name
        """The stack, where one is asked for."""
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"    {one_line(line, LONGEST_LINE)}" for line in text.splitlines())
