"""Tells systemd how the worker stands: ready, stopping, still alive. Protocol: sd_notify(3).

Each message is a datagram to the socket that `NOTIFY_SOCKET` names; without one nothing is told, and nothing fails for
it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    """The service manager that started this process, if one did.

    Attributes:
        watchdog_s: how often it wants to hear that the process is alive: half of what it grants; None = it does not.

    Args:
        environment: of the process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_s = self._watchdog_s(environment) if self._address else None

    @staticmethod
    def _watchdog_s(environment: Mapping[str, str]) -> float | None:
        span_us, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID")
        if not span_us.isdecimal() or not int(span_us) or (process and process != str(os.getpid())):
            return None
        return int(span_us) / 2e6

    def is_ready(self, status: str) -> None:
        """The worker runs, and tells how it stands."""
        self._tell("READY=1", f"STATUS={status}")

    def is_stopping(self, status: str) -> None:
        """It has begun to end."""
        self._tell("STOPPING=1", f"STATUS={status}")

    def is_alive(self, status: str) -> None:
        """It still runs."""
        self._tell("WATCHDOG=1", f"STATUS={status}")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        # An address that begins with @ has no place in the file system.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)
