"""Notifies systemd of the state of the worker: sd_notify(3). The package sdnotify has had no release since 2017."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    """The service manager that started this process, if any.

    Attributes:
        watchdog_s: seconds between two watchdog notifications, half of the watchdog timeout; None = no watchdog.

    Args:
        environment: of the process. Without `NOTIFY_SOCKET`, nothing is sent.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address, timeout_us = environment.get("NOTIFY_SOCKET", ""), environment.get("WATCHDOG_USEC", "")
        self._address = address.replace("@", "\0", 1) if address.startswith("@") else address  # an abstract socket
        is_watched = timeout_us.isdecimal() and environment.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        self.watchdog_s = int(timeout_us) / 2e6 or None if address and is_watched else None

    def notify(self, state: str, status: str) -> None:
        """Send a state such as `READY=1`, and a line for people. Errors of the socket are ignored."""
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(f"{state}\nSTATUS={status}".encode(), self._address)
