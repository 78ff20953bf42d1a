"""Two emulated namespaces, each in a process of its own, and ways to hurt them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest

from tests.stage.namespaces import Namespace


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Namespace, Namespace]]:
    """The processes of all tests."""
    folder = tmp_path_factory.mktemp("namespaces")
    processes = Namespace("contoso", folder), Namespace("contoso-backup", folder)

    async def begin() -> None:
        await asyncio.gather(*(process.begin() for process in processes))

    asyncio.run(begin())
    yield processes
    for process in processes:
        process.kill()


@pytest.fixture
async def primary(processes: tuple[Namespace, Namespace]) -> AsyncIterator[Namespace]:
    yield processes[0]
    await processes[0].reset()


@pytest.fixture
async def secondary(processes: tuple[Namespace, Namespace]) -> AsyncIterator[Namespace]:
    yield processes[1]
    await processes[1].reset()
