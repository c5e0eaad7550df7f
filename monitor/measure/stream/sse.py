"""Server-sent events from raw bytes, cut anywhere (WHATWG HTML, section 9.2: event stream
interpretation). Pure.
"""

from __future__ import annotations

# A chunk with 20 alternatives is about 4 kB.
MAX_EVENT_BYTES = 8 * 1024 * 1024


class EventTooLargeError(Exception):
    """One event of the server is larger than any answer to a canary can be."""


class EventReader:
    """Collects bytes and returns the data of each finished event. Comments (keep-alives) are
    dropped.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the data fields of the events that this chunk completes, in order."""
        # the second half of a CR LF whose first half ended the last chunk
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        self._buffer += chunk
        events: list[bytes] = []
        for line in self._lines():
            if line:
                self._field(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if len(self._buffer) + self._size > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"one event is larger than {MAX_EVENT_BYTES} bytes")
        return events

    def pending(self) -> bytes | None:
        """The data of an event that no blank line has ended, if any: the stream broke off there."""
        rest = [*self._data, *([bytes(self._buffer)] if self._buffer else [])]
        return b"\n".join(rest) if rest else None

    def _lines(self) -> list[bytes]:
        """Takes the whole lines. They end with LF, CR LF or CR, and a CR at the end of a chunk may
        be half of a CR LF.
        """
        if not self._buffer:
            return []
        self._after_cr = self._buffer[-1:] == b"\r"
        *whole, rest = (
            bytes(self._buffer).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        )
        self._buffer = bytearray(rest)
        return whole

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value) + 1  # the line feed counts too: empty lines can flood as well
