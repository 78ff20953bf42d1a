"""RabbitMQ with its AMQP 1.0 plugin, a foreign broker, where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PROGRAM: Final = next(
    filter(None, map(shutil.which, ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"))), None
)
"""Debian's own script comes last: for root it drops the environment."""

START_S: Final = 120.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


class NotStartedError(Exception):
    """RabbitMQ is installed, but ends or does not listen."""


class RabbitMQ:
    """A running RabbitMQ with its AMQP 1.0 plugin."""

    def __init__(self, port: int, process_id: int) -> None:
        self.port = port
        self.url = f"amqp://guest:guest@127.0.0.1:{port}"
        self._process_id = process_id

    def processor_s(self) -> float:
        """Return the processor time of its process and of those below it."""
        spent, parents = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            parents[int(path.parent.name)] = int(fields[1])
            spent[int(path.parent.name)] = sum(map(int, fields[11:15])) / TICKS
        family = {self._process_id}
        while more := {child for child, parent in parents.items() if parent in family} - family:
            family |= more
        return sum(spent.get(process_id, 0.0) for process_id in family)


@contextmanager
def running() -> Iterator[RabbitMQ | None]:
    """Start RabbitMQ with all its files in a temporary directory; None if it is not installed."""
    if PROGRAM is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        port, distribution_port = first.getsockname()[1], second.getsockname()[1]
        first.close()
        second.close()
        plugins = Path(folder, "enabled_plugins")
        plugins.write_text("[rabbitmq_amqp1_0].\n")
        environment = os.environ | {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"benchmark-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        }
        process = subprocess.Popen(
            [PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        guard = threading.Timer(START_S, process.kill)
        guard.start()
        try:
            if not any("completed with" in line for line in process.stdout):
                raise NotStartedError(f"RabbitMQ does not start: run {PROGRAM} to see why")
            yield RabbitMQ(port, process.pid)
        finally:
            guard.cancel()
            process.terminate()
            process.communicate(timeout=START_S)
