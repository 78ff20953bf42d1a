"""A fresh pair of namespaces for each test, in virtual time, with one queue in the primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sbclient.client import ServiceBusClient
from sbclient.clock import VirtualClock
from sbclient.testing import MemoryPair, memory_pair
from tests.client.scene import QUEUE, make_queue


@pytest_asyncio.fixture
async def pair(clock: VirtualClock) -> AsyncIterator[MemoryPair]:
    """Two namespaces, `contoso` with the queue `orders`, and `contoso-backup`; no task may outlive the test."""
    pair = memory_pair(clock=clock, seed=1)
    await make_queue(pair)
    before = asyncio.all_tasks()
    yield pair
    left = [task.get_name() for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    assert not left, f"tasks were left behind: {left}"


@pytest_asyncio.fixture
async def client(pair: MemoryPair) -> AsyncIterator[ServiceBusClient]:
    """A paired client with the documented defaults."""
    async with pair.client() as client:
        yield client


@pytest.fixture
def queue() -> str:
    return QUEUE
