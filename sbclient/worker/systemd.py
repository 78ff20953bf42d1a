"""Notifies systemd that the worker is ready, stopping or alive. Protocol: sd_notify(3).

Each notification is a datagram to the socket that `NOTIFY_SOCKET` names. Without this variable nothing is sent. Errors
of the socket are ignored.
"""

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
        environment: of the process.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_s = self._watchdog_s(environment) if self._address else None

    @staticmethod
    def _watchdog_s(environment: Mapping[str, str]) -> float | None:
        timeout_us, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID")
        if not timeout_us.isdecimal() or not int(timeout_us) or (process and process != str(os.getpid())):
            return None
        return int(timeout_us) / 2e6

    def is_ready(self, status: str) -> None:
        """Notify that the worker has started."""
        self._send("READY=1", f"STATUS={status}")

    def is_stopping(self, status: str) -> None:
        """Notify that the worker is shutting down."""
        self._send("STOPPING=1", f"STATUS={status}")

    def is_alive(self, status: str) -> None:
        """Notify the watchdog that the worker is alive."""
        self._send("WATCHDOG=1", f"STATUS={status}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the abstract namespace of sockets.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), address)
