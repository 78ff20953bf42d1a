"""A transport and its scripted service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from sbclient.transport.amqp.transport import AmqpTransport
from tests.transport.amqp.service import Service


@pytest_asyncio.fixture
async def service() -> Service:
    return Service()


@pytest_asyncio.fixture
async def transport(service: Service) -> AsyncIterator[AmqpTransport]:
    """A transport; no task outlives it."""
    before = asyncio.all_tasks()
    transport = service.transport()
    yield transport
    await transport.close()
    left = [task.get_name() for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    assert not left, f"tasks were left behind: {left}"
