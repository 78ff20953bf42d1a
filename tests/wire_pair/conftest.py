"""Two emulated namespaces, each in a process of its own, and ways to hurt them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from tests.processes.namespaces import Namespace, connection_string


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.new_event_loop}


class NamespaceProcess(Namespace):
    """A namespace in a process."""

    @property
    def connection_string(self) -> str:
        return connection_string(self.port)

    async def hurt(self, how: str) -> None:
        """`"frozen"`, or the name of a fault of the wire."""
        if how == "frozen":
            self.signal(signal.SIGSTOP)
        else:
            await self.control("POST", "faults", {"kind": how})

    async def heal(self, how: str) -> None:
        if how == "frozen":
            self.signal(signal.SIGCONT)
        else:
            await self.control("DELETE", "faults")


@pytest.fixture
async def primary(tmp_path: Path) -> AsyncIterator[NamespaceProcess]:
    process = NamespaceProcess("contoso", tmp_path)
    await process.begin()
    yield process
    process.kill()


@pytest.fixture
async def secondary(tmp_path: Path) -> AsyncIterator[NamespaceProcess]:
    process = NamespaceProcess("contoso-backup", tmp_path)
    await process.begin()
    yield process
    process.kill()
