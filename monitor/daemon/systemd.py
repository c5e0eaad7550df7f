"""Telling systemd how we are: READY, STATUS, WATCHDOG and STOPPING as datagrams (sd_notify(3)).
Without systemd it does nothing.
"""

from __future__ import annotations

import os
import socket


def notify(*lines: str) -> None:
    """Send state lines such as READY=1. A supervisor that does not listen is no reason to fail."""
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
    """How often to say WATCHDOG=1: at half the time that systemd waits, as sd_watchdog_enabled(3)
    advises; None where it does not wait.
    """
    usec = os.environ.get("WATCHDOG_USEC")
    pid = os.environ.get("WATCHDOG_PID")
    if not usec or not usec.isdigit() or (pid is not None and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6 / 2
