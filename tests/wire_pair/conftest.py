"""Two emulated namespaces, each in a process of its own, and ways to hurt them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

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

    async def reset(self) -> None:
        """Make it as new."""
        await self.heal("frozen")
        await self.control("POST", "reset")


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    """The processes of all tests."""
    folder = tmp_path_factory.mktemp("namespaces")
    processes = NamespaceProcess("contoso", folder), NamespaceProcess("contoso-backup", folder)

    async def begin() -> None:
        await asyncio.gather(*(process.begin() for process in processes))

    asyncio.run(begin())
    yield processes
    for process in processes:
        process.kill()


@pytest.fixture
async def primary(processes: tuple[NamespaceProcess, NamespaceProcess]) -> AsyncIterator[NamespaceProcess]:
    yield processes[0]
    await processes[0].reset()


@pytest.fixture
async def secondary(processes: tuple[NamespaceProcess, NamespaceProcess]) -> AsyncIterator[NamespaceProcess]:
    yield processes[1]
    await processes[1].reset()
