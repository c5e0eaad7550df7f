"""Notifications to systemd: READY, STATUS, WATCHDOG and STOPPING as datagrams (sd_notify(3)).
Without systemd they do nothing.
"""

from __future__ import annotations

import os
import socket


def notify(*lines: str) -> None:
    """Sends state lines such as READY=1. Fails silently if the supervisor does not listen."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall("\n".join(lines).encode())
    except OSError:
        return


def watchdog_interval_s() -> float | None:
    """Returns how often to send WATCHDOG=1: half of systemd's time-out, as sd_watchdog_enabled(3)
    advises; None without a time-out.
    """
    usec = os.environ.get("WATCHDOG_USEC")
    pid = os.environ.get("WATCHDOG_PID")
    if not usec or not usec.isdigit() or (pid is not None and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6 / 2
