"""The kernel's receive timestamps (SO_TIMESTAMPING; Linux,
Documentation/networking/timestamping.rst) as monotonic times.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterable

SO_TIMESTAMPING = 37  # asm-generic/socket.h; Python's `socket` has no name for it
#: linux/net_tstamp.h: SOF_TIMESTAMPING_RX_SOFTWARE (stamp a packet when it arrives) and
#: SOF_TIMESTAMPING_SOFTWARE (report the stamp).
STAMP_AND_REPORT = 1 << 3 | 1 << 4
#: struct scm_timestamping: three timespecs, of which the first is the software's.
ANCILLARY_BYTES = socket.CMSG_SPACE(3 * struct.calcsize("@ll"))
# The two clocks may drift apart by this much between two reads; more means that a clock was set.
CLOCKS_APART_NS = 1_000_000
TIGHT_NS = 5_000  # a reading of both clocks within this time is good enough


def request_stamps(sock: socket.socket) -> bool:
    """Switches the kernel's stamps on; False where it has none (another system, a sandbox)."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, STAMP_AND_REPORT)
    except OSError:
        return False
    return True


def stamp(ancillary: Iterable[tuple[int, int, bytes]], not_before_ns: int) -> int:
    """The monotonic arrival time of received bytes, from the kernel's ancillary data; now, where
    that has no stamp.

    The kernel stamps with the wall clock. A stamp before `not_before_ns` or in the future comes
    from a clock that has been set since, and is discarded.
    """
    for level, kind, data in ancillary:
        if (
            level == socket.SOL_SOCKET
            and kind == SO_TIMESTAMPING
            and len(data) >= struct.calcsize("@ll")
        ):
            seconds, nanoseconds = struct.unpack_from("@ll", data)
            arrived: int = seconds * 10**9 + nanoseconds - wall_less_monotonic_ns()
            if not_before_ns - CLOCKS_APART_NS <= arrived <= time.monotonic_ns():
                return max(arrived, not_before_ns)
    return max(time.monotonic_ns(), not_before_ns)


def wall_less_monotonic_ns() -> int:
    """The difference between the wall clock and the monotonic clock: the tightest of a few
    readings, since a thread may run between the two.
    """
    best_ns, difference_ns = 2**63, 0
    for _ in range(4):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < best_ns:
            best_ns, difference_ns = after - before, wall - (before + after) // 2
        if best_ns <= TIGHT_NS:
            break
    return difference_ns
