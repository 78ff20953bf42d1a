"""Fixtures for the tests with other clients, which need real sockets and real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.stage.serving import ServingThread
from tests.wire.serving import ServedNamespace


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def thread() -> Iterator[ServingThread]:
    """The thread that serves every namespace of these tests."""
    serving = ServingThread()
    yield serving
    serving.close()


@pytest.fixture(scope="module")
def namespace(thread: ServingThread) -> Iterator[ServedNamespace]:
    """A namespace for the tests of one file."""
    served = ServedNamespace(thread)
    yield served
    served.close()
