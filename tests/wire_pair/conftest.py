"""Two emulated namespaces, each in a process of its own, and ways to hurt the first."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.limit import HANG_S

ROOT = Path(__file__).parents[2]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.new_event_loop}


class NamespaceProcess:
    """A namespace in a process.

    Attributes:
        connection_string, certificate: how to reach it.
    """

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.wire_pair.served", name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ready = json.loads(self._heard())
        self.connection_string: str = ready["connection_string"]
        self.certificate: str = ready["certificate"]

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the namespace ended with status {self._process.wait()}"
        return line

    def order(self, order: str) -> None:
        """Throw a switch, or heal."""
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        assert self._heard().strip() == "done"

    def hurt(self, how: str) -> None:
        """`"frozen"`, or the name of a fault of the wire."""
        if how == "frozen":
            self._process.send_signal(signal.SIGSTOP)
        else:
            self.order(how)

    def heal(self, how: str) -> None:
        if how == "frozen":
            self._process.send_signal(signal.SIGCONT)
        else:
            self.order("heal")

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait(HANG_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def primary() -> Iterator[NamespaceProcess]:
    process = NamespaceProcess("contoso")
    yield process
    process.close()


@pytest.fixture
def secondary() -> Iterator[NamespaceProcess]:
    process = NamespaceProcess("contoso-backup")
    yield process
    process.close()
